"""What a caller sees of a function that has failed on a rank."""

from __future__ import annotations

from collections.abc import Iterable

from hvd_keras.launch.report import SOCKET_CLOSED_CODE

__all__ = ["RankFailedError", "first_failure", "is_consequence"]

# How a rank says that it failed over another one's failure.
_VICTIMS = ("AbortedError", "HorovodInternalError", "PeerDiedError")


class RankFailedError(RuntimeError):
    """The function has failed on a rank; the message has that rank's traceback.

    Attributes:
        rank: the rank that failed first; None if that cannot be said.
        exit_code: what its process ended with; None where it still runs.
    """

    def __init__(self, message: str, rank: int | None = None, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank
        self.exit_code = exit_code

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.rank, self.exit_code)


def first_failure(failures: Iterable[RankFailedError]) -> RankFailedError | None:
    """Returns the first one that is not merely the consequence of another rank's.

    Args:
        failures: in the order in which they happened.

    Returns:
        The first one of all where each says that it is a consequence; None where there is none.
    """
    return min(failures, key=is_consequence, default=None)


def is_consequence(failure: RankFailedError) -> bool:
    """Whether the failure says that it is merely the consequence of another rank's."""
    lines = str(failure).strip().splitlines()
    heads = [line for line in lines if line and not line[0].isspace()]
    if len(heads) == 1 and failure.exit_code == SOCKET_CLOSED_CODE:  # and no traceback
        return True
    return any(name in line for line in heads[1:] for name in _VICTIMS)
