"""Which of several failures is the first cause: hvd_keras.runner.errors."""

from hvd_keras.runner.errors import RankFailedError, first_failure


def failure(rank, what, code=1):
    return RankFailedError(f"rank {rank} of 2 has failed, with {what}", rank, code)


CAUSE = failure(0, "exit code 1:\n\nTraceback (most recent call last):\nKeyError: 'x'")
VICTIM = failure(1, "exit code 1:\n\nTraceback (most recent call last):\nAbortedError: rank 0 died")
KILLED = failure(0, "killed by SIGKILL; its output says why", -9)
ENDED_BY_MPI = failure(1, "exit code 14; its output says why", 14)


def test_the_first_that_is_no_consequence():
    assert first_failure([]) is None
    assert first_failure([VICTIM, CAUSE]) is CAUSE
    assert first_failure([CAUSE, KILLED]) is CAUSE
    assert first_failure([VICTIM]) is VICTIM


def test_a_rank_that_mpi_has_ended_over_a_peer():
    assert first_failure([ENDED_BY_MPI, KILLED]) is KILLED
    assert first_failure([ENDED_BY_MPI]) is ENDED_BY_MPI
    own = failure(1, "exit code 14:\n\nTraceback (most recent call last):\nSystemExit: 14", 14)
    assert first_failure([own, KILLED]) is own
