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
    offsets = {("tä", 7): 2**40, ("u", 0): 5, ("tä", 1): 6}
    body = encode_fetch_request(version, offsets, 1 << 20, 1, wait_ms=500)
    request, size = entity_reader(message_class(ApiKey.FETCH, version, "request"))(body, 0)
    assert size == len(body)
    asked = {(topic.topic, one.partition): one for topic in request.topics for one in topic.partitions}
    assert {target: one.fetch_offset for target, one in asked.items()} == offsets
    assert [topic.topic for topic in request.topics] == ["tä", "u"]
    assert {one.partition_max_bytes for one in asked.values()} == {1 << 20}
    assert (request.max_bytes, request.min_bytes) == (1 << 20, 1)
    assert (request.isolation_level, request.max_wait.total_seconds()) == (1, 0.5)
    if version >= 7:
        assert (request.session_id, request.session_epoch, request.forgotten_topics_data) == (0, -1, ())
    if version >= 9:
        assert {one.current_leader_epoch for one in asked.values()} == {-1}


answers = st.builds(
    FetchedPartition,
    st.integers(0, 2**31 - 1),
    st.sampled_from([ErrorCode.none, ErrorCode.offset_out_of_range]),
    *[st.integers(-1, 2**62)] * 3,
    st.none() | st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)), max_size=3),
    st.lists(st.binary(max_size=50), max_size=3),
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("version", FETCH_VERSIONS[::-1])
@given(
    st.dictionaries(names, st.lists(answers, max_size=3, unique_by=lambda one: one.index), max_size=3),
    st.sampled_from([ErrorCode.none, ErrorCode.fetch_session_id_not_found]),
)
def test_a_client_reads_what_a_broker_answers(version, written, error):
    topics = [FetchedTopic(name, None, partitions) for name, partitions in written.items()]
    parts = encode_fetch_response(version, 9, error, 5, topics, throttle_ms=7)
    body = b"".join(parts)[len(response_header(ApiKey.FETCH, version, 9)) :]
    response = read_fetch_response(version, memoryview(body))
    assert response.error is (error if version >= 7 else ErrorCode.none)
    expected = {(name, one.index): one for name, partitions in written.items() for one in partitions}
    assert response.partitions.keys() == expected.keys()
    assert response.throttle_ms == 7
    for target, answer in expected.items():
        fetched = response.partitions[target]
        assert bytes(fetched.records) == b"".join(answer.records)
        assert fetched.aborted == (answer.aborted or [])
        assert fetched.high_watermark == answer.high_watermark
        assert fetched.last_stable_offset == answer.last_stable_offset
        assert fetched.start_offset == (answer.log_start_offset if version >= 5 else -1)
        assert fetched.error is answer.error
    tags_size = 1 if version >= 12 else 0  # behind everything
    for end in range(len(body) - tags_size):
        with pytest.raises((ValueError, struct.error, IndexError)):
            read_fetch_response(version, memoryview(body)[:end])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("version", range(12, 2, -1))
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
