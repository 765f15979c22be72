"""Fixtures for tests on several hosts."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import pytest

from hosts import mpi as mpis
from hosts.namespaces import why_not
from hosts.rack import Hosts

reason_not_to = functools.cache(why_not)


@pytest.fixture
def make_hosts() -> Iterator[Callable[..., Hosts]]:
    """Makes :class:`Hosts`, which last until the end of the test."""
    reason = reason_not_to()
    if reason is not None:
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:

        def make(count: int, rate: str | None = "1gbit", **how: int) -> Hosts:
            return stack.enter_context(Hosts(count, rate, **how))

        yield make


@pytest.fixture(params=mpis.NAMES)
def find_mpi(request: pytest.FixtureRequest) -> Callable[[Hosts], mpis.Mpi]:
    """Each MPI in turn, for the hosts."""

    def find(hosts: Hosts) -> mpis.Mpi:
        found = mpis.find(request.param, hosts.shared / "lib")
        if isinstance(found, str):
            pytest.skip(found)
        return found

    return find
