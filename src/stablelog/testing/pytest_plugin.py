"""The pytest plugin of stablelog, for the tests of its users: a broker, fresh topics, and faults on request.

    stablelog_broker   the broker of the test session, without faults
    stablelog_faults   a broker whose requests a test can delay, drop, duplicate or fail
    stablelog_topic    creates a topic with a fresh name

One broker of each kind serves a whole test session, because starting a process costs much more than creating a topic.
The setting `stablelog_settings` of pytest's configuration gives settings to both brokers; the marker `stablelog` of a
test gives settings to the broker of `stablelog_faults` for this test.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from stablelog.embedded import EmbeddedBroker
    from stablelog.testing.faulty_broker import FaultyBroker


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the setting `stablelog_settings` of pytest's configuration, which has settings of the brokers of the
    tests.
    """
    parser.addini(
        "stablelog_settings", "settings of the brokers of the tests: name=value, one a line", "linelist"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker `stablelog`, by which a test chooses settings of the broker of its fixture
    `stablelog_faults`.
    """
    config.addinivalue_line(
        "markers",
        "stablelog(**settings): settings of the broker of the fixture stablelog_faults in this test",
    )


def _settings(config: pytest.Config) -> dict[str, object]:
    settings: dict[str, object] = {}
    for line in config.getini("stablelog_settings"):
        name, separator, value = line.partition("=")
        if not separator:
            raise pytest.UsageError(
                f"the setting `stablelog_settings` of pytest has the line {line!r}: write name=value"
            )
        settings[name.strip()] = value.strip()
    return settings


@pytest.fixture(scope="session")
def stablelog_broker(pytestconfig: pytest.Config) -> "Iterator[EmbeddedBroker]":
    """A running broker: its address is `stablelog_broker.bootstrap`."""
    import stablelog

    with stablelog.serve(settings=_settings(pytestconfig)) as broker:
        yield broker


class _FaultyBrokers:
    """The broker with faults that the last test has used. The next test uses it too if it asks for the same settings;
    otherwise the broker is closed and another one started.
    """

    def __init__(self) -> None:
        self._settings: dict[str, object] = {}
        self._broker: FaultyBroker | None = None

    def get(self, settings: Mapping[str, object]) -> "FaultyBroker":
        from stablelog.testing.faulty_broker import FaultyBroker

        if self._broker is not None and settings == self._settings:
            self._broker.reset()
            return self._broker
        self.close()
        broker = FaultyBroker(settings=settings)
        broker.start()
        self._broker, self._settings = broker, dict(settings)
        return broker

    def close(self) -> None:
        if self._broker is not None:
            self._broker.close()
            self._broker = None


@pytest.fixture(scope="session")
def _stablelog_faulty_brokers() -> Iterator[_FaultyBrokers]:
    brokers = _FaultyBrokers()
    yield brokers
    brokers.close()


@pytest.fixture
def stablelog_faults(
    request: pytest.FixtureRequest, _stablelog_faulty_brokers: _FaultyBrokers
) -> "Iterator[FaultyBroker]":
    """A running broker at `stablelog_faults.bootstrap`, whose next requests a test can delay, drop, duplicate or fail
    with `stablelog_faults.faults`. A test can kill and start it. The marker `stablelog` has settings of the broker.

    Tests with equal settings share the broker. Before each test all faults are cancelled, and the broker runs.
    """
    from stablelog.broker.settings.table import SETTINGS

    names = {setting.name.replace(".", "_"): setting.name for setting in SETTINGS}
    settings = _settings(request.config)
    for marker in reversed(list(request.node.iter_markers("stablelog"))):
        if marker.args:
            raise pytest.UsageError("the marker stablelog has only keyword arguments: num_partitions=4")
        settings |= {names.get(name, name): value for name, value in marker.kwargs.items()}
    broker = _stablelog_faulty_brokers.get(settings)
    yield broker
    broker.faults.clear()


@pytest.fixture
def stablelog_topic(request: pytest.FixtureRequest) -> Callable[..., str]:
    """A function that creates a topic with a fresh name and returns the name.

    The topic is on the broker of `stablelog_faults` if the test uses that fixture, and otherwise on `stablelog_broker`.

    The arguments of the function are all optional:

    - `name`: the beginning of the topic's name.
    - `partitions`: the number of partitions.
    - `settings`: settings of the topic as keyword arguments, with `_` for each `.`: `cleanup_policy="compact"`.

    The function raises RefusedError if the broker refuses the topic.
    """
    from stablelog.broker.settings.table import TOPIC_SETTINGS
    from stablelog.testing.topics import create_topic, fresh_name

    is_faulty = "stablelog_faults" in request.fixturenames
    broker: Any = request.getfixturevalue("stablelog_faults" if is_faulty else "stablelog_broker")
    names = {name.replace(".", "_"): name for name in TOPIC_SETTINGS}

    def create(name: str = "topic", *, partitions: int = 1, **settings: object) -> str:
        fresh = fresh_name(name)
        given = {names.get(key, key): value for key, value in settings.items()}
        create_topic(broker.bootstrap, fresh, partitions, given)
        return fresh

    return create
