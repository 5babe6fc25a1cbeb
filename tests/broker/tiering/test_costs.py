"""The costs in docs/reference/stores.md, "Costs": the requests in the table are counted, and the prices follow from them."""

import asyncio
import re
import time
from types import SimpleNamespace

import pytest

from stablelog.broker.settings.config import BrokerConfig
from stablelog.env.objects.opening import open_store
from stablelog.env.objects.retrying_store import PART_SIZE
from stablelog.testing.s3 import serve_s3
from stablelog.testing.sim_objects import SimObjects, StoreFaults
from stablelog.tier.cut_points import cut_points
from stablelog.tier.names import INDEXES, LOG
from tests import documented
from tests.broker.desk import batch
from tests.broker.tiering.desk import (
    SIMULATED_URL,
    copy,
    log_of,
    run_in_store_time,
    simulate_store,
    tiered,
    write_segments,
)
from tests.broker.tiering.test_coordinator_logs import Pipeline
from tests.broker.tiering.world import World
from tests.log.timeline import NOW_MS
from tests.tier.test_remote_log import LOCAL_NOTHING, backfill, filled
from tests.tier.tiered_log import TieredLog

COSTS = documented.section("Costs")
WORDS = " ".join(COSTS.split())  # without the ends of lines
CHUNK_SIZE = BrokerConfig({})["stablelog.remote.chunk.bytes"]
GIB, GB, HOURS_OF_MONTH = 1 << 30, 10**9, 720


def table(*columns):
    """The rows of the table with these columns, by their first cell."""
    head = re.escape("| " + " | ".join(columns) + " |")
    (rows,) = re.findall(rf"{head}\n\|[-:|]*\n((?:\|.*\n)+)", COSTS)
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]
    return {what: tuple(rest) for what, *rest in cells}


REQUESTS = {
    what: tuple(map(int, counts)) for what, counts in table("what", "writes", "lists", "reads").items()
}
NOTHING = (0, 0, 0)
SMALL = "copy a segment with a log file of up to 16 MiB"
LARGE = "copy a segment of 1 GiB"
MANIFEST = "publish a manifest, for up to 16 copied segments of a partition"
PART = "publish a [part](formats.md#the-parts-of-a-manifest), for each 1,000 segments beyond the first 1,000"
MOVED = "publish a log start offset that DeleteRecords has moved, for each pass and partition"
START = "the start of a broker"
FIRST = "the first manifest of a partition after a start, besides its publication"
DELETION = "delete copied segments from the local disk"
IDLE = "an hour of a partition or broker without new records"
LOGS = "copy and publish the new records of a coordinator's log"
READ = "read a segment of 1 GiB from its beginning to its end"
ABORTS = "the aborted transactions of a segment that concern the reader"
MIDDLE = "a reader that begins in the middle of a segment"


class Bill:
    """A partition whose segments are copied to the test server of S3."""

    def __init__(self, s3):
        self.s3 = s3
        objects = SimpleNamespace(objects=s3.objects, now_s=time.monotonic, sleep=time.sleep)
        self.world = World(objects, words=())
        self.start()

    def start(self):
        self.world.copier.close()
        self.world.start(open_store("s3://bucket", allow_http=True, options=self.s3.options))

    def write(self, size=5):
        """Write a segment with a log file that is a little greater than `size`."""
        log, batch_size = self.world, min(size, 1 << 20) - 200 * (size > 1000)
        for _ in range(-(-size // batch_size)):
            log.append(9, transactional=False, size=batch_size)
        log.partition.roll(log.now_ms)
        log.sync()

    def of(self, call):
        """The writes, lists and reads of a call. Deletions cost nothing."""
        self.s3.counts.clear()
        call()
        kinds = (("put", "begin", "part", "complete"), ("list",), ("get", "head"))
        return tuple(sum(self.s3.counts[kind] for kind in group) for group in kinds)

    def of_copy(self, *sizes):
        for size in sizes:
            self.write(size)
        return self.of(self.world.copy_all)


def plus(*rows):
    return tuple(map(sum, zip(*rows, strict=True)))


def times(count, row):
    return tuple(count * number for number in row)


@pytest.fixture
def bill():
    with serve_s3() as s3:
        bill = Bill(s3)
        bill.of_copy(5)
        yield bill
        bill.world.copier.close()


def writes_of(size):
    """The writes of the copy of a segment, as the table and the sentence below it say."""
    part_count = -(-size // PART_SIZE)
    assert "The upload of a larger log file has one write for each 16 MiB, and two more." in WORDS
    return REQUESTS[SMALL][0] + (part_count + 1 if part_count > 1 else 0)


def test_the_copy_of_a_segment_its_publication_and_its_deletion(bill):
    for count in (1, 3, 16):
        assert bill.of_copy(*[5] * count) == plus(times(count, REQUESTS[SMALL]), REQUESTS[MANIFEST])
    assert bill.of_copy(*[5] * 17) == plus(times(17, REQUESTS[SMALL]), times(2, REQUESTS[MANIFEST]))
    assert bill.of(bill.world.copy_all) == NOTHING
    assert bill.of(bill.world.drop_local) == REQUESTS[DELETION]
    assert bill.world.partition.start_offset > 0


def test_a_log_start_that_has_moved(bill):
    bill.of_copy(5)
    for _ in range(2):
        bill.world.append(9, transactional=False, size=5)
        bill.world.sync()
    bill.world.partition.roll(bill.world.now_ms)
    bill.world.sync()
    bill.of(bill.world.copy_all)
    bill.world.partition.deletion.delete_records(2)
    assert bill.of(bill.world.copy_all) == REQUESTS[MOVED]
    assert bill.of(bill.world.copy_all) == NOTHING


@pytest.mark.extended
def test_the_copy_of_a_large_segment(bill):
    size = 2 * PART_SIZE + 1
    assert bill.of_copy(size) == plus((writes_of(size), 0, 0), REQUESTS[MANIFEST])
    assert REQUESTS[LARGE] == (writes_of(GIB), 0, 0)


def test_a_part_of_a_manifest(bill, monkeypatch):
    monkeypatch.setattr("stablelog.broker.tiering.copy_plans.PART_COUNT", 1)
    bill.start()
    bill.of_copy(5)
    assert bill.of_copy(5) == plus(REQUESTS[SMALL], REQUESTS[MANIFEST], REQUESTS[PART])


def test_starts_of_the_broker(bill):
    """The later ones also read the fences after the manifests of the earlier ones."""
    assert (
        "reads one object more for each further start that has published a manifest of the partition" in WORDS
    )
    for earlier in range(3):
        bill.start()
        assert bill.of(lambda: bill.world.storage.publish_settings(b"{}")) == REQUESTS[START]
        copied = plus(REQUESTS[SMALL], REQUESTS[MANIFEST], REQUESTS[FIRST])
        assert bill.of_copy(5) == plus(copied, (0, 0, earlier))


@pytest.mark.extended
def test_an_idle_hour_and_the_logs_of_the_coordinators(monkeypatch):
    objects, seen = SimObjects(faults=StoreFaults(latency_s=0)), []
    objects.between = lambda call, key: seen.append((call, key.split("/")[0]))
    simulate_store(monkeypatch, objects)

    async def idle(desk):
        seen.clear()
        for _ in range(60):
            await asyncio.sleep(60)
            desk.broker.clock.advance(60_000)
        assert len(seen) == sum(REQUESTS[IDLE])

    async def conversation():
        async with tiered(SIMULATED_URL, remote_log_manager_task_interval_ms=30_000) as desk:
            await write_segments(desk, 3)
            pipeline = Pipeline(desk)
            await pipeline.transact()
            await copy(desk)
            assert log_of(desk).start_offset > 0
            await idle(desk)
            await pipeline.transact()
            seen.clear()
            await desk.broker.tiering.copy_coordinator_logs()
            assert {call for call, _ in seen} == {"upload", "create"}
            for log in ("t.__consumer_offsets", "t.__transaction_state"):
                assert (sum(key == log for _, key in seen), 0, 0) == REQUESTS[LOGS]

    run_in_store_time(objects, conversation())


@pytest.mark.extended
@pytest.mark.parametrize("has_segments", [False, True])
def test_a_month_of_the_logs_of_the_coordinators(monkeypatch, has_segments):
    """There are commits all the time, for 15 minutes; with `has_segments` also a segment to copy in each pass."""
    objects, seen = SimObjects(faults=StoreFaults(latency_s=0)), []
    simulate_store(monkeypatch, objects)

    async def conversation():
        async with tiered(SIMULATED_URL, remote_log_manager_task_interval_ms=30_000) as desk:
            pipeline = Pipeline(desk)
            await pipeline.transact()
            await desk.broker.tiering.copy_all()
            await desk.broker.tiering.copy_coordinator_logs()
            objects.between = lambda call, key: key.startswith("t.__") and seen.append(call)
            for _ in range(900 // 5 + 2):  # up to the end of the last copy
                await pipeline.transact()
                if has_segments:
                    log_of(desk).roll(desk.broker.now_ms())
                    await desk.produce(batch(b"0"))
                await asyncio.sleep(5)
                desk.broker.clock.advance(5_000)
            objects.between = lambda _call, _key: None  # the copies of the stop are no part of the month

    run_in_store_time(objects, conversation())
    told = re.findall(r"every ([\d.]+) s[^:]*: ([\d,]+) writes a month, for \$(\d+\.\d)", WORDS)
    assert len(told) == 2
    seconds, writes, dollars = (float(number.replace(",", "")) for number in told[has_segments])
    month = len(seen) * 4 * HOURS_OF_MONTH
    assert month == pytest.approx(writes, rel=0.03)
    assert 2 * REQUESTS[LOGS][0] * HOURS_OF_MONTH * 3600 / seconds == pytest.approx(writes, rel=0.03)
    assert month * PRICES[0] == pytest.approx(dollars, abs=0.05)


def test_reads():
    for size_in_chunks in (0.5, 1, 7.3):
        tiered_log = filled(count=1, per_segment=40)
        segment = tiered_log.remote.manifest.segments[0]
        chunk_size = int(segment.size / size_in_chunks) + 1
        tiered_log = filled(count=1, per_segment=40, chunk_size=chunk_size)
        backfill(tiered_log)
        [segment] = tiered_log.remote.manifest.segments
        assert tiered_log.loaded.count(LOG) == len(cut_points(segment)) + 1 <= -(-segment.size // chunk_size)
        assert tiered_log.loaded.count(INDEXES) == 0
    assert REQUESTS[READ] == (0, 0, GIB // CHUNK_SIZE)
    tiered_log = filled((0, 2), count=3)
    backfill(tiered_log)
    assert tiered_log.loaded.count(INDEXES) == 2 * REQUESTS[ABORTS][2]
    assert tiered_log.loaded.count(LOG) == 3
    middle = TieredLog(index_interval_bytes=0, **LOCAL_NOTHING)
    middle.write("- - - - -")
    middle.partition.roll(NOW_MS)
    middle.write("-")
    middle.copy()
    middle.drop_local()
    middle.read(3, 1)
    assert (middle.loaded.count(INDEXES), REQUESTS[MIDDLE][:2]) == (REQUESTS[MIDDLE][2], (0, 0))


def test_each_row_of_the_table_is_counted():
    assert set(REQUESTS) == {
        SMALL, LARGE, MANIFEST, MOVED, PART, START, FIRST, DELETION, IDLE, LOGS, READ, ABORTS, MIDDLE
    }  # fmt: skip


# -- prices ------------------------------------------------------------------------------------------------------------

PRICE = r"\$([\d.]+) for a million writes and lists, \$([\d.]+) for a million reads, \$([\d.]+) for a GB and month"
PRICES = [float(number) for number in re.search(PRICE, WORDS).groups()]
PRICES = [PRICES[0] / 1e6, PRICES[1] / 1e6, PRICES[2]]


def test_the_price_of_a_gb_follows_from_the_requests():
    """Each segment is published alone."""
    rows = table("log files of", "copy 1 GB", "read 1 GB once", "keep 1 GB for a month")
    assert list(rows) == ["1 GiB", "64 MiB", "1 MiB"]
    for name, told in rows.items():
        number, unit = name.split()
        size = int(number) << {"MiB": 20, "GiB": 30}[unit]
        writes, reads = writes_of(size) + REQUESTS[MANIFEST][0], -(-size // CHUNK_SIZE)
        per_gb = [writes * PRICES[0] * GB / size, reads * PRICES[1] * GB / size, PRICES[2]]
        assert told == tuple(f"${round(price, 4):.4f}" for price in per_gb), name
