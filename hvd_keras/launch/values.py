"""Reading the values of ``hvdrun``'s options."""

from __future__ import annotations

import argparse
import math

__all__ = ["megabytes", "port", "positive_int", "seconds"]


def positive_int(text: str) -> int:
    """A number of ranks."""
    if not (text.isascii() and text.isdigit() and len(text) < 7 and int(text) > 0):
        raise argparse.ArgumentTypeError(f"expects a whole number of 1 or more, not {text!r}")
    return int(text)


def port(text: str) -> int:
    """A number of a port."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise argparse.ArgumentTypeError(f"expects a port, 1 to 65535, not {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """A time of 0 or more."""
    return _number(text, "seconds, 0 or more")


def megabytes(text: str) -> float:
    """A size of 0 or more."""
    return _number(text, "MiB, 0 or more")


def _number(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"expects a number of {what}, not {text!r}")
    return value
