"""`compression.type` of a topic: batches of another codec are recompressed, and nothing else of them changes."""

import asyncio
import threading
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

import stablelog
from stablelog.batch.header import CRC_START, HEADER, Codec, crc_holds, headers_in, read_header, write_crc
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.broker.apis import preparation
from stablelog.log.partition import Isolation
from tests.broker.desk import COMMIT, Desk, delete_topic, opened
from tests.clients.drivers import unique

NONE = ErrorCode.none
NOW_MS = 1_700_000_000_000
TYPES = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
CODECS = tuple(Codec)


def at_desk(conversation, **configs):
    async def work():
        async with opened(now_ms=NOW_MS) as desk:
            settings = {name.replace("_", "."): value for name, value in configs.items()}
            desk.broker.topic_files.create("here", 1, settings)
            await conversation(desk)

    asyncio.run(asyncio.wait_for(work(), 100))


def records(*values, timestamp_ms=NOW_MS):
    headers = (("h", b"x"), ("n", None))
    return [Record(0, timestamp_ms + at, b"k", value, headers) for at, value in enumerate(values)]


def stored(desk, topic="here"):
    """The batches of the log: (header, records)."""
    log = desk.broker.partitions.require(topic, 0)
    log.log.prove_segments()
    data = b"".join(log.read(log.start_offset, 1 << 30, Isolation.READ_UNCOMMITTED).buffers)
    found = []
    for at, header in headers_in(data):
        assert crc_holds(data, at, header)
        if not header.is_control:
            found.append((header, decode_records(data, at)))
    return found


def without_codec(header):
    """The fields of a header that recompression and the append leave as they are."""
    kept = header._replace(
        base_offset=0, batch_length=0, leader_epoch=0, crc=0, attributes=header.attributes & ~7
    )
    return tuple(kept)


@pytest.mark.parametrize("sent", CODECS)
@pytest.mark.parametrize("wanted", TYPES)
def test_a_batch_gets_the_codec_of_its_topic_and_keeps_everything_else(wanted, sent):
    async def conversation(desk):
        who = await desk.init("a")
        await desk.add("a", who, ("here", 0))
        identity = {"producer_id": who[0], "producer_epoch": who[1], "base_sequence": 0}
        batch = encode_batch(records(b"1", b"2" * 5000, None), codec=sent, transactional=True, **identity)
        answer = await desk.produce(batch, topic="here", transactional_id="a")
        assert (answer.error_code, answer.base_offset) == (NONE, 0)
        await desk.end("a", who, COMMIT)
        [(header, found)] = stored(desk)
        assert header.codec is (sent if TYPES[wanted] is None else TYPES[wanted])
        assert without_codec(header) == without_codec(read_header(batch))
        assert header.is_transactional
        assert found == decode_records(batch)
        if header.codec is sent:
            end = HEADER.size + header.batch_length + 12 - HEADER.size
            log = desk.broker.partitions.require("here", 0)
            data = b"".join(log.read(0, 1 << 30, Isolation.READ_UNCOMMITTED).buffers)
            assert data[CRC_START:end] == batch[CRC_START:]

    at_desk(conversation, compression_type=wanted)


def test_a_topic_with_the_brokers_time_gets_it_and_its_codec():
    async def conversation(desk):
        await desk.produce(encode_batch(records(b"1", b"2", timestamp_ms=5)), topic="here")
        [(header, found)] = stored(desk)
        assert (header.codec, header.is_log_append_time) == (Codec.GZIP, True)
        assert [record.timestamp_ms for record in found] == [NOW_MS] * 2

    at_desk(conversation, compression_type="gzip", message_timestamp_type="LogAppendTime")


def test_the_codec_of_the_broker_applies_to_topics_without_their_own():
    async def conversation():
        async with opened(compression_type="zstd") as desk:
            desk.broker.topic_files.create("own", 1, {"compression.type": "producer"})
            for topic, codec in (("t", Codec.ZSTD), ("own", Codec.NONE)):
                assert (await desk.produce(encode_batch(records(b"1")), topic=topic)).error_code is NONE
                [(header, _)] = stored(desk, topic)
                assert header.codec is codec

    asyncio.run(conversation())


def noted_work(monkeypatch, hold=None):
    """Note the thread of each recompression; the first ones wait until `hold` is set."""
    threads = []
    recompress = preparation.recompress

    def noted(*arguments):
        threads.append(threading.current_thread())
        assert hold is None or hold.wait(60)
        return recompress(*arguments)

    monkeypatch.setattr(preparation, "recompress", noted)
    return threads


async def begun(threads, count):
    """Wait until so many recompressions have begun."""
    while len(threads) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def test_batches_are_recompressed_in_a_thread_and_others_go_on(monkeypatch):
    hold = threading.Event()
    threads = noted_work(monkeypatch, hold)

    async def conversation(desk):
        held = asyncio.create_task(desk.produce(encode_batch(records(b"1")), topic="here"))
        await begun(threads, 1)
        other = Desk(desk.broker)
        assert (await other.produce(encode_batch(records(b"2")), topic="t")).base_offset == 0
        zipped = encode_batch(records(b"3"), codec=Codec.GZIP)
        assert (await other.produce(zipped, topic="here")).base_offset == 0, "it needs no work"
        assert not held.done()
        hold.set()
        assert (await held).base_offset == 1
        assert threading.main_thread() not in threads

    at_desk(conversation, compression_type="gzip")


def test_the_batches_of_a_connection_keep_their_order(monkeypatch):
    hold = threading.Event()
    noted_work(monkeypatch, hold)

    async def conversation(desk):
        one = {"producer_id": 5, "producer_epoch": 0}
        batches = [
            encode_batch(records(b"%d" % number), codec=CODECS[number % 5], base_sequence=number, **one)
            for number in range(10)
        ]
        tasks = [asyncio.create_task(desk.produce(batch, topic="here")) for batch in batches]
        await asyncio.sleep(0.01)
        hold.set()
        assert [(await task).base_offset for task in tasks] == list(range(10))
        assert [found[0].value for _, found in stored(desk)] == [b"%d" % number for number in range(10)]

    at_desk(conversation, compression_type="gzip")


@pytest.mark.parametrize("sequence", [0, 7], ids=["duplicate", "gap"])
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_batch_with_a_wrong_sequence_is_not_recompressed(monkeypatch, sequence, policy):
    async def conversation(desk):
        one = {"producer_id": 5, "producer_epoch": 0}
        first = encode_batch(records(b"1"), base_sequence=0, **one)
        assert (await desk.produce(first, topic="here")).base_offset == 0
        threads = noted_work(monkeypatch)
        answer = await desk.produce(encode_batch(records(b"1"), base_sequence=sequence, **one), topic="here")
        if sequence == 0:
            assert (answer.error_code, answer.base_offset) == (NONE, 0)
        else:
            assert answer.error_code is ErrorCode.out_of_order_sequence_number
        assert threads == []
        assert len(stored(desk)) == 1

    at_desk(conversation, compression_type="zstd", cleanup_policy=policy)


def broken_crc(batch):
    batch[-1] ^= 1
    return "corrupt_message"


def not_compressed(batch):
    batch[HEADER.size :] = bytes(len(batch) - HEADER.size)
    write_crc(batch)
    return "invalid_record"


def no_record(batch):
    batch[:] = batch[:40]
    return "corrupt_message"


@pytest.mark.parametrize("breaking", [broken_crc, not_compressed, no_record])
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_bytes_that_are_not_a_batch_are_refused(monkeypatch, breaking, codec):
    async def conversation(desk):
        batch = bytearray(encode_batch(records(b"1" * 100), codec=codec))
        code = breaking(batch)
        threads = noted_work(monkeypatch)
        assert (await desk.produce(bytes(batch), topic="here")).error_code.name == code
        assert threads == []
        assert stored(desk) == []

    at_desk(conversation, compression_type="uncompressed")


def test_a_batch_that_becomes_too_large_is_refused():
    async def conversation(desk):
        small = encode_batch(records(bytes(5000)), codec=Codec.ZSTD)
        assert len(small) < 1000
        answer = await desk.produce(small, topic="here")
        assert answer.error_code is ErrorCode.message_too_large
        bomb = encode_batch(records(bytes(65 << 20)), codec=Codec.ZSTD)
        desk.broker.topic_files.create("large", 1, {"compression.type": "gzip"})
        refused = await desk.produce(bomb, topic="large")
        assert refused.error_code is ErrorCode.message_too_large
        assert "decompress to more than 67108864 bytes" in refused.error_message

    at_desk(conversation, compression_type="uncompressed", max_message_bytes="1000")


def test_a_topic_that_changes_meanwhile_gets_the_batch_in_its_new_codec(monkeypatch):
    hold = threading.Event()
    threads = noted_work(monkeypatch, hold)

    async def conversation(desk):
        held = asyncio.create_task(desk.produce(encode_batch(records(b"1")), topic="here"))
        await begun(threads, 1)
        desk.broker.topic_files.configure(desk.broker.topics.get("here"), {"compression.type": "zstd"})
        hold.set()
        assert (await held).base_offset == 0
        [(header, _)] = stored(desk)
        assert header.codec is Codec.ZSTD
        assert len(threads) == 2

        hold.clear()
        held = asyncio.create_task(desk.produce(encode_batch(records(b"1")), topic="here"))
        await begun(threads, 3)
        delete_topic(desk.broker.topic_files, "here")
        hold.set()
        assert (await held).error_code is ErrorCode.unknown_topic_or_partition

    at_desk(conversation, compression_type="gzip")


# -- against a model -------------------------------------------------------------------------------------------------


class Sent(NamedTuple):
    """A step: set the topic's codec, and then send batches of one producer without waiting for the answers."""

    compression_type: str
    batches: list[tuple[Codec, list[bytes | None], bool]]  # codec, values, whether it is sent again later


STEPS = st.lists(
    st.builds(
        Sent,
        st.sampled_from(tuple(TYPES)),
        st.lists(
            st.tuples(
                st.sampled_from(CODECS),
                st.lists(st.none() | st.binary(max_size=200), min_size=1, max_size=5),
                st.booleans(),
            ),
            max_size=4,
        ),
    ),
    max_size=4,
)


@pytest.mark.extended
@given(STEPS)
def test_the_log_is_that_of_a_model_that_only_changes_codecs(steps):
    """The model is a list of batches: header and records as they were sent, in the codec that the topic then had."""

    async def conversation(desk):
        topic, sequence, model, answers = desk.broker.topics.get("here"), 0, [], []
        for step in steps:
            desk.broker.topic_files.configure(topic, {"compression.type": step.compression_type})
            wanted = TYPES[step.compression_type]
            tasks, expected = [], []
            for codec, values, is_repeated in step.batches:
                batch = encode_batch(
                    records(*values), codec=codec, producer_id=5, producer_epoch=0, base_sequence=sequence
                )
                base_offset = sequence
                sequence += len(values)
                model.append((base_offset, batch, codec if wanted is None else wanted))
                for _ in range(1 + is_repeated):
                    tasks.append(asyncio.create_task(desk.produce(batch, topic="here")))
                    expected.append(base_offset)
            found = [await task for task in tasks]
            assert all(answer.error_code is NONE for answer in found)
            answers += found
            assert [answer.base_offset for answer in found] == expected
        for (header, found), (base_offset, batch, codec) in zip(stored(desk), model, strict=True):
            assert (header.base_offset, header.codec) == (base_offset, codec)
            assert without_codec(header) == without_codec(read_header(batch))
            assert found == [
                record._replace(offset=record.offset + base_offset) for record in decode_records(batch)
            ]

    at_desk(conversation)


# -- with a real client ----------------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("sent", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_reads_what_it_wrote_in_every_codec(sent):
    with stablelog.serve() as broker:
        at = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        names = {kind: unique(f"recompressed-{kind}") for kind in TYPES}
        admin = AdminClient(at)
        new = [NewTopic(name, 1, 1, config={"compression.type": kind}) for kind, name in names.items()]
        for created in admin.create_topics(new).values():
            created.result(60)
        producer = Producer({**at, "compression.type": sent, "enable.idempotence": True, "linger.ms": 5})
        values = [b"%d" % number * 50 for number in range(500)]
        for name in names.values():
            for value in values:
                producer.produce(name, value, partition=0)
        assert producer.flush(60) == 0
        consumer = Consumer({**at, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(list(names.values()))
        found = {name: [] for name in names.values()}
        while sum(map(len, found.values())) < len(values) * len(names):
            for message in consumer.consume(1000, 1.0):
                assert message.error() is None
                found[message.topic()].append(message.value())
        consumer.close()
        assert found == dict.fromkeys(names.values(), values)
