"""The pytest fixture `stablelog_broker`, for the tests of stablelog's users.

One broker serves a whole test session, because starting a process costs much more than creating a topic. A test that
needs its own topic uses a unique name.
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
