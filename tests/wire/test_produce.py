"""The hand-read Produce request and its hand-written answer are what kio makes of the same bytes."""

import importlib
import io
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from stablelog.errors import RefusedError
from stablelog.wire.messages import (
    PREFIX,
    decode_request,
    has_many_topics,
    message_class,
    produce_in_steps,
)
from stablelog.wire.produce import (
    ITEMS_MAX,
    STEP_COUNT,
    PartitionProduceData,
    ProducedPartition,
    ProducedTopic,
    TopicProduceData,
    encode_produce_response,
)
from tests.declared_apis import APIS

VERSIONS = range(3, 13)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=150)
partitions = st.lists(
    st.tuples(st.integers(-(2**31), 2**31 - 1), st.none() | st.binary(max_size=200)), max_size=3
)
topics = st.lists(st.tuples(names, partitions), max_size=3)


def frame_of(version, transactional_id, acks, asked):
    message = message_class(0, version, "request")
    module = importlib.import_module(message.__module__)
    request = message(
        transactional_id=transactional_id,
        acks=acks,
        timeout=timedelta(seconds=30),
        topic_data=tuple(
            module.TopicProduceData(
                name=name,
                partition_data=tuple(module.PartitionProduceData(index=i, records=r) for i, r in records),
            )
            for name, records in asked
        ),
    )
    body = io.BytesIO()
    entity_writer(message)(body, request)
    return PREFIX.pack(0, version, 7) + b"\0\2me" + (b"\0" if message.__flexible__ else b"") + body.getvalue()


@settings(deadline=None)
@given(st.sampled_from(VERSIONS), st.none() | names, st.integers(-1, 1), topics)
def test_what_kio_writes_is_read(version, transactional_id, acks, asked):
    client_id, request = decode_request(APIS[0], version, frame_of(version, transactional_id, acks, asked))
    assert client_id == "me"
    assert (request.transactional_id, request.acks) == (transactional_id, acks)
    assert request.topics == [
        TopicProduceData(name, [PartitionProduceData(index, records) for index, records in parts])
        for name, parts in asked
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_batches_are_not_copied(version):
    frame = frame_of(version, None, -1, [("t", [(0, b"batch")])])
    _, request = decode_request(APIS[0], version, frame)
    records = request.topics[0].partitions[0].records
    assert records.obj is frame
    assert records == b"batch"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_that_is_cut_anywhere_is_refused(version):
    whole = frame_of(version, "a", -1, [("t", [(0, b"batch")])])
    for size in range(PREFIX.size, len(whole)):
        with pytest.raises(RefusedError):
            decode_request(APIS[0], version, whole[:size])
    decode_request(APIS[0], version, whole)


@pytest.mark.parametrize(("version", "lie"), [(8, b"\x7f\xff\xff\xff"), (9, b"\xff\xff\xff\xff\x07")])
def test_counts_and_sizes_that_cannot_be_true_are_refused(version, lie):
    frame = frame_of(version, None, -1, [("t", [(0, b"batch")])])
    at = frame.index(b"batch")
    with pytest.raises(RefusedError, match="are announced"):
        decode_request(APIS[0], version, frame[: at - 1 if version > 8 else at - 4] + lie + frame[at:])


def test_more_topics_and_partitions_than_a_client_needs_are_refused():
    def asked(count):
        return frame_of(9, None, -1, [("t", [(index, None) for index in range(count - 1)])])

    assert len(decode_request(APIS[0], 9, asked(ITEMS_MAX))[1].topics[0].partitions) == ITEMS_MAX - 1
    with pytest.raises(RefusedError, match="items"):
        decode_request(APIS[0], 9, asked(ITEMS_MAX + 1))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("count", [STEP_COUNT, STEP_COUNT + 1, 2 * STEP_COUNT + 5])
def test_many_topics_are_decoded_in_steps_with_the_same_result(version, count):
    frame = frame_of(version, "id", 1, [(f"t-{number}", [(number, b"batch")]) for number in range(count)])
    found = []

    def decode():
        found.append((yield from produce_in_steps(version, frame)))

    assert len(list(decode())) == (count - 1) // STEP_COUNT
    assert found == [decode_request(APIS[0], version, frame)]
    assert has_many_topics(version, frame) is (count > STEP_COUNT)
    with pytest.raises(RefusedError, match="not a produce request"):
        list(produce_in_steps(version, frame[:-4]))


def test_tagged_fields_that_nobody_knows_are_passed_over():
    frame = frame_of(9, None, -1, [("t", [(0, b"batch")])])
    assert frame.endswith(b"batch\0\0\0")
    _, request = decode_request(APIS[0], 9, frame[:-3] + b"\1\5\2hi" + b"\0\0")
    assert request.topics[0].partitions[0].records == b"batch"


@settings(deadline=None)
@given(
    st.sampled_from(VERSIONS),
    st.lists(
        st.builds(
            ProducedPartition,
            st.integers(0, 2**31 - 1),
            st.sampled_from([ErrorCode.none, ErrorCode.corrupt_message]),
            st.integers(-1, 2**63 - 1),
            st.just(-1) | st.integers(0, 2**40),
            st.integers(-1, 2**63 - 1),
            st.none() | names,
        ),
        max_size=3,
    ),
)
def test_what_is_answered_is_what_kio_reads(version, produced):
    data = b"".join(encode_produce_response(version, 7, [ProducedTopic("t", produced)]))
    message = message_class(0, version, "response")
    at = 5 if message.__flexible__ else 4
    assert data[:at] == bytes([0, 0, 0, 7, 0])[:at]
    answer, size = entity_reader(message)(data, at)
    assert at + size == len(data)
    (topic,) = answer.responses
    assert topic.name == "t"
    for read, given_ in zip(topic.partition_responses, produced, strict=True):
        assert (read.index, read.error_code, read.base_offset) == (
            given_.index,
            given_.error,
            given_.base_offset,
        )
        time = (
            None
            if given_.append_time_ms < 0
            else datetime.fromtimestamp(given_.append_time_ms // 1000, UTC)
            + timedelta(milliseconds=given_.append_time_ms % 1000)
        )
        assert read.log_append_time == time
        if version >= 5:
            assert read.log_start_offset == given_.log_start_offset
        if version >= 8:
            assert read.error_message == given_.message
            assert read.record_errors == ()


def test_a_version_is_told_of_errors_that_it_knows():
    for version, code in ((10, ErrorCode.invalid_txn_state), (11, ErrorCode.transaction_abortable)):
        refused = ProducedPartition(0, ErrorCode.transaction_abortable)
        data = b"".join(encode_produce_response(version, 7, [ProducedTopic("t", [refused])]))
        answer, _ = entity_reader(message_class(0, version, "response"))(data, 5)
        assert answer.responses[0].partition_responses[0].error_code is code
