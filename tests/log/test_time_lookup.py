"""Lookups of records by time in an open log."""

import random

import pytest

from stablelog.batch.records import QUICK_SIZE_MAX, Record, encode_batch
from stablelog.log.partition import Isolation
from stablelog.log.search import times as lookups
from stablelog.log.search.times import run_lookup
from stablelog.log.segments.segment import Segment
from stablelog.log.time_lookup import look_up_newest, look_up_time
from tests.log.test_partition import plain
from tests.log.timeline import NOW_MS, Log


def test_lookups_by_time_end_at_what_the_reader_sees():
    """Scenario 31: a time that only an undecided record has is not found."""
    log = Log()
    log.partition.append(plain(100, 200, 300), now_ms=NOW_MS)
    log.partition.append(plain(400), now_ms=NOW_MS)
    log.write("P1")
    committed, uncommitted = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED
    assert run_lookup(look_up_time(log.partition, 150, committed)) == (1, 200, 0)
    assert run_lookup(look_up_time(log.partition, 301, committed)) == (3, 400, 0)
    assert run_lookup(look_up_time(log.partition, 401, committed)) is None
    assert run_lookup(look_up_time(log.partition, 401, uncommitted)) == (4, NOW_MS, 0)
    assert run_lookup(look_up_newest(log.partition, committed)) is None
    assert run_lookup(look_up_newest(log.partition, uncommitted))[0] == 4
    assert log.partition.visible_end(committed) == 4


def event_log(count, **config):
    """A log of transactions, each with one record of the time `NOW_MS - 1,000,000 + number` and a marker of `NOW_MS`."""
    log = Log(**config)
    for number in range(count):
        log.append(1, time_ms=NOW_MS - 1_000_000 + number)
        log.end(1, commit=number % 3 != 2)
    log.sync()
    return log


def test_a_marker_is_no_record_to_a_lookup_by_time():
    log = event_log(10)
    for isolation in (Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED):
        for number in range(10):
            found = run_lookup(look_up_time(log.partition, NOW_MS - 1_000_000 + number, isolation))
            assert found[:2] == (2 * number, NOW_MS - 1_000_000 + number)
        assert run_lookup(look_up_time(log.partition, NOW_MS - 1_000, isolation)) is None
        assert run_lookup(look_up_newest(log.partition, isolation))[:2] == (18, NOW_MS - 999_991)
    log.partition.deletion.delete_records(19)
    assert run_lookup(look_up_time(log.partition, 0, Isolation.READ_COMMITTED)) is None
    assert run_lookup(look_up_newest(log.partition, Isolation.READ_COMMITTED)) is None


@pytest.fixture
def steps_of(monkeypatch):
    """Does a lookup whose steps read 20 headers at the most. Returns what it finds, and how many steps and headers it took."""
    monkeypatch.setattr(lookups, "STEP_COUNT_MAX", 20)
    read_count, plain_walk = 0, Segment.walk

    def walk(segment, *more):
        nonlocal read_count
        for found in plain_walk(segment, *more):
            read_count += 1
            yield found

    monkeypatch.setattr(Segment, "walk", walk)

    def steps_of(lookup):
        nonlocal read_count
        step_count, read_count = 0, 0
        while True:
            before = read_count
            try:
                assert next(lookup) is None
            except StopIteration as end:
                return end.value, step_count, read_count
            step_count += 1
            assert read_count - before <= 21

    return steps_of


def test_a_lookup_by_time_reads_so_many_headers_in_a_step_and_none_of_them_twice(steps_of):
    log = event_log(200, segment_bytes=3000, index_interval_bytes=200)
    assert len(log.partition.segments()) > 5
    late = NOW_MS - 1_000
    found, step_count, count = steps_of(look_up_time(log.partition, late, Isolation.READ_COMMITTED))
    assert (found, step_count) == (None, 19)
    assert count <= 400 + 20
    # What was walked is known: no record in it is later than the last one's time.
    assert steps_of(look_up_time(log.partition, late, Isolation.READ_COMMITTED)) == (None, 0, 0)
    found, step_count, count = steps_of(look_up_newest(log.partition, Isolation.READ_COMMITTED))
    assert found[:2] == (398, NOW_MS - 999_801)
    assert count < 50
    log.append(1, time_ms=NOW_MS - 500)
    log.end(1, commit=True)
    log.sync()
    found, step_count, count = steps_of(look_up_time(log.partition, late, Isolation.READ_COMMITTED))
    assert (found[0], count) == (400, 1)


@pytest.mark.parametrize("seed", range(12))
def test_lookups_in_any_order_find_what_a_search_of_all_records_finds(seed, monkeypatch):
    """Lookups remember what they have walked; those of other times and of later starts are as right behind them."""
    chance = random.Random(seed)
    monkeypatch.setattr(lookups, "STEP_COUNT_MAX", chance.choice([1, 3, 1000]))
    log = Log(segment_bytes=chance.choice([500, 1 << 20]), index_interval_bytes=chance.choice([1, 300]))
    rows = []  # (time, offset)
    for number in range(60):
        time_ms = NOW_MS + chance.randint(-20, 20) + number // 3
        count = chance.randint(1, 3)
        first = log.append(1, count=count, transactional=False, time_ms=time_ms).first_offset
        rows += [(time_ms, first + at) for at in range(count)]
    log.sync()
    for _ in range(60):
        if chance.random() < 0.1:
            log.partition.deletion.delete_records(
                min(log.partition.start_offset + chance.randint(1, 9), rows[-1][1])
            )
        start, asked = log.partition.start_offset, NOW_MS + chance.randint(-25, 45)
        known = [(offset, time_ms) for time_ms, offset in rows if offset >= start]
        found = run_lookup(look_up_time(log.partition, asked, Isolation.READ_UNCOMMITTED))
        wanted = next((row for row in known if row[1] >= asked), None)
        assert (found and found[:2]) == wanted
        if chance.random() < 0.1:  # it walks everything
            newest = run_lookup(look_up_newest(log.partition, Isolation.READ_UNCOMMITTED))
            assert newest[:2] == next(row for row in known if row[1] == max(time_ms for _, time_ms in known))


def test_a_lookup_by_time_goes_on_where_segments_were_deleted_between_two_steps(monkeypatch):
    log = event_log(200, segment_bytes=3000)
    monkeypatch.setattr(lookups, "STEP_COUNT_MAX", 20)
    lookup = look_up_time(log.partition, NOW_MS - 1_000_000 + 150, Isolation.READ_COMMITTED)
    next(lookup)
    log.partition.deletion.delete_records(250)
    log.partition.deletion.remove_deleted(NOW_MS)
    assert run_lookup(lookup)[0] == 300


def test_the_greatest_time_behind_the_log_start_is_found_in_steps(steps_of):
    log = event_log(200)
    log.partition.deletion.delete_records(7)
    found, step_count, _ = steps_of(look_up_newest(log.partition, Isolation.READ_COMMITTED))
    assert found[:2] == (398, NOW_MS - 999_801)
    assert step_count >= 400 // 20


def test_the_greatest_time_of_a_log_that_no_lookup_has_walked_is_found_in_steps(steps_of):
    log = event_log(200, segment_bytes=3000)
    found, step_count, count = steps_of(look_up_newest(log.partition, Isolation.READ_COMMITTED))
    assert found[:2] == (398, NOW_MS - 999_801)
    assert step_count >= 400 // 21
    assert count < 400 + 2 * step_count + 50


def test_the_greatest_time_is_found_where_segments_were_deleted_between_two_steps(monkeypatch):
    monkeypatch.setattr(lookups, "STEP_COUNT_MAX", 20)
    log = event_log(200, segment_bytes=3000)
    log.partition.deletion.delete_records(7)
    lookup = look_up_newest(log.partition, Isolation.READ_COMMITTED)
    next(lookup)
    log.partition.deletion.delete_records(250)
    log.partition.deletion.remove_deleted(NOW_MS)
    assert run_lookup(lookup)[:2] == (398, NOW_MS - 999_801)


def test_a_large_batch_is_looked_into_by_the_caller_of_a_lookup():
    log = Log()
    last = QUICK_SIZE_MAX // 10
    records = [Record(0, NOW_MS + delta, None, b"value") for delta in range(last + 1)]
    log.partition.append(encode_batch(records), now_ms=NOW_MS)
    log.sync()
    log.partition.deletion.delete_records(1)
    for lookup, found in (
        (look_up_time(log.partition, NOW_MS + 500, Isolation.READ_COMMITTED), (500, NOW_MS + 500)),
        (look_up_newest(log.partition, Isolation.READ_COMMITTED), (last, NOW_MS + last)),
    ):
        given, done = 0, None
        with pytest.raises(StopIteration) as end:
            while True:
                work = lookup.send(done)
                given += work is not None
                done = work and work()
        assert given > 0
        assert end.value.value[:2] == found


def test_the_greatest_time_is_one_that_can_be_read():
    log = Log()
    log.partition.append(plain(NOW_MS + 5, NOW_MS + 3), now_ms=NOW_MS)
    log.partition.append(plain(NOW_MS + 1), now_ms=NOW_MS)
    log.sync()
    assert run_lookup(look_up_newest(log.partition, Isolation.READ_COMMITTED))[:2] == (0, NOW_MS + 5)
    log.partition.deletion.delete_records(1)
    assert run_lookup(look_up_newest(log.partition, Isolation.READ_COMMITTED))[:2] == (1, NOW_MS + 3)
