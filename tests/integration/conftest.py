"""Keeps the Ray clusters of these tests apart from any other one on this machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

# Read when ray is imported, which modules of tests do.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


@pytest.fixture(autouse=True, scope="session")
def ray_apart() -> Iterator[None]:
    """``ray.init()`` joins the cluster that a file of this folder names, be it long gone."""
    with (
        tempfile.TemporaryDirectory(prefix="hvd-ray-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_TMPDIR", folder)
        patch.delenv("RAY_ADDRESS", raising=False)
        yield
