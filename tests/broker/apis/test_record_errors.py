"""Produce names the records because of which it refuses a batch (KIP-467), as Kafka's LogValidator does."""

import asyncio
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.header import LOG_APPEND_TIME, Codec, write_crc
from stablelog.batch.records import Record, encode_batch
from stablelog.broker.apis import produce
from stablelog.log.record_checks import ERRORS_MAX
from tests.broker.desk import opened
from tests.declared_apis import APIS

SECOND = timedelta(seconds=1)
NOW_MS = 1_700_000_000_000
OLD_MS, NEW_MS = NOW_MS - 5000, NOW_MS + 5000
LIMITS = {"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "1000"}
COMPACT = {"cleanup.policy": "compact"}
CODECS = (Codec.NONE, Codec.GZIP, Codec.ZSTD)
NO_KEY, BEHIND, AHEAD = "has no key", "5000 ms behind", "5000 ms ahead"
VERSIONS = APIS[0].served_versions


def record(key=b"k", timestamp_ms=NOW_MS):
    return Record(0, timestamp_ms, key, b"v")


def at_desk(conversation, configs):
    async def work():
        async with opened(now_ms=NOW_MS) as desk:
            desk.broker.topic_files.create("here", 1, configs)
            await conversation(desk)

    asyncio.run(asyncio.wait_for(work(), 100))


async def produced(desk, records, version=9, **more):
    return await desk.produce(encode_batch(records, **more), topic="here", version=version)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("configs", "records", "code", "errors"),
    [
        (COMPACT, [record(), record(None), record(), record(None)], "invalid_record", {1: NO_KEY, 3: NO_KEY}),
        (
            LIMITS,
            [record(), record(b"k", NEW_MS), record(b"k", OLD_MS)],
            "invalid_timestamp",
            {1: AHEAD, 2: BEHIND},
        ),
        (LIMITS, [record(b"k", OLD_MS), record()], "invalid_timestamp", {0: BEHIND}),
        (LIMITS, [record(), record(b"k", OLD_MS), record()], "invalid_timestamp", {1: BEHIND}),
        (
            LIMITS | COMPACT,
            [record(None), record(b"k", OLD_MS), record(None, OLD_MS)],
            "invalid_timestamp",
            {0: NO_KEY, 1: BEHIND, 2: NO_KEY},
        ),
        ({}, [record(), record(b"k", NOW_MS + 3_605_000)], "invalid_timestamp", {1: "3605000 ms ahead"}),
        (LIMITS, [record(b"k", -1), record()], "none", {}),
        (LIMITS | {"message.timestamp.type": "LogAppendTime"}, [record(b"k", OLD_MS)], "none", {}),
        (
            {"message.timestamp.type": "LogAppendTime"} | COMPACT | LIMITS,
            [record(None, OLD_MS), record(b"k", OLD_MS)],
            "invalid_record",
            {0: NO_KEY},
        ),
        (COMPACT, [record(), record()], "none", {}),
    ],
)
def test_the_records_that_are_not_valid_are_named(codec, configs, records, code, errors):
    async def conversation(desk):
        answer = await produced(desk, records, codec=codec)
        assert answer.error_code.name == code
        found = {one.batch_index: one.batch_index_error_message for one in answer.record_errors}
        assert found.keys() == errors.keys()
        assert all(why in found[number] for number, why in errors.items())
        assert list(found) == sorted(found)
        if errors:
            assert f"{len(errors)} of {len(records)} records are not valid" in answer.error_message
            assert desk.broker.partitions.require("here", 0).end_offset == 0

    at_desk(conversation, configs)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_from_8_on_names_them(version):
    async def conversation(desk):
        answer = await produced(desk, [record(None), record()], version=version)
        assert answer.error_code is ErrorCode.invalid_record
        if version >= 8:
            assert [one.batch_index for one in answer.record_errors] == [0]

    at_desk(conversation, COMPACT)


def test_all_records_of_a_batch_that_declares_the_brokers_time_are_named():
    async def conversation(desk):
        answer = await produced(desk, [record()] * 3, extra_attributes=LOG_APPEND_TIME)
        assert answer.error_code is ErrorCode.invalid_timestamp
        assert [one.batch_index for one in answer.record_errors] == [0, 1, 2]
        assert "LogAppendTime" in answer.record_errors[0].batch_index_error_message

    at_desk(conversation, {})


@pytest.mark.parametrize("configs", [COMPACT, LIMITS, {}], ids=["keys", "times", "header"])
def test_many_records_are_checked_and_the_first_are_named(configs):
    async def conversation(desk):
        count = ERRORS_MAX + 500
        wrong = record(None, NOW_MS + 3_605_000) if configs is not COMPACT else record(None)
        answer = await produced(desk, [record(), *[wrong] * count], codec=Codec.GZIP)
        assert answer.error_code is not ErrorCode.none
        assert [one.batch_index for one in answer.record_errors] == list(range(1, 1 + ERRORS_MAX))
        assert f"at least {ERRORS_MAX} of {count + 1} records" in answer.error_message

    at_desk(conversation, configs)


def test_a_response_names_a_bounded_number_of_records(monkeypatch):
    monkeypatch.setattr(produce, "RECORD_ERRORS_MAX", 5)

    async def conversation(desk):
        for index in range(1, 4):
            desk.broker.topic_files.create(f"more-{index}", 1, COMPACT)
        batch = encode_batch([record(None)] * 2)
        data = [{"index": 0, "records": batch}]
        names = ["here", "more-1", "more-2", "more-3"]
        values = {
            "transactional_id": None,
            "acks": -1,
            "timeout": SECOND,
            "topic_data": [{"name": name, "partition_data": data} for name in names],
        }
        answer = await desk.ask_with(0, 9, values)
        parts = [topic.partition_responses[0] for topic in answer.responses]
        assert [len(one.record_errors) for one in parts] == [2, 2, 1, 0]
        assert all(one.error_code is ErrorCode.invalid_record for one in parts)

    at_desk(conversation, COMPACT)


def test_records_that_cannot_be_decoded_are_refused_without_names():
    async def conversation(desk):
        for codec in CODECS:
            lying = bytearray(encode_batch([record(b"k", NOW_MS + 3_605_000)] * 3, codec=codec))
            lying[-1:] = b""
            lying[8:12] = (len(lying) - 12).to_bytes(4, "big")
            write_crc(lying)
            answer = await desk.produce(bytes(lying), topic="here")
            assert (answer.error_code, answer.record_errors) == (ErrorCode.invalid_timestamp, ())

    at_desk(conversation, {})
