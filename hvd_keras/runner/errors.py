"""What a caller sees of a function that has failed on a rank."""

from __future__ import annotations

__all__ = ["RankFailedError"]


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
