"""The parts of the suite, one file each.

A part's file has both its halves. ``measure(backend, job)`` runs in every rank, in this project's
interpreter or in a peer's, and returns series of figures; ``run(suite)`` starts the programs and
makes tables of what they have measured. Only the first needs numpy, or anything else that is not of
the standard library.
"""
