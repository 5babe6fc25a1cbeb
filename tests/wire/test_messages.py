import dataclasses
import importlib
import io
import random
import struct
import tracemalloc
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from stablelog.errors import StablelogError
from stablelog.wire.api import ApiKey
from stablelog.wire.fetch import FetchedPartition, FetchedTopic, FetchRequest, encode_fetch_response
from stablelog.wire.messages import PREFIX, decode_request, encode_response, message_class
from stablelog.wire.produce import ProduceRequest
from stablelog.wire.versions import implicit_default
from tests.declared_apis import APIS

EVERY = [(key, version) for key, api in APIS.items() for version in api.served_versions]
SINGLE_SHAPES = {
    9: 8,
    10: 4,
    24: 4,
}  # before these versions an answer holds one of what the newest has many of


def blank(message):
    return message(
        **{
            f.name: implicit_default(f.type)
            for f in dataclasses.fields(message)
            if f.default is dataclasses.MISSING
        }
    )


def frame(key, version, request=None):
    message = message_class(key, version, "request")
    body = io.BytesIO()
    entity_writer(message)(body, request or blank(message))
    header = PREFIX.pack(key, version, 7) + b"\0\2me" + (b"\0" if message.__flexible__ else b"")
    return header + body.getvalue()


@pytest.mark.parametrize(("key", "version"), EVERY, ids=str)
def test_every_version_of_every_request_is_read(key, version):
    client_id, request = decode_request(APIS[key], version, frame(key, version))
    assert client_id == "me"
    by_hand = {0: ProduceRequest, 1: FetchRequest}
    assert isinstance(request, by_hand.get(key) or message_class(key, APIS[key].last_version, "request"))


@pytest.mark.parametrize(("key", "version"), EVERY, ids=str)
def test_every_version_of_every_response_is_written(key, version):
    if version < SINGLE_SHAPES.get(key, 0):
        pytest.skip("its answer is made of one of several; see the clients' tests")
    parts = encode_response(
        APIS[key], version, 7, blank(message_class(key, APIS[key].last_version, "response"))
    )
    message = message_class(key, version, "response")
    data = b"".join(parts)
    assert struct.unpack_from(">i", data)[0] == 7
    header_size = 5 if message.__flexible__ and key != 18 else 4
    _, size = entity_reader(message)(data, header_size)
    assert header_size + size == len(data)


def test_an_old_client_is_told_the_old_error():
    newest = message_class(26, 5, "response")
    answer = dataclasses.replace(blank(newest), error_code=ErrorCode.producer_fenced)
    for version, code in ((1, ErrorCode.invalid_producer_epoch), (2, ErrorCode.producer_fenced)):
        data = b"".join(encode_response(APIS[26], version, 7, answer))
        message = message_class(26, version, "response")
        assert entity_reader(message)(data, 4)[0].error_code is code


@pytest.mark.extended
@pytest.mark.parametrize("version", range(4, 18))
@pytest.mark.parametrize("aborted", [None, [], [(5, 10), (6, 11)]])
def test_the_hand_written_fetch_response_is_what_kio_reads(version, aborted):
    import uuid

    topic_id = uuid.uuid4()
    pieces = [memoryview(b"first"), memoryview(b"second")]
    partitions = [
        FetchedPartition(0, ErrorCode.none, 9, 8, 1, aborted, pieces),
        FetchedPartition(3, ErrorCode.offset_out_of_range),
    ]
    parts = encode_fetch_response(version, 7, ErrorCode.none, 42, [FetchedTopic("t", topic_id, partitions)])
    assert pieces[0] in [part for part in parts if isinstance(part, memoryview)], "records are not copied"
    data = b"".join(parts)
    message = message_class(1, version, "response")
    header_size = 5 if message.__flexible__ else 4
    read, size = entity_reader(message)(data, header_size)
    assert header_size + size == len(data)
    topic = read.responses[0]
    assert (topic.topic_id if version >= 13 else topic.topic) == (topic_id if version >= 13 else "t")
    first, second = topic.partitions
    assert first.records == b"firstsecond"
    assert first.high_watermark == 9
    assert second.error_code is ErrorCode.offset_out_of_range
    found = first.aborted_transactions
    assert (None if found is None else [(t.producer_id, t.first_offset) for t in found]) == aborted


@pytest.mark.sampled(8)
@pytest.mark.parametrize("key", sorted(APIS), ids=lambda key: ApiKey(key).snake_name)
def test_garbage_is_refused_and_costs_no_memory(key):
    """Lengths and counts that lie, bytes that changed, frames that are cut: a clean error or a request, nothing else."""
    chance = random.Random(key)
    tracemalloc.start()
    for _ in range(300):
        version = chance.choice(APIS[key].served_versions)
        data = bytearray(frame(key, version))
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(8, len(data) + 1)
            data[at : at + chance.choice((0, 1, 4))] = chance.choice(
                (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\xff\xff", bytes([chance.randrange(256)]))
            )
        try:
            decode_request(APIS[key], version, bytes(data[: chance.randint(8, len(data))]))
        except StablelogError:
            continue
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()


def test_an_answer_that_is_given_again_is_the_same_but_for_its_number():
    newest = message_class(26, 5, "response")
    answers = [
        dataclasses.replace(blank(newest), error_code=code)
        for code in (ErrorCode.none, ErrorCode.producer_fenced)
    ]
    for version in (1, 3, 5):
        first = [encode_response(APIS[26], version, 7, answer) for answer in answers]
        again = [encode_response(APIS[26], version, 8, dataclasses.replace(answer)) for answer in answers]
        assert [body for _, body in first] == [body for _, body in again]
        assert first[0][1] != first[1][1]
        assert first[0][0] != again[0][0]


def test_of_answers_given_again_few_and_small_ones_are_remembered():
    from stablelog.wire import messages

    newest = message_class(26, 5, "response")
    for number in range(2 * messages.REPEATED_COUNT_MAX):
        encode_response(APIS[26], 5, 7, dataclasses.replace(blank(newest), producer_id=number))
    assert len(messages.repeated) <= messages.REPEATED_COUNT_MAX
    result = importlib.import_module(newest.__module__.replace("end_txn", "txn_offset_commit"))
    topic = result.TxnOffsetCommitResponseTopic(name="t" * 249, partitions=())
    many = result.TxnOffsetCommitResponse(throttle_time=timedelta(0), topics=(topic,) * 3)
    encode_response(APIS[28], 5, 7, many)
    assert (28, 5, many) not in messages.repeated


def test_a_small_request_that_comes_again_is_decoded_once():
    newest = message_class(26, 1, "request")
    asked = dataclasses.replace(blank(newest), transactional_id="x", producer_id=5, committed=True)
    first = decode_request(APIS[26], 1, frame(26, 1, asked))
    assert decode_request(APIS[26], 1, memoryview(frame(26, 1, asked)))[1] is first[1]
    other = decode_request(APIS[26], 1, frame(26, 1, dataclasses.replace(asked, committed=False)))
    assert (other[1].transactional_id, other[1].committed) == ("x", False)
    assert decode_request(APIS[26], 2, frame(26, 2, asked_in(26, 2, asked)))[1] is not first[1]
    long = dataclasses.replace(asked, transactional_id="x" * 600)
    assert (
        decode_request(APIS[26], 1, frame(26, 1, long))[1]
        is not decode_request(APIS[26], 1, frame(26, 1, long))[1]
    )


def asked_in(key, version, request):
    """The request in another version with the same fields."""
    return message_class(key, version, "request")(**dataclasses.asdict(request))
