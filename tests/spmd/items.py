"""What the mark ``ranks`` says of a test."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

DEFAULT_RANKS = 2
DEFAULT_TIMEOUT = 60.0
TOTAL_TIMEOUT = 1800.0


class LaunchKey(NamedTuple):
    """Tests with the same key share one launch."""

    ranks: int
    group: str


def _arguments(ranks: int = DEFAULT_RANKS, *, group: str = "", timeout: float | None = None):
    return ranks, group, timeout


def is_spmd(item: pytest.Item) -> bool:
    """Whether a test runs as several ranks."""
    folders = item.path.relative_to(item.config.rootpath).parent.parts
    return "parallel" in folders or item.get_closest_marker("ranks") is not None


def _mark(item: pytest.Item):
    mark = item.get_closest_marker("ranks")
    return _arguments(*mark.args, **mark.kwargs) if mark else _arguments()


def is_marked(item: pytest.Item) -> bool:
    """Whether a test asks for a certain launch; others run with any number of ranks."""
    return item.get_closest_marker("ranks") is not None


def launch_key(item: pytest.Item) -> LaunchKey:
    """The launch that a test belongs to."""
    ranks, group, _ = _mark(item)
    return LaunchKey(ranks, group)


def timeout_of(item: pytest.Item) -> float:
    """Seconds that a test may take."""
    timeout = _mark(item)[2]
    return float(timeout or item.config.getini("spmd_timeout") or DEFAULT_TIMEOUT)


def load_report(config: pytest.Config, data: dict[str, Any]) -> pytest.TestReport:
    """A report that has travelled as JSON, which knows no tuples."""
    data["location"] = tuple(data["location"])
    if isinstance(data["longrepr"], list):
        data["longrepr"] = tuple(data["longrepr"])
    return config.hook.pytest_report_from_serializable(config=config, data=data)
