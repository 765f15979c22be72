"""Makes the tests of several ranks part of every pytest run; see spmd/__init__.py."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from spmd import place, plugin


def pytest_addoption(parser: pytest.Parser) -> None:
    plugin.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    plugin.configure(config)
    if "HVD_FLIGHT_RECORDER_DIR" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="hvd-test-flight-recorder-")
        os.environ["HVD_FLIGHT_RECORDER_DIR"] = folder.name
        config.add_cleanup(folder.cleanup)


def pytest_collection_finish() -> None:
    # The modules in parallel/ call hvd.init() when they are imported. Where they are only
    # collected, the tests that run in this process must find it as it was before.
    world = sys.modules.get("hvd_keras.world")
    if world is not None and place.identity() is None:
        world.shutdown()
