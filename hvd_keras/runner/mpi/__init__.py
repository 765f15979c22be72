"""Starting a job over several hosts without ssh, where this package runs on each host already.

The tasks of a Spark job and the actors of a Ray cluster are processes that somebody else has
started and watches, on hosts that can rarely log in to each other. To be ranks of one MPI job they
lack nothing but what an MPI launcher tells its children: who they are, and how to reach its
daemons. So the launcher does start a process for each rank, a *stand-in*, which hands what it was
told to the real one.

1. Each host has an *agent* (``agent.py``), a thread of its first rank, which runs a command for
   whoever knows the job's secret.
2. The first rank starts mpirun or mpiexec (``launcher.py``) and gives it, instead of ssh, a program
   that takes the command for a host to the host's agent (``remote_shell.py``). This starts MPI's
   daemons, and these start the stand-ins (``stand_in.py``).
3. Each rank takes the variables, and the descriptor that some daemons listen at, from its stand-in
   (``identity.py``), and calls ``hvd.init()`` with them, in whatever process it likes.

``Seat`` (``seat.py``) does all of this for one rank. Every process that is started here ends when
the one that has started it does, however that happens.
"""

from hvd_keras.runner.mpi.seat import Meeting, Member, Seat, rank_order

__all__ = ["Meeting", "Member", "Seat", "rank_order"]
