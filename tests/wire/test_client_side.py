"""The hand-written messages as a client writes and reads them, against kio and against the broker's side."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from stablelog.wire.api import ApiKey
from stablelog.wire.fetch import (
    FetchedPartition,
    FetchedTopic,
    encode_fetch_request,
    encode_fetch_response,
    read_fetch_response,
)
from stablelog.wire.messages import message_class, response_header
from stablelog.wire.produce import ACKS_ALL, decode_produce_request, encode_produce_request

FETCH_VERSIONS = range(4, 13)
names = st.text("añ-_.", min_size=1, max_size=20)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_kio_reads_the_request_of_a_fetch(version):
    body = encode_fetch_request(version, "tä", 7, 2**40, 1 << 20, 1, wait_ms=500)
    request, size = entity_reader(message_class(ApiKey.FETCH, version, "request"))(body, 0)
    assert size == len(body)
    (topic,) = request.topics
    (asked,) = topic.partitions
    assert (topic.topic, asked.partition, asked.fetch_offset) == ("tä", 7, 2**40)
    assert (asked.partition_max_bytes, request.max_bytes, request.min_bytes) == (1 << 20, 1 << 20, 1)
    assert (request.isolation_level, request.max_wait.total_seconds()) == (1, 0.5)
    if version >= 7:
        assert (request.session_id, request.session_epoch, request.forgotten_topics_data) == (0, -1, ())
    if version >= 9:
        assert asked.current_leader_epoch == -1


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@given(
    name=names,
    aborted=st.none() | st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)), max_size=3),
    records=st.lists(st.binary(max_size=50), max_size=3),
    offsets=st.tuples(*[st.integers(-1, 2**62)] * 3),
    error=st.sampled_from([ErrorCode.none, ErrorCode.offset_out_of_range]),
)
def test_a_client_reads_what_a_broker_answers(version, name, aborted, records, offsets, error):
    high_watermark, stable, start = offsets
    answer = FetchedPartition(3, error, high_watermark, stable, start, aborted, records)
    parts = encode_fetch_response(version, 9, ErrorCode.none, 5, [FetchedTopic(name, None, [answer])])
    body = b"".join(parts)[len(response_header(ApiKey.FETCH, version, 9)) :]
    fetched = read_fetch_response(version, memoryview(body))
    assert bytes(fetched.records) == b"".join(records)
    assert fetched.aborted == (aborted or [])
    assert (fetched.high_watermark, fetched.last_stable_offset) == (high_watermark, stable)
    assert fetched.start_offset == (start if version >= 5 else -1)
    assert fetched.error is error
    tags_size = 3 if version >= 12 else 0  # behind the records, of the partition, the topic and the whole
    for end in range(len(body) - tags_size - len(b"".join(records))):
        with pytest.raises((ValueError, struct.error)):
            read_fetch_response(version, memoryview(body)[:end])


def test_a_client_is_told_what_concerns_the_whole_request():
    body = b"".join(encode_fetch_response(12, 9, ErrorCode.fetch_session_id_not_found, 0, []))[5:]
    assert read_fetch_response(12, memoryview(body)).error is ErrorCode.fetch_session_id_not_found
    body = b"".join(encode_fetch_response(12, 9, ErrorCode.none, 0, []))[5:]
    assert read_fetch_response(12, memoryview(body)).error is ErrorCode.unknown_server_error


@pytest.mark.parametrize("version", range(3, 13))
@given(
    transactional_id=st.none() | names,
    batches=st.dictionaries(st.tuples(names, st.integers(0, 99)), st.binary(max_size=30), max_size=6),
)
def test_a_broker_reads_what_a_client_produces(version, transactional_id, batches):
    frame = b"".join(encode_produce_request(version, transactional_id, 1234, list(batches.items())))
    request = decode_produce_request(version, frame, 0)
    assert (request.transactional_id, request.acks) == (transactional_id, ACKS_ALL)
    assert {
        (topic.name, one.index): bytes(one.records) for topic in request.topics for one in topic.partitions
    } == batches
