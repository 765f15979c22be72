"""What conftest.py calls."""

from __future__ import annotations

import pytest

from spmd import place
from spmd.items import DEFAULT_RANKS, DEFAULT_TIMEOUT, TOTAL_TIMEOUT


def add_options(parser: pytest.Parser) -> None:
    """Adds the settings of pytest.ini; for ``pytest_addoption``."""
    parser.addini("spmd_timeout", f"seconds for a test of several ranks ({DEFAULT_TIMEOUT:g})")
    parser.addini("spmd_total_timeout", f"seconds for a launch of ranks ({TOTAL_TIMEOUT:g})")


def configure(config: pytest.Config) -> None:
    """Registers the plugin for this process's part; for ``pytest_configure``."""
    config.addinivalue_line(
        "markers",
        f"ranks(n={DEFAULT_RANKS}, group='', timeout={DEFAULT_TIMEOUT:g}): run the test as n "
        "ranks at once, in a launch that it shares with the tests of the same n and group",
    )
    if place.identity() is not None:
        from spmd.inner import RankPlugin

        config.pluginmanager.register(RankPlugin(config), "spmd_rank")
    else:
        from spmd.outer import LaunchPlugin

        config.pluginmanager.register(LaunchPlugin(config), "spmd_launch")
