"""librdkafka, through confluent-kafka, for the commands `produce` and `consume`."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException

from stablelog.cli.broker import NoBrokerError
from stablelog.cli.login import librdkafka_settings
from stablelog.cli.output import fail

TIMEOUT_S = 10.0  # how long a broker that was reached may take to respond


def quiet(bootstrap: str, **settings: Any) -> dict[str, Any]:
    """Return settings of confluent-kafka for a client that logs nothing on stderr."""
    return {
        "bootstrap.servers": bootstrap,
        "log_level": 0,
        "error_cb": lambda _error: None,
        **librdkafka_settings(),
        **settings,
    }


def ask(bootstrap: str, call: Callable[[], Any], what: str, messages: Mapping[int, str] | None = None) -> Any:
    """Call a function of confluent-kafka, and convert its failure to an error whose message is one line.

    Args:
        bootstrap: the broker's address.
        call: returns the result or a future of it.
        what: names the work in the error message.
        messages: the messages for some of Kafka's error codes; for other codes, the message has the text of
            confluent-kafka.

    Raises:
        UnavailableError: the call failed; the message says why. NoBrokerError: no broker responds.
    """
    try:
        result = call()
        return result.result(TIMEOUT_S) if isinstance(result, Future) else result
    except KafkaException as error:
        kafka_error = error.args[0]
        if kafka_error.name() in ("_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN"):
            raise NoBrokerError(f"{what}: no broker responds at {bootstrap}") from None
        if messages is not None and kafka_error.code() in messages:
            fail(messages[kafka_error.code()])
        fail(f"{what}: {kafka_error.str().removeprefix('Broker: ')}")
    except TimeoutError:
        fail(f"{what}: {bootstrap} did not respond within {TIMEOUT_S:g} s")


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt in place of the SystemError that Python raises after Ctrl-C during a call of
    librdkafka.
    """
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
