"""The watcher: a thread of each rank that sleeps until somebody wants to know something.

Another rank that waits for this one asks where its Python stands; the end of the job, or SIGUSR2,
asks for the flight recorder. The thread waits in the compiled library, without Python's lock and
without waking up, so it costs nothing while the job goes well.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import traceback
from types import TracebackType
from typing import Any

from hvd_keras import _library
from hvd_keras.diagnostics import flight_recorder

__all__ = ["start", "stop"]

_SLICE_SECONDS = 3600.0
_JOIN_SECONDS = 10.0
# The library cuts the text from the front; this many calls are enough to tell one place.
_FRAMES = 20

_thread: threading.Thread | None = None


def start(dump_folder: str) -> None:
    """Starts the watcher of this rank, and tells the other ranks of uncaught exceptions.

    Args:
        dump_folder: where the flight recorder goes; "" for a folder of the job's own.
    """
    global _thread
    _thread = threading.Thread(target=_watch, args=(dump_folder,), name="hvd-watcher", daemon=True)
    _thread.start()
    _report_exceptions()
    with contextlib.suppress(ValueError):  # raised by Python in threads other than the main one
        if signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL:
            _library.core.call_watcher_on_signal(signal.SIGUSR2)


def stop() -> None:
    """Ends the watcher, before the library leaves the job."""
    global _thread
    thread, _thread = _thread, None
    if thread is None:
        return
    core = _library.core
    with contextlib.suppress(core.CollectiveError):  # in a forked child it is not there
        core.call_watcher(core.CALL_RETURN)
        thread.join(_JOIN_SECONDS)


def _watch(dump_folder: str) -> None:
    core = _library.core
    with contextlib.suppress(core.CollectiveError):
        while True:
            calls = core.wait_for_calls(_SLICE_SECONDS)
            if calls & core.CALL_STACK:
                core.answer_stack(_stack_of_main_thread())
            if calls & (core.CALL_DUMP | core.CALL_ABORT):
                _dump(dump_folder, quiet=bool(calls & core.CALL_ABORT))
            if calls & core.CALL_RETURN:
                return


def _stack_of_main_thread() -> str:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame)[-_FRAMES:]) if frame else "it has ended"


def _dump(folder: str, quiet: bool) -> None:
    try:
        path = flight_recorder.dump_flight_recorder(folder or None)
    except Exception as error:  # no space, no permission: nothing that may end a thread
        print(f"hvd_keras: the flight recorder could not be written: {error}", file=sys.stderr)
        return
    if not quiet:
        print(f"hvd_keras: flight recorder written to {path}", file=sys.stderr)


def _report_exceptions() -> None:
    """Makes an exception that ends this process the others' error message, with its traceback."""
    hook = sys.excepthook
    if getattr(hook, "_hvd", False):
        return

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        # At a prompt an exception does not end the process.
        if issubclass(kind, Exception) and not hasattr(sys, "ps1"):
            with contextlib.suppress(Exception):
                text = "".join(traceback.format_exception(kind, error, trace))
                _library.core.abort_for_exception(text)
                # Where another rank is about to abort the job, this process may end before it has.
                _library.core.call_watcher(_library.core.CALL_ABORT)
        return hook(kind, error, trace)

    report._hvd = True  # type: ignore[attr-defined]
    sys.excepthook = report
