"""Requests to a broker through confluent-kafka, for several commands."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, ResourceType

from stablelog.cli.broker import NoBrokerError, connect
from stablelog.cli.login import librdkafka_settings
from stablelog.cli.output import fail
from stablelog.errors import did_you_mean

TOPIC_RESOURCE = 2  # Kafka's number for the settings of a topic
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


def administer(
    bootstrap: str,
    call: Callable[[AdminClient], Any],
    what: str,
    messages: Mapping[int, str] | None = None,
) -> Any:
    """Call a function of confluent-kafka's AdminClient with a new client, and return its result. A failure becomes an
    UnavailableError.
    """
    return ask(bootstrap, partial(call, AdminClient(quiet(bootstrap))), what, messages)


def cluster(bootstrap: str) -> Any:
    """Return the metadata of the broker's cluster: brokers, topics and partitions."""
    return administer(bootstrap, lambda admin: admin.list_topics(timeout=TIMEOUT_S), "listing topics")


def known_topic(bootstrap: str, name: str) -> Any:
    """Return a topic's metadata.

    Raises:
        UnavailableError: the topic does not exist, and the message suggests topics with similar names; or the user of
            the command has no right to it.
    """
    topics = cluster(bootstrap).topics
    if name not in topics:
        check_right(bootstrap, name)
        fail(f"there is no topic {name!r}{did_you_mean(name, topics, count_max=3)}")
    return topics[name]


def check_right(bootstrap: str, topic: str) -> None:
    """Fail if a topic is not listed because the user of the command has no right to it. As in Kafka, this is so whether the
    topic exists or not.
    """
    from kio.schema.errors import ErrorCode

    from stablelog.client.topics import metadata_request

    with connect(bootstrap) as connection:
        found = connection.ask(metadata_request((topic,))).topics
    if any(one.error_code is ErrorCode.topic_authorization_failed for one in found):
        fail(f"this user is not authorized to DESCRIBE the topic {topic!r}: ask for an ACL")


def chosen_partitions(bootstrap: str, topic: str, partitions: Iterable[int] | None) -> list[int]:
    """Return these partitions of a topic, or all of them if none are given.

    Raises:
        UnavailableError: the topic or a partition does not exist.
    """
    known = sorted(known_topic(bootstrap, topic).partitions)
    chosen = sorted(set(partitions or known))
    for index in chosen:
        if index not in known:
            fail(f"{topic} has no partition {index}, only 0 to {len(known) - 1}")
    return chosen


def configs_of(bootstrap: str, kind: ResourceType, name: str, what: str) -> dict[str, ConfigEntry]:
    """Return the settings of a topic or of a broker by name."""
    resource = ConfigResource(kind, name)
    found: dict[str, ConfigEntry] = administer(
        bootstrap, lambda admin: admin.describe_configs([resource])[resource], what
    )
    return found


def group_of_topic(bootstrap: str, topic: str) -> str | None:
    """Return the transaction group of a topic that exists; empty for the default group, None if the user of the command
    may not describe the topic's settings, which no other command of a producer needs.

    Raises:
        RefusedError: the broker refuses the request for another reason.
    """
    from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
    from kio.schema.errors import ErrorCode

    from stablelog.client.responses import check

    asked = DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=("stablelog.group",)
    )
    with connect(bootstrap) as connection:
        (found,) = connection.ask(DescribeConfigsRequest(resources=(asked,))).results
    if found.error_code is ErrorCode.topic_authorization_failed:
        return None
    check(found.error_code, f"settings of {topic}")
    return next((setting.value or "" for setting in found.configs), "")


def end_offsets(
    bootstrap: str, partitions: list[tuple[str, int]], isolation: str
) -> dict[tuple[str, int], tuple[int, int]]:
    """Return (first offset, end offset) of each partition for readers with this isolation level."""
    consumer = Consumer(quiet(bootstrap, **{"group.id": "stablelog-cli", "isolation.level": isolation}))
    try:
        found = {}
        for topic, index in partitions:
            call = partial(consumer.get_watermark_offsets, TopicPartition(topic, index), timeout=TIMEOUT_S)
            found[topic, index] = ask(bootstrap, call, f"offsets of {topic}-{index}")
        return found
    finally:
        consumer.close()


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
