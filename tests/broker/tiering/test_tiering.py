"""A broker with tiered storage, through real requests: offsets of both tiers, deletion, settings, and a lost store."""

import asyncio
import shutil
import threading
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.header import headers_in
from stablelog.batch.records import decode_records
from stablelog.broker.settings.config import BrokerConfig
from stablelog.errors import RefusedError, UsageError
from stablelog.testing.sim_disk import SimDisk
from stablelog.testing.sim_objects import SimObjects, StoreFaults
from stablelog.tier.index_object import IndexKind, indexes_of
from stablelog.tier.records import SegmentState
from tests.broker import jump
from tests.broker.apis.test_incremental_alter_configs import SET, TOPIC, alter, changed
from tests.broker.desk import batch, opened
from tests.broker.tiering.desk import (
    HOURS_MS,
    LOCAL_NOTHING,
    SIMULATED_URL,
    copy,
    log_of,
    simulate_store,
    tiered,
    write_segments,
)
from tests.broker.tiering.world import lines

NONE = ErrorCode.none
DELETE_STARTED = SegmentState.DELETE_STARTED
RETRIABLE = (ErrorCode.kafka_storage_error, ErrorCode.not_leader_or_follower)
UNSUPPORTED = ErrorCode.unsupported_version
EARLIEST, LATEST, LOCAL, TIERED, PENDING = -2, -1, -4, -5, -6


async def list_offset(desk, timestamp, version=11, *, timeout_ms=30_000):
    answer = await desk.ask_with(
        2,
        version,
        {
            "replica_id": -1,
            "isolation_level": 0,
            "timeout": timedelta(milliseconds=timeout_ms),
            "topics": [
                {
                    "name": "t",
                    "partitions": [
                        {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
                    ],
                }
            ],
        },
    )
    found = answer.topics[0].partitions[0]
    return found.offset if found.error_code is NONE else found.error_code


async def read_all(desk, start=0):
    """The offsets that the values of all records from `start` on tell; they are those of the records."""
    offset, found = start, []
    while offset < log_of(desk).high_watermark:
        answer = await desk.fetch("t", 0, offset, max_wait_ms=1000)
        if answer.error_code is not NONE:
            return answer.error_code
        for at, header in headers_in(answer.records):
            assert [int(record.value) for record in decode_records(answer.records, at)] == [
                header.base_offset
            ]
            if header.base_offset >= offset:
                found.append(header.base_offset)
        offset = found[-1] + 1
    return found


def run(conversation):
    asyncio.run(asyncio.wait_for(conversation(), 60))


@pytest.mark.extended
def test_records_of_both_tiers_are_read_before_and_after_a_restart(tmp_path):
    disk = SimDisk()

    async def conversation():
        for _ in range(3):
            async with tiered(tmp_path.as_uri(), disk) as desk:
                await desk.opened("t")
                log_of(desk).log.prove_segments()
                if log_of(desk).end_offset:
                    assert await read_all(desk) == list(range(log_of(desk).end_offset))
                await write_segments(desk, 3)
                await copy(desk)
                assert log_of(desk).start_offset == log_of(desk).remote.end_offset > 0
                assert await read_all(desk) == list(range(log_of(desk).end_offset))

    run(conversation)


@pytest.mark.parametrize("version", [8, 9, 11])
def test_the_ends_of_the_tiers_are_listed(tmp_path, version):
    async def conversation():
        async with tiered(tmp_path.as_uri()) as desk:
            assert await list_offset(desk, LOCAL, version) == 0
            assert await list_offset(desk, TIERED, version) == (-1 if version >= 9 else UNSUPPORTED)
            assert await list_offset(desk, PENDING, version) == (0 if version >= 11 else UNSUPPORTED)
            await write_segments(desk, 3)
            await copy(desk)
            end = log_of(desk).remote.end_offset
            assert await list_offset(desk, EARLIEST, version) == 0
            assert await list_offset(desk, LOCAL, version) == end
            assert await list_offset(desk, TIERED, version) == (end - 1 if version >= 9 else UNSUPPORTED)
            assert await list_offset(desk, PENDING, version) == (end if version >= 11 else UNSUPPORTED)
            assert await list_offset(desk, 0, version) == 0, "the first record has the timestamp 0"

    run(conversation)


@pytest.mark.parametrize(("version", "timeout_ms"), [(9, 0), (10, 20), (11, 20), (11, 0), (11, -5)])
def test_a_lookup_waits_for_the_store_as_long_as_the_request_says(tmp_path, version, timeout_ms, monkeypatch):
    async def conversation():
        async with tiered(tmp_path.as_uri()) as desk:
            await write_segments(desk, 3)
            await copy(desk)
            store_answers = asyncio.Event()
            load = desk.broker.tiering.reads.load_ranges

            async def load_later(*arguments):
                await store_answers.wait()
                await load(*arguments)

            monkeypatch.setattr(desk.broker.tiering.reads, "load_ranges", load_later)
            asked = asyncio.ensure_future(list_offset(desk, 0, version, timeout_ms=timeout_ms))
            if version >= 10 and timeout_ms > 0:
                assert await asked is ErrorCode.request_timed_out
            else:
                await asyncio.wait([asked], timeout=0.1)
                assert not asked.done()
                store_answers.set()
                assert await asked == 0
            store_answers.set()
            assert await list_offset(desk, 0, version, timeout_ms=60_000) == 0

    run(conversation)


@pytest.mark.extended
def test_deleted_records_of_the_store_are_not_read(tmp_path):
    disk = SimDisk()

    async def conversation():
        async with tiered(tmp_path.as_uri(), disk) as desk:
            await write_segments(desk, 4)
            await copy(desk)
            answer = await desk.ask_with(
                21,
                2,
                {
                    "timeout": timedelta(seconds=30),
                    "topics": [{"name": "t", "partitions": [{"partition_index": 0, "offset": 4}]}],
                },
            )
            assert answer.topics[0].partitions[0].low_watermark == 4
        async with tiered(tmp_path.as_uri(), disk) as desk:
            await desk.opened("t")
            log_of(desk).log.prove_segments()
            for _ in range(2):
                assert await list_offset(desk, EARLIEST) == 4
                assert (await desk.fetch("t", 0, 3)).error_code is ErrorCode.offset_out_of_range
                assert await read_all(desk, 4) == list(range(4, log_of(desk).end_offset))
                await write_segments(desk, 1)
                await copy(desk)

    run(conversation)


@pytest.mark.extended
def test_a_lost_store_stops_only_reads_of_remote_offsets_and_copying_resumes(tmp_path):
    store, away, disk = tmp_path / "store", tmp_path / "away", SimDisk()

    async def conversation():
        async with tiered(store.as_uri(), disk) as desk:
            await write_segments(desk, 3)
            await copy(desk)
        store.rename(away)
        store.mkdir()
        async with tiered(store.as_uri(), disk) as desk:
            await desk.opened("t")
            log_of(desk).log.prove_segments()
            start = log_of(desk).start_offset
            assert (await desk.fetch("t", 0, 0, max_wait_ms=1000)).error_code in RETRIABLE
            assert await list_offset(desk, EARLIEST) == 0
            await write_segments(desk, 2)
            await copy(desk)
            assert log_of(desk).start_offset == start, "no local segment is deleted without a copy"
            assert await read_all(desk, start) == list(range(start, log_of(desk).end_offset))
            shutil.rmtree(store)
            away.rename(store)
        async with tiered(store.as_uri(), disk) as desk:
            await desk.opened("t")
            log_of(desk).log.prove_segments()
            await copy(desk)
            assert log_of(desk).start_offset > start
            assert await read_all(desk) == list(range(log_of(desk).end_offset))

    run(conversation)


def test_a_fetch_answers_other_partitions_while_one_is_loaded(tmp_path):
    """The partition that is loaded has no records and no error; alone, it has a retriable error."""

    async def conversation():
        async with tiered(tmp_path.as_uri()) as desk:
            await write_segments(desk, 2)
            await copy(desk)
            desk.broker.topic_files.create("u", 1, {})
            await desk.produce(batch(b"0"), topic="u")
            answer = await fetch_both(desk, wait_ms=0)
            assert [(part.error_code, bool(part.records)) for part in answer] == [(NONE, False), (NONE, True)]
            answer = await fetch_both(desk, wait_ms=0, topics=("t",), offset=4)
            if not answer[0].records:
                assert answer[0].error_code in RETRIABLE
            assert await read_all(desk) == list(range(log_of(desk).end_offset))

    run(conversation)


def test_a_fetch_waits_for_a_store_that_hangs_no_longer_than_its_client_allows_and_the_load_goes_on(
    monkeypatch,
):
    """The time of this event loop jumps to the next timer, so it shows exactly how long a fetch has waited."""
    asked, released = [], threading.Event()

    def hang(call, key):
        if call == "get_range":
            asked.append(key)
            assert released.wait(60)

    objects = SimObjects(faults=StoreFaults(latency_s=0))
    simulate_store(monkeypatch, objects)

    async def conversation():
        loop = asyncio.get_running_loop()
        interval = {"stablelog_remote_coordinator_copy_interval_ms": HOURS_MS}
        async with tiered(SIMULATED_URL, **interval) as desk:
            await write_segments(desk, 2)
            await copy(desk)
            objects.between = hang
            try:
                for wait_ms in (5_000, 0, 700):  # The last two begin after SLOW_S.
                    begun_s = loop.time()
                    answer = await desk.fetch("t", 0, 0, max_wait_ms=wait_ms)
                    assert loop.time() - begun_s == pytest.approx(wait_ms / 1000)
                    assert answer.error_code in RETRIABLE
                    assert not answer.records
            finally:
                released.set()
            while not desk.broker.tiering.cache.memory_size:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert len(asked) == 1, "the load of the first fetch has gone on"
            answer = await desk.fetch("t", 0, 0, max_wait_ms=0)
            assert answer.error_code is NONE
            assert next(headers_in(answer.records))[1].base_offset == 0

    jump.run(conversation())


async def fetch_both(desk, *, wait_ms, topics=("t", "u"), offset=0):
    """A fetch of the first partition of each topic, of at least one byte."""
    asked = [{"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}]
    values = {
        "max_wait": timedelta(milliseconds=wait_ms),
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "rack_id": "",
        "forgotten_topics_data": (),
        "isolation_level": 1,
        "topics": [{"topic": name, "partitions": asked} for name in topics],
    }
    answer = await desk.ask_with(1, 11, values)
    return [one.partitions[0] for one in answer.responses]


@pytest.mark.extended
@pytest.mark.parametrize("damage", ["missing", "shorter", "other bytes", "other header"])
def test_a_damaged_segment_is_refused_by_name_and_other_segments_are_read(tmp_path, damage, caplog):
    async def conversation():
        async with tiered(tmp_path.as_uri()) as desk:
            await write_segments(desk, 3)
            await copy(desk)
            first, *_ = sorted(tmp_path.rglob("*.log"))
            content = first.read_bytes()
            if damage == "missing":
                first.unlink()
            elif damage == "shorter":
                first.write_bytes(content[:-1])
            else:
                place = -1 if damage == "other bytes" else 3
                damaged = bytearray(content)
                damaged[place] ^= 0xFF
                first.write_bytes(damaged)
            found = await read_all(desk)
            assert found in RETRIABLE, found
            assert any(first.relative_to(tmp_path).as_posix() in line for line in lines(caplog))
            second = int(sorted(tmp_path.rglob("*.log"))[0 if damage == "missing" else 1].name[:20])
            assert await read_all(desk, second) == list(range(second, log_of(desk).end_offset))

    run(conversation)


@pytest.mark.parametrize(
    ("configs", "words"),
    [
        ({"cleanup.policy": "compact"}, "cleanup.policy=compact"),
        ({"local.retention.ms": "10", "retention.ms": "5"}, "local.retention.ms=10"),
        ({"local.retention.bytes": "10", "retention.bytes": "5"}, "local.retention.bytes=10"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(tmp_path, configs, words):
    async def conversation():
        async with tiered(tmp_path.as_uri()) as desk:
            with pytest.raises(RefusedError, match=words):
                desk.broker.topic_files.create("u", 1, {"remote.storage.enable": "true", **configs})

    run(conversation)


def test_a_remote_tier_needs_a_store():
    async def conversation():
        async with opened(topics=()) as desk:
            with pytest.raises(RefusedError, match=r"stablelog\.remote\.url"):
                desk.broker.topic_files.create("u", 1, {"remote.storage.enable": "true"})

    run(conversation)


def test_copies_can_be_disabled_and_the_copied_records_stay(tmp_path):
    async def conversation():
        async with tiered(tmp_path.as_uri()) as desk:
            await write_segments(desk, 2)
            await copy(desk)
            start, topic = log_of(desk).start_offset, desk.broker.topics.get("t")
            desk.broker.topic_files.configure(topic, {**LOCAL_NOTHING, "remote.log.copy.disable": "true"})
            await write_segments(desk, 2)
            await copy(desk)
            assert log_of(desk).start_offset == log_of(desk).remote.end_offset == start
            assert await read_all(desk) == list(range(log_of(desk).end_offset))
            desk.broker.topic_files.configure(topic, LOCAL_NOTHING)
            await copy(desk)
            assert log_of(desk).start_offset > start

    run(conversation)


@pytest.mark.parametrize(
    ("own", "is_tiered", "is_compacted"),
    [
        ({"remote.storage.enable": "true", "remote.log.delete.on.disable": "true"}, True, False),
        ({"cleanup.policy": "compact"}, False, True),
        ({}, False, True),
        ({"stablelog.order": "commit"}, False, False),
    ],
    ids=["own", "compacted", "plain", "commit order"],
)
def test_a_topic_with_a_remote_tier_of_its_own_keeps_it_if_the_broker_compacts_by_default(
    own, is_tiered, is_compacted
):
    """Without the tier, `remote.log.delete.on.disable` would delete the records that are only in the store."""
    config = BrokerConfig({"stablelog.remote.url": SIMULATED_URL})
    for settings in ({"log.cleanup.policy": "compact"}, {"log.cleanup.policy": "compact,delete"}):
        config.set_dynamic(settings)
        found = config.log_config(own)
        assert (found.is_tiered, found.is_compacted) == (is_tiered, is_compacted)
    if not is_compacted:
        assert found.cleanup_policy == {"delete"}


def test_a_refused_setting_of_a_topic_names_the_setting_of_the_broker_that_it_contradicts():
    config = BrokerConfig({"stablelog.remote.url": SIMULATED_URL})
    own = {"remote.storage.enable": "true", "local.retention.ms": "50"}
    config.set_dynamic({"log.retention.ms": "40"})
    with pytest.raises(UsageError, match=r"^local\.retention\.ms=50 is greater than log\.retention\.ms=40"):
        config.check_tiered(own, own)
    config.set_dynamic({"log.cleanup.policy": "compact"})
    with pytest.raises(UsageError, match=r" log\.cleanup\.policy=compact .* Set cleanup\.policy=delete for"):
        config.check_tiered(own, own)
    config.check_tiered({**own, "cleanup.policy": "delete"}, own)


DISABLED = {**LOCAL_NOTHING, "remote.storage.enable": "false"}
DELETED = {**DISABLED, "remote.log.delete.on.disable": "true"}


@pytest.mark.parametrize(
    ("default", "own"),
    [
        ("false", {"remote.storage.enable": "true"}),
        ("true", {}),
        ("true", {"remote.storage.enable": "true", "remote.log.delete.on.disable": "false"}),
    ],
)
def test_a_topic_keeps_its_remote_tier_unless_its_records_may_be_deleted(default, own):
    """The default of the broker counts for a topic without a setting of its own."""
    config = BrokerConfig({"stablelog.remote.url": SIMULATED_URL, "stablelog.remote.storage.enable": default})
    for wanted in ({**own, "remote.storage.enable": "false"}, {"cleanup.policy": "compact"}):
        with pytest.raises(
            UsageError, match=r"remote\.log\.delete\.on\.disable=true.*remote\.log\.copy\.disable"
        ):
            config.check_tiered(wanted, own)
        for value in ("true", "TRUE"):
            config.check_tiered({**wanted, "remote.log.delete.on.disable": value}, own)
    config.check_tiered({**own, "remote.log.copy.disable": "true"}, own)
    config.check_tiered({"remote.storage.enable": "false"}, {"remote.storage.enable": "false"})


def test_the_remote_tier_of_a_topic_is_not_disabled_without_the_deletion_of_its_records(tmp_path):
    async def conversation():
        async with tiered(tmp_path.as_uri()) as desk:
            await write_segments(desk, 2)
            await copy(desk)
            change = (SET, "remote.storage.enable", "false")
            for validate_only in (True, False):
                code, why = await alter(desk, change, resource=(TOPIC, "t"), validate_only=validate_only)
                assert code is ErrorCode.invalid_config
                assert "remote.log.delete.on.disable=true" in why
            await copy(desk)
            assert log_of(desk).config.is_tiered
            assert await read_all(desk) == list(range(log_of(desk).end_offset))
            both = (change, (SET, "remote.log.delete.on.disable", "true"))
            await changed(desk, *both, resource=(TOPIC, "t"), validate_only=True)
            assert log_of(desk).config.is_tiered

    run(conversation)


def test_a_disabled_remote_tier_takes_the_records_with_it_that_are_only_in_the_store(tmp_path):
    """As in Apache Kafka, the log then begins at the first local record. A tier that is enabled again begins there, too."""
    disk = SimDisk()

    async def conversation():
        async with tiered(tmp_path.as_uri(), disk) as desk:
            await write_segments(desk, 3)
            await copy(desk)
            await write_segments(desk, 1)
            start, topic = log_of(desk).start_offset, desk.broker.topics.get("t")
            assert start > 0
            desk.broker.topic_files.configure(topic, DELETED)
            await copy(desk)
            await check_deleted(desk, start)
            assert all(row.state is DELETE_STARTED for row in remote_of(desk).manifest.segments)
        async with tiered(tmp_path.as_uri(), disk) as desk:
            await desk.opened("t")
            log_of(desk).log.prove_segments()
            await write_segments(desk, 1)
            await copy(desk)
            await check_deleted(desk, start)
            desk.broker.topic_files.configure(desk.broker.topics.get("t"), LOCAL_NOTHING)
            await copy(desk)
            assert log_of(desk).start_offset > start, "the local log was copied"
            assert await list_offset(desk, EARLIEST) == start
            assert await read_all(desk, start) == list(range(start, log_of(desk).end_offset))

    async def check_deleted(desk, start):
        assert await list_offset(desk, EARLIEST) == await list_offset(desk, LOCAL) == start
        assert await list_offset(desk, TIERED) == -1
        assert (await desk.fetch("t", 0, start - 1)).error_code is ErrorCode.offset_out_of_range
        assert await read_all(desk, start) == list(range(start, log_of(desk).end_offset))
        assert len(log_of(desk).segments()) > 1, "the limits of the local log no longer apply"

    run(conversation)


def test_a_disabled_remote_tier_leaves_the_local_segments_that_are_also_in_the_store(tmp_path):
    """The store has nothing before the log start, also when retention deletes these segments later."""

    async def conversation():
        async with tiered(tmp_path.as_uri(), configs={**LOCAL_NOTHING, "local.retention.bytes": "1"}) as desk:
            await write_segments(desk, 3)
            await copy(desk)
            await write_segments(desk, 2)
            topic = desk.broker.topics.get("t")
            await desk.broker.tiering.copy_all()
            start = log_of(desk).start_offset
            assert 0 < start < remote_of(desk).end_offset
            desk.broker.topic_files.configure(topic, DELETED)
            await copy(desk)
            assert log_of(desk).start_offset == remote_of(desk).start_offset == start
            log_of(desk).deletion.delete_records(start + 3)
            await copy(desk)
            rows = remote_of(desk).manifest.segments
            assert remote_of(desk).manifest.log_start == log_of(desk).start_offset == start + 3
            assert [row.state is DELETE_STARTED for row in rows] == [
                row.end_offset <= start + 3 for row in rows
            ]
            assert await read_all(desk, start + 3) == list(range(start + 3, log_of(desk).end_offset))

    run(conversation)


def remote_of(desk):
    return log_of(desk).remote


def objects_of_indexes(directory):
    return [path.read_bytes() for path in directory.rglob("t.t/**/*.indexes")]


def test_a_segment_in_commit_order_is_copied_with_its_commit_index_and_then_deleted(tmp_path):
    async def conversation():
        configs = {**LOCAL_NOTHING, "stablelog.order": "commit"}
        async with tiered(f"file://{tmp_path}/store", configs=configs) as desk:
            log = log_of(desk)
            producer = await desk.init("x")
            for committed in (True, False):
                await desk.add("x", producer, ("t", 0))
                await desk.produce(
                    batch(b"1", producer=producer, sequence=0 if committed else 1), transactional_id="x"
                )
                await desk.end("x", producer, committed)
                await desk.durable()
                log.roll(desk.broker.now_ms())
                await desk.produce(batch(b"outside"))
            base, disk = log.segments()[0].base_offset, desk.broker.disk
            summary = log.directory / f"{base:020}.commitsummary"
            content = disk.read_bytes(summary)
            disk.remove(summary)
            await desk.broker.tiering.copy_all()
            assert not objects_of_indexes(tmp_path), "its commit index is not complete"
            disk.write_atomic(summary, content)
            await copy(desk)
            assert len(log.segments()) == 1
            objects = objects_of_indexes(tmp_path)
            assert len(objects) == 2
            assert all(IndexKind.COMMIT_SUMMARY in indexes_of(content, "x") for content in objects)

    run(conversation)
