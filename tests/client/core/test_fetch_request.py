"""Fetch requests of the client, which name topics: what is sent, and what is read of the response."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.fetch_request import TOPIC_NAMES_MAX, receive_fetch, send_fetch
from stablelog.errors import UnavailableError
from stablelog.wire.api import ApiKey
from stablelog.wire.fetch import FetchedPartition, FetchedTopic, decode_fetch_request, encode_fetch_response
from tests.client.core.byte_script import drive, negotiated

TARGET = "t", 2
HEADER_SIZE = 8 + 2 + len("stablelog")


def responses(version, *, throttle_ms=0, code=ErrorCode.none):
    partition = FetchedPartition(
        2, high_watermark=9, last_stable_offset=8, log_start_offset=1, aborted=(), records=[b"records"]
    )
    topics = [FetchedTopic("t", None, [partition])]
    return b"".join(encode_fetch_response(version, 1, code, 0, topics, throttle_ms=throttle_ms))[4:]


def sent(version, isolation="read_committed"):
    """The request as the broker decodes it."""
    connection = negotiated({ApiKey.FETCH: (0, version)})
    drive(send_fetch(connection, {TARGET: 5}, 1000, isolation, 70), connection)
    frame = connection.sent[0]
    flexible = version >= 12
    return decode_fetch_request(min(version, TOPIC_NAMES_MAX), frame[4:], HEADER_SIZE + flexible)


@pytest.mark.parametrize("version", [4, 11, TOPIC_NAMES_MAX])
def test_a_request_has_the_offsets_and_the_limits_of_the_caller(version):
    request = sent(version)
    (topic,) = request.topics
    (partition,) = topic.partitions
    assert (topic.name, partition.partition, partition.fetch_offset) == ("t", 2, 5)
    assert (request.wait_ms_max, request.size_max, request.size_min) == (70, 1000, 1)


def test_the_last_version_with_names_of_topics_is_used_though_the_broker_has_later_ones():
    assert sent(16).topics[0].name == "t"


@pytest.mark.parametrize(
    ("isolation", "is_committed"), [("read_uncommitted", False), ("read_committed", True)]
)
def test_the_isolation_is_that_of_the_caller(isolation, is_committed):
    assert sent(12, isolation).is_committed is is_committed


@pytest.mark.parametrize("version", [4, 11, TOPIC_NAMES_MAX])
def test_a_response_is_read_by_partition(version):
    connection = negotiated({ApiKey.FETCH: (0, version)}, [responses(version)])
    drive(send_fetch(connection, {TARGET: 5}, 1000, "read_committed", 0), connection)
    found = drive(receive_fetch(connection), connection)
    fetched = found.partitions[TARGET]
    assert (bytes(fetched.records), fetched.high_watermark, fetched.last_stable_offset) == (b"records", 9, 8)


def test_the_next_request_waits_for_the_throttle_time():
    connection = negotiated({ApiKey.FETCH: (0, 12)}, [responses(12, throttle_ms=3000)])
    drive(send_fetch(connection, {TARGET: 5}, 1000, "read_committed", 0), connection)
    drive(receive_fetch(connection), connection)
    drive(send_fetch(connection, {TARGET: 5}, 1000, "read_committed", 0), connection)
    assert connection.pauses == [3.0]


def test_a_response_that_cannot_be_decoded_closes_the_connection():
    connection = negotiated({ApiKey.FETCH: (0, 12)}, [responses(12)[:-4]])
    drive(send_fetch(connection, {TARGET: 5}, 1000, "read_committed", 0), connection)
    with pytest.raises(UnavailableError, match="h:1 sent an invalid response to fetch: "):
        drive(receive_fetch(connection), connection)
    assert connection.is_closed
