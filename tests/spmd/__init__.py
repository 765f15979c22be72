"""Tests that run as several ranks, reported one by one.

A test in a folder named ``parallel``, or with the mark ``ranks``, is run by several processes at
once, each calling the test function; they may use collectives. Plain ``pytest`` starts ``hvdrun``
for them, once for all tests with the same mark, and reports each by its name (:mod:`spmd.outer`).
``hvdrun -np N -- python -m pytest tests/parallel`` runs them directly, as does an MPI launcher;
:mod:`spmd.place` says what it takes on several hosts.

In the ranks (:mod:`spmd.inner`) all meet before and after each test, over a socket of a separate
process, the referee (:mod:`spmd.referee`): a test fails on every rank if it fails on one, and the
run ends if a rank dies or does not come in time.

    pytestmark = pytest.mark.ranks(3)                 # a launch with 3 ranks
    pytestmark = pytest.mark.ranks(2, group="graph")  # a launch of its own, for what changes a
                                                      # process for good
    @pytest.mark.ranks(2, timeout=120)                # seconds

The fixture ``shared_tmp_path`` is an empty folder that is the same on all ranks.
"""
