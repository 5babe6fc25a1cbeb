"""Fixtures of tests of the broker."""

import pytest

from tests.broker.holding import collected_again, timed_steps


@pytest.fixture
def holds():
    """How long each callback of the loop took (`tests.broker.holding`)."""
    with collected_again(), timed_steps() as found:
        yield found
