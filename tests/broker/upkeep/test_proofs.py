"""Log files that a start has taken on trust: a fetch waits for their proof, and gets nothing of a damaged one."""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.header import crc_holds, headers_in
from stablelog.broker.loop.tasks import Tasks
from stablelog.broker.upkeep.proofs import Proofs
from stablelog.broker.upkeep.scrub import Scrub
from stablelog.errors import DamageError, DiskError, UnavailableError, UnprovenError
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import DATA, batch, opened
from tests.log.compaction.test_policy import KeyedLog
from tests.log.timeline import Log

SMALL = {"segment.bytes": "1024", "stablelog.order": "offset"}
ORDERS = ["offset", "commit"]
NOT_PROVEN = ErrorCode.not_leader_or_follower


def run(conversation):
    return asyncio.run(asyncio.wait_for(conversation(), 120))


@pytest.fixture(params=ORDERS)
def order(request):
    return request.param


@pytest.fixture
def disk(order):
    """A partition of several segments, of a broker that was stopped."""
    made = SimDisk()

    async def conversation():
        async with opened(made, topics=()) as desk:
            desk.broker.topic_files.create("t", 1, {**SMALL, "stablelog.order": order})
            for number in range(40):
                await desk.produce(batch(b"%d" % number + bytes(100)))

    run(conversation)
    return made


def log_files(disk):
    return sorted(path for path in disk.files(DATA / "t-0") if path.suffix == ".log")


def flip(disk, path, at):
    content = bytearray(disk.read_bytes(path))
    content[at] ^= 1
    disk.damage(path, bytes(content))


def test_a_fetch_waits_until_its_segment_is_proven(disk):
    async def conversation():
        async with opened(disk, topics=(), prove=False) as desk:
            log = desk.broker.partitions.require("t", 0)
            first = log.segments()[0]
            assert not first.is_proven
            answer = await desk.fetch("t", 0, 0)
            assert answer.error_code is ErrorCode.none
            assert answer.records
            assert first.is_proven

    run(conversation)


def test_a_fetch_that_may_not_wait_is_told_to_ask_again(disk):
    """Without an error, readers would take an answer without records for what compaction has left."""

    async def conversation():
        async with opened(disk, topics=(), prove=False) as desk:
            answer = await desk.fetch("t", 0, 0, max_wait_ms=0)
            assert (answer.error_code, bool(answer.records)) == (NOT_PROVEN, False)
            while not (answer := await desk.fetch("t", 0, 0, max_wait_ms=1)).records:
                pass
            assert answer.error_code is ErrorCode.none

    run(conversation)


async def answered(desk, offset, isolation):
    """What a reader gets in the end: records or an error."""
    while True:
        answer = await desk.fetch("t", 0, offset, isolation=isolation, max_wait_ms=20)
        if answer.error_code is not NOT_PROVEN:
            return answer


async def proven(segment):
    while not segment.is_proven:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def test_a_reader_that_goes_on_finds_the_next_segments_proven(disk):
    async def conversation():
        async with opened(disk, topics=(), prove=False) as desk:
            log = desk.broker.partitions.require("t", 0)
            assert (await desk.fetch("t", 0, 0)).records
            second = log.segments()[1]
            await proven(second)
            assert not log.segments()[-2].is_proven, "not all of it is read at once"

    run(conversation)


@pytest.mark.parametrize("at", [7, 11, 22, 46], ids=["base offset", "length", "attributes", "producer id"])
def test_a_damaged_segment_is_refused_by_name_and_the_others_are_served(disk, order, at, caplog):
    path = log_files(disk)[1]
    flip(disk, path, at)

    async def conversation():
        async with opened(disk, topics=(), prove=False) as desk:
            if order == "commit" and desk.broker.partitions.of_topic(desk.broker.topics.named("t")) == {}:
                return  # its view was to be walked, and it stays offline
            log = desk.broker.partitions.require("t", 0)
            begin = log.segments()[1].base_offset
            for isolation in (0, 1):
                refused = await answered(desk, begin, isolation)
                assert refused.error_code is ErrorCode.kafka_storage_error
            assert (await desk.fetch("t", 0, 0)).records
            assert (await desk.fetch("t", 0, log.segments()[2].base_offset)).records
            assert (await desk.produce(batch(b"more"))).error_code is ErrorCode.none
            assert log.log.segments.damaged_count == 1

    run(conversation)
    assert path.name in caplog.text


def test_a_lookup_by_time_waits_for_the_proof_too(disk):
    async def conversation():
        async with opened(disk, topics=(), prove=False) as desk:
            answer = await desk.offset_at("t", 0, 0)
            assert (answer.error_code, answer.offset) == (ErrorCode.none, 0)

    run(conversation)


def test_a_file_that_cannot_be_read_is_no_damage_and_is_tried_again(disk, caplog):
    async def conversation():
        async with opened(disk, topics=(), prove=False) as desk:
            path = log_files(disk)[0]
            disk.fault = lambda what, at: 5 if at == path and what == "reading" else None
            for _ in range(3):
                assert not (await desk.fetch("t", 0, 0, max_wait_ms=20)).records
            disk.fault = None
            assert (await answered(desk, 0, 1)).records

    run(conversation)
    assert caplog.text.count("the broker tries again") == 1


def test_proofs_take_turns():
    """A large segment does not keep the proof of a small one waiting."""

    async def conversation():
        tasks, order = Tasks(pytest.fail), []
        proofs = Proofs(tasks, lambda _partition: None)
        proofs.start()
        log = Log()

        def pieces(name, count):
            for number in range(count):
                order.append((name, number))
                yield

        large = proofs.request(log.partition, asked("large", lambda: pieces("large", 50)))
        small = proofs.request(log.partition, asked("small", lambda: pieces("small", 2)))
        assert proofs.request(log.partition, asked("small", lambda: pieces("again", 1))) is small
        await small
        assert not large.done()
        await large
        assert [name for name, _ in order[:4]] == ["large", "small", "large", "small"]
        await tasks.stop()
        proofs.close()

    run(conversation)


def asked(name, prove):
    return UnprovenError(DATA / name, prove)


@pytest.mark.parametrize("error", [DamageError("x is damaged"), DiskError("reading x failed", 5)])
def test_who_waits_for_a_proof_is_told_how_it_failed(error):
    async def conversation():
        tasks = Tasks(pytest.fail)
        proofs = Proofs(tasks, lambda _partition: None)
        proofs.start()

        log = Log()
        (segment,) = log.partition.segments()

        def fails():
            segment.proof.damage = "x is damaged"
            raise error
            yield

        with pytest.raises(type(error)):
            await proofs.request(log.partition, UnprovenError(segment.path(".log"), fails))
        await tasks.stop()
        proofs.close()

    run(conversation)


def test_who_waits_for_the_proof_of_a_segment_that_was_replaced_asks_again(caplog):
    async def conversation():
        tasks = Tasks(pytest.fail)
        proofs = Proofs(tasks, lambda _partition: None)
        proofs.start()
        log = KeyedLog()
        log.write("a=1 a=2 b=1 b=2")
        replaced = log.partition.segments()[0]

        def fails():
            log.compact()
            replaced.proof.damage = "its file is another one"
            raise DamageError(replaced.proof.damage)
            yield

        with pytest.raises(UnavailableError, match="deleted or compacted"):
            await proofs.request(log.partition, UnprovenError(replaced.path(".log"), fails))
        await tasks.stop()
        proofs.close()

    run(conversation)
    assert not caplog.text


# -- the scrub ------------------------------------------------------------------------------------------------------


def test_the_scrub_finds_a_changed_body_names_it_and_nothing_is_read_from_it(disk, caplog):
    path = log_files(disk)[1]
    flip(disk, path, 100)

    async def conversation():
        async with opened(disk, topics=()) as desk:
            log = desk.broker.partitions.require("t", 0)
            begin = log.segments()[1].base_offset
            scrub = Scrub(desk.broker.partitions, desk.broker.tasks, lambda: 1 << 40)
            await scrub.scrub_all()
            await scrub.scrub_all()
            assert scrub.read_size == 2 * sum(p.size for p in desk.broker.partitions)
            assert log.log.segments.damaged_count == 1
            for isolation in (0, 1):
                refused = await answered(desk, begin, isolation)
                assert refused.error_code is ErrorCode.kafka_storage_error
                served = await desk.fetch("t", 0, begin + 1, isolation=isolation)
                assert served.records, "the batches behind it are served"
                before = await desk.fetch("t", 0, begin - 1, isolation=isolation)
                assert before.records
            scrub.close()

    run(conversation)
    assert caplog.text.count(f"scrub: {path} has a damaged batch") == 1


def test_a_changed_body_is_handed_out_with_a_crc_that_does_not_hold_until_the_scrub_has_read_it(disk):
    flip(disk, log_files(disk)[1], 100)

    async def conversation():
        async with opened(disk, topics=()) as desk:
            begin = desk.broker.partitions.require("t", 0).segments()[1].base_offset
            for isolation in (0, 1):
                records = (await answered(desk, begin, isolation)).records
                at, header = next(headers_in(records))
                assert header.base_offset == begin
                assert not crc_holds(records, at, header), "clients that check CRCs refuse it"
            scrub = Scrub(desk.broker.partitions, desk.broker.tasks, lambda: 1 << 40)
            await scrub.scrub_all()
            scrub.close()
            for isolation in (0, 1):
                assert (await answered(desk, begin, isolation)).error_code is ErrorCode.kafka_storage_error

    run(conversation)


def test_the_first_pass_of_the_scrub_begins_when_the_partitions_are_open(disk):
    flip(disk, log_files(disk)[1], 100)

    async def conversation():
        async with opened(disk, topics=(), stablelog_scrub_bytes_per_second=1 << 40) as desk:
            log = desk.broker.partitions.require("t", 0)
            async with asyncio.timeout(30):
                while not log.log.segments.damaged_count:  # noqa: ASYNC110 - nobody tells of it
                    await asyncio.sleep(0.002)

    run(conversation)


def test_a_pass_of_the_scrub_is_logged_if_it_read_something_and_found_it_other_than_before(disk, caplog):
    caplog.set_level("INFO", "stablelog.broker.upkeep.scrub")

    def lines():
        return [record for record in caplog.records if record.getMessage().startswith("scrub: read")]

    async def conversation():
        async with opened(topics=()) as desk:
            scrub = Scrub(desk.broker.partitions, desk.broker.tasks, lambda: 1 << 40)
            await scrub.scrub_all()
            assert scrub.read_size == 0
            assert lines() == [], "there was nothing to read"
            scrub.close()
        async with opened(disk, topics=()) as desk:
            scrub = Scrub(desk.broker.partitions, desk.broker.tasks, lambda: 1 << 40)
            for _ in range(3):
                await scrub.scrub_all()
            assert len(lines()) == 1
            flip(disk, log_files(disk)[1], 100)
            await scrub.scrub_all()
            assert len(lines()) == 2
            await desk.produce(batch(b"more"))
            await scrub.scrub_all()
            assert len(lines()) == 3
            scrub.close()

    run(conversation)


def test_the_scrub_proves_headers_too(disk, caplog):
    path = log_files(disk)[2]
    flip(disk, path, 22)

    async def conversation():
        async with opened(disk, topics=(), prove=False) as desk:
            if desk.broker.partitions.of_topic(desk.broker.topics.named("t")) == {}:
                return
            scrub = Scrub(desk.broker.partitions, desk.broker.tasks, lambda: 1 << 40)
            await scrub.scrub_all()
            scrub.close()

    run(conversation)
    assert path.name in caplog.text


def test_the_scrub_passes_over_a_segment_that_is_compacted_meanwhile(caplog):
    log = KeyedLog()
    log.write("a=1 b=1 c=1 a=2 " + "b=2 " * 3)
    log.write("x=1 x=2 y=1 y=2 d=1")
    (replaced, *_) = log.partition.segments()
    log.compact()
    assert not log.partition.has_segment(replaced)

    async def conversation():
        scrub = Scrub([log.partition], Tasks(pytest.fail), lambda: 1 << 40)
        await scrub.scrub_segment(log.partition, replaced)
        scrub.close()

    run(conversation)
    assert not caplog.text


def test_the_scrub_passes_over_a_segment_that_is_deleted_meanwhile(disk, caplog):
    async def conversation():
        async with opened(disk, topics=()) as desk:
            log = desk.broker.partitions.require("t", 0)
            scrub = Scrub(desk.broker.partitions, desk.broker.tasks, lambda: 1 << 40)
            original = disk.open

            def deleting(path, *, create=False):
                if path == log_files(disk)[0] and len(log.segments()) > 2:
                    log.deletion.delete_records(log.segments()[2].base_offset)
                    log.deletion.remove_deleted(1 << 60)
                return original(path, create=create)

            disk.open = deleting
            await scrub.scrub_all()
            scrub.close()

    run(conversation)
    assert "is gone" not in caplog.text
