"""What ranks on other hosts tell the driver: hvd_keras.runner.driver."""

import threading

import pytest

from hvd_keras.runner import driver as module
from hvd_keras.runner.driver import Driver

CAUSE = "rank 0 of 2 has failed:\n\nTraceback (most recent call last):\nKeyError: 'x'"
CONSEQUENCE = "rank 1 of 2 has failed:\n\nTraceback (most recent call last):\nAbortedError: rank 0"


@pytest.fixture
def driver():
    with Driver(["127.0.0.1"], print, "127.0.0.1") as driver:
        yield driver


def start_waiting(link):
    link.failed(CONSEQUENCE, 1)
    waiting = threading.Thread(target=link.wait_for_cause, daemon=True)
    waiting.start()
    return waiting


def test_a_consequence_waits_for_its_cause(driver):
    with driver.address.connected(0) as first, driver.address.connected(1) as second:
        waiting = start_waiting(second)
        waiting.join(0.3)
        assert waiting.is_alive()
        first.failed(CAUSE, 1)
        first.wait_for_cause()
        waiting.join(5)
        assert not waiting.is_alive()
    failure = driver.first_failure()
    assert (failure.rank, str(failure), failure.exit_code) == (0, CAUSE, 1)


def test_it_does_not_wait_for_ever(driver, monkeypatch):
    monkeypatch.setattr(module, "_CAUSE_SECONDS", 0.1)
    with driver.address.connected(1) as link:
        waiting = start_waiting(link)
        waiting.join(5)
        assert not waiting.is_alive()
    assert driver.first_failure().rank == 1
