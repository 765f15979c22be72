"""Buckets: which tensors travel together.

Every rank makes its buckets alone, while it builds its graph. They are the same everywhere because
they are made from nothing but what the ranks have in common: order, types and sizes of the model's
variables.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Piece", "make_buckets"]


class Piece(NamedTuple):
    """One tensor: its position in the caller's list, the type it travels in, and its size."""

    position: int
    dtype: str
    nbytes: int


def make_buckets(pieces: Iterable[Piece], threshold: int) -> list[list[Piece]]:
    """Fills buckets, each of one type, in the order of ``pieces``.

    Args:
        pieces: in the order in which they become available.
        threshold: a bucket takes no further piece that would bring it over this many bytes; a
            larger piece is a bucket of its own; 0 makes every piece one.

    Returns:
        The buckets in the order in which they were begun.
    """
    buckets: list[list[Piece]] = []
    filling: dict[str, tuple[list[Piece], int]] = {}
    for piece in pieces:
        bucket, nbytes = filling.get(piece.dtype, ([], 0))
        if bucket and nbytes + piece.nbytes <= threshold and threshold > 0:
            bucket.append(piece)
        else:
            bucket, nbytes = [piece], 0
            buckets.append(bucket)
        filling[piece.dtype] = (bucket, nbytes + piece.nbytes)
    return buckets
