"""Errors of the launcher."""

from __future__ import annotations

USAGE_EXIT_CODE = 2


class LaunchError(Exception):
    """A job that could not be started; the text is one sentence for the user.

    ``hvdrun`` prints it after ``hvdrun: error:`` and ends with ``exit_code``.
    """

    def __init__(self, message: str, exit_code: int = USAGE_EXIT_CODE) -> None:
        super().__init__(message)
        self.exit_code = exit_code
