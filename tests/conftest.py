"""Makes the tests of several ranks part of every pytest run; see spmd/__init__.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from spmd import plugin


def pytest_addoption(parser: pytest.Parser) -> None:
    plugin.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    plugin.configure(config)


def pytest_collection_finish() -> None:
    # The modules in parallel/ call hvd.init() when they are imported. Where they are only
    # collected, the tests that run in this process must find it as it was before.
    world = sys.modules.get("hvd_keras.world")
    if world is not None and "HVD_RANK" not in os.environ:
        world.shutdown()
