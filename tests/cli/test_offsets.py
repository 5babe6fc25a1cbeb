"""Offsets as users name them."""

import time

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from stablelog.cli.offsets import OFFSET_MAX, OffsetSpec, find_offsets, parse_offset
from stablelog.errors import UnavailableError
from tests.cli.test_cli import opened
from tests.clients.drivers import unique


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("earliest", ("earliest", 0)),
        ("beginning", ("earliest", 0)),
        ("latest", ("latest", 0)),
        ("end", ("latest", 0)),
        ("0", ("offset", 0)),
        (str(OFFSET_MAX), ("offset", OFFSET_MAX)),
        ("-7", ("before_end", 7)),
        ("@1700000000000", ("time", 1_700_000_000_000)),
        ("@2026-01-31T12:00:00.5Z", ("time", 1_769_860_800_500)),
        ("@2026-01-31T13:00:00+01:00", ("time", 1_769_860_800_000)),
        ("@2026-01-31T12:00:00", ("time", 1_769_860_800_000)),
        ("@2026-01-31", ("time", 1_769_817_600_000)),
    ],
)
def test_an_offset_is_parsed_the_same_in_each_time_zone(monkeypatch, text, spec):
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        found = parse_offset(text, "--offset")
    time.tzset()
    assert found == OffsetSpec(*spec)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *((text, "earliest") for text in ("", "5x", "--5", "+5", "²", str(OFFSET_MAX + 1), "stored")),
        *((text, "a time is") for text in ("@", "@-1", "@tomorrow", "@999999999999999", "@2026-13-01")),
        ("@1960-01-01", "before 1970"),
    ],
)
def test_an_offset_that_is_not_valid_is_refused(text, why):
    with pytest.raises(UnavailableError, match=f"--offset {text.replace('+', '.')} is not valid: .*{why}"):
        parse_offset(text, "--offset")


@pytest.fixture
def topic(stablelog_broker):
    """Ten records with the timestamps 1000, 1010, ..., of which the first three are deleted; then an open transaction."""
    at, name = stablelog_broker.bootstrap, unique("offsets")
    admin = AdminClient({"bootstrap.servers": at, "log_level": 0})
    configs = {"retention.ms": "-1", "message.timestamp.before.max.ms": str(OFFSET_MAX)}
    admin.create_topics([NewTopic(name, 2, 1, config=configs)])[name].result(60)
    producer = Producer({"bootstrap.servers": at, "log_level": 0})
    for number in range(10):
        producer.produce(name, b"x", partition=0, timestamp=1000 + 10 * number)
    assert producer.flush(60) == 0
    for future in admin.delete_records([TopicPartition(name, 0, 3)]).values():
        future.result(60)
    held = opened(at, unique("holder"), name, partition=0)
    yield name
    held.abort_transaction(60)


def test_offsets_are_found_between_the_beginning_and_the_end(stablelog_broker, topic):
    admin = stablelog.connect(stablelog_broker.bootstrap).admin

    def found(text, isolation="read_committed"):
        spec = parse_offset(text, "--offset")
        return find_offsets(admin, spec, [(topic, 0)], isolation)[topic, 0]

    assert found("earliest") == (3, 3, 10)
    assert found("latest") == (10, 3, 10)
    assert found("latest", "read_uncommitted") == (11, 3, 11)
    assert [found(text).offset for text in ("0", "5", "99", "-2", "-99")] == [3, 5, 10, 8, 3]
    assert [found(text).offset for text in ("@0", "@1049", "@1050", "@99999999999999")] == [3, 5, 5, 10]
    spec = parse_offset("-1", "--offset")
    both = find_offsets(admin, spec, [(topic, 0), (topic, 1)], "read_committed")
    assert both == {(topic, 0): (9, 3, 10), (topic, 1): (0, 0, 0)}
