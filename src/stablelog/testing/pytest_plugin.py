"""The fixture `stablelog_broker`, for the tests of whoever installs stablelog.

One broker serves a whole test session: topics cost little and starting a process does not. A test that wants a
topic of its own takes a name of its own.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from stablelog.embedded import EmbeddedBroker


@pytest.fixture(scope="session")
def stablelog_broker() -> "Iterator[EmbeddedBroker]":
    """A running broker: its address is `stablelog_broker.bootstrap`."""
    import stablelog

    with stablelog.serve() as broker:
        yield broker
