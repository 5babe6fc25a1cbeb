"""Commit order over two tiers: readers see the same as without a remote tier, whatever is copied, deleted or lost."""

import dataclasses

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from stablelog.broker.tiering.range_cache import RangeCache
from stablelog.commit_order import index_rows
from stablelog.commit_order.extents import LONG_COUNT
from stablelog.errors import DamageError, NotLoadedError
from stablelog.log.model import Isolation
from stablelog.tier.remote_log import RemoteLog
from tests.commit_order.committed_log import Log, set_long_count
from tests.commit_order.test_view import PRODUCERS, History
from tests.scale import examples
from tests.tier.tiered_log import PARTITION, Tier

LOCAL_NOTHING = {"local_retention_ms": 0, "local_retention_bytes": 0}


class TieredLog(Tier, Log):
    """A commit-ordered partition with a remote tier."""

    def __init__(self, *, chunk_size=100, **config):
        super().__init__(is_tiered=True, **LOCAL_NOTHING, **config)
        self.begin_tier(chunk_size)

    def open(self, **arguments):
        partition = super().open(**arguments)
        partition.remote = getattr(self, "remote", None)
        return partition

    @property
    def log_start(self):
        return min(self.remote.start_offset, self.partition.start_offset)

    def read(self, start, size_max):
        return self.loading(lambda: self.partition.read(start, size_max, Isolation.READ_COMMITTED))


class TieredHistory(History):
    @initialize(
        segment_bytes=st.sampled_from([400, 1500]),
        long_count=st.sampled_from([3, LONG_COUNT]),
        chunk_size=st.sampled_from([100, 1000, 1 << 20]),
    )
    def begin(self, segment_bytes, long_count, chunk_size):
        self.patched = pytest.MonkeyPatch()
        set_long_count(self.patched, long_count)
        self.log = TieredLog(segment_bytes=segment_bytes, file_delete_delay_ms=0, chunk_size=chunk_size)

    def answer(self, call):
        return self.log.loading(call)

    def truncate(self):
        """A log with a remote tier is not truncated."""

    @rule()
    def copy(self):
        self.log.sync()
        self.log.copy()

    @rule()
    def drop_local(self):
        self.log.sync()
        self.log.now_ms += 1
        if self.log.remote.start_offset > self.log.partition.start_offset:
            self.log.drop_local()  # Retention goes on with segments that an open transaction has kept.
        else:
            self.positions_hold_over(self.log.drop_local)

    @rule(
        works=st.lists(st.tuples(PRODUCERS, st.sampled_from([0, 300, 900]), st.integers(0, 5)), max_size=15),
        is_copied=st.booleans(),
        left=st.integers(0, 6),
    )
    def work_and_drop(self, works, is_copied, left):
        """Write and end transactions that overlap, and end all but one before copies are made and segments deleted."""
        log = self.log
        for producer, size, kind in works:
            if kind == 0 and producer in log.open_records:
                log.end(producer)
            elif kind == 1:
                log.partition.roll(log.now_ms)
            elif kind == 2:
                log.plain()
            else:
                log.append(producer, 1, size)
            log.now_ms += 1
        for producer in sorted(log.open_records.keys() - {left}):
            log.end(producer, commit=producer != 5)
        if is_copied:
            log.partition.roll(log.now_ms)
            self.copy()
        log.append(1)
        self.drop_local()

    @rule()
    def forget_what_is_loaded(self):
        self.log.loaded.known.clear()


TieredHistory.TestCase.settings = settings(
    max_examples=examples(80), stateful_step_count=40, deadline=None, report_multiple_bugs=False
)
TieredHistory.TestCase.pytestmark = [pytest.mark.extended]
test_the_view_over_two_tiers_equals_a_sort_by_commit_marker = TieredHistory.TestCase


def test_a_transaction_whose_beginning_only_the_store_has_is_read_after_its_index_was_lost():
    log = TieredLog(file_delete_delay_ms=0)
    log.append(1, 2)
    log.partition.roll(log.now_ms)
    log.append(1)
    log.end(1)
    log.plain()
    log.partition.roll(log.now_ms)
    log.plain()
    log.sync()
    log.copy()
    first, second, _ = log.partition.segments()
    kept = dataclasses.replace(
        log.config, local_retention_ms=-1, local_retention_bytes=log.partition.size - first.size
    )
    log.partition.config = kept
    log.drop_local()
    assert log.partition.start_offset == second.base_offset
    before = log.expected()
    assert len(before) == 5
    assert log.read_all(0, 1 << 20) == before
    log.lose_indexes()
    log.loaded.known.clear()
    assert log.read_all(0, 1 << 20) == before


def a_late_commit(**config):
    """Both tiers of a log whose last commit began in its first segment. All but one segment are only in the store."""
    log = TieredLog(segment_bytes=600, file_delete_delay_ms=0, **config)
    log.append(1, 3)
    for _ in range(20):
        log.append(2)
        log.end(2)
        log.now_ms += 1
    log.end(1)
    log.partition.roll(log.now_ms)
    log.plain()
    log.sync()
    log.copy()
    return log


def check_from_every_position(log):
    """A reader gets every later commit from each position of the view, and comes to its end."""
    view = log.partition.view
    for start in range(view.start_offset, view.end_offset + 1):
        assert log.read_all(start, 1 << 20) == [row for row in log.expected() if row[0] >= start]
    torn, first = log.loading(view.torn_sequence), log.loading(lambda: view.transactions(0, 1))
    assert not first or torn < first[0].commit_sequence


@pytest.mark.parametrize("limit", [{"retention_bytes": 1500}, {"retention_ms": 12}], ids=["size", "time"])
@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_retention_over_two_tiers_leaves_a_late_commit_and_takes_the_commits_before_it(limit, is_rebuilt):
    log = a_late_commit()
    log.drop_local()
    if is_rebuilt:
        log.lose_indexes()
    assert log.partition.start_offset > 0
    log.partition.config = dataclasses.replace(log.partition.config, **limit)
    log.partition.deletion.apply_retention(log.now_ms)
    start = log.partition.view.start_offset
    assert log.remote.start_offset == 0 < start < log.partition.start_offset
    assert [payload for _, payload in log.read_all(start, 1 << 20)][-4:-1] == [b"0", b"1", b"2"]
    check_from_every_position(log)
    for _ in range(20):
        log.append(2)
        log.end(2)
        log.now_ms += 1
    log.sync()
    log.copy()
    log.partition.deletion.apply_retention(log.now_ms)
    assert start < log.remote.start_offset <= log.partition.view.start_offset
    check_from_every_position(log)


def test_retention_loads_no_commit_index():
    """The view begins in a segment whose whole index only the store has. No pass of retention can wait for it."""
    log = a_late_commit()
    first = next(position for position, payload in log.expected() if payload == b"0")
    log.loading(lambda: log.partition.deletion.delete_records(first))
    size = sum(segment.size for segment in log.partition.segments()[-2:])
    kept = dataclasses.replace(log.config, local_retention_ms=-1, local_retention_bytes=size)
    log.partition.config = kept
    log.drop_local()
    log.lose_indexes()
    log.loaded.known.clear()
    assert log.partition.segments()[0].base_offset < first
    log.partition.deletion.apply_retention(log.now_ms)
    assert log.loaded.known == {}
    check_from_every_position(log)


@pytest.mark.parametrize("is_rebuilt", [False, True])
@pytest.mark.parametrize("at_once", [1, 2, 1024])
def test_when_the_remote_tier_is_deleted_the_view_begins_after_what_had_records_there(
    monkeypatch, at_once, is_rebuilt
):
    monkeypatch.setattr(index_rows, "COLUMNS_AT_ONCE", at_once)
    log = a_late_commit()
    for _ in range(3):
        log.append(2)
        log.end(2)
    log.sync()
    before = log.expected()
    size = sum(segment.size for segment in log.partition.segments()[-2:])
    kept = dataclasses.replace(log.config, local_retention_ms=-1, local_retention_bytes=size)
    log.partition.config = kept
    log.drop_local()
    local_start = log.partition.start_offset
    if is_rebuilt:
        log.lose_indexes()
    log.partition.deletion.delete_remote()
    view = log.partition.view
    assert log.remote.start_offset == local_start < view.start_offset
    first = next(position for position, payload in before if payload == b"0")
    assert view.start_offset == first + 3, "the late commit has its records in the store"
    left = [row for row in before if row[0] >= view.start_offset]
    assert log.read_all(view.start_offset, 1 << 20) == left
    assert len(left) == 4
    check_from_every_position(log)


def test_a_cut_is_found_though_a_later_segment_was_copied_without_knowing_earlier_commits():
    log = TieredLog(file_delete_delay_ms=0)
    log.append(1)
    log.end(1)
    for _ in range(2):
        log.partition.roll(log.now_ms)
        log.plain()
        log.sync()
        log.copy()
        log.now_ms += 1
        log.drop_local()
        log.lose_indexes()
    assert len(log.remote.manifest.segments) == 2
    assert [log.loading(lambda cut=cut: log.partition.view.offset_after(cut)) for cut in (0, 1)] == [
        log.expected()[0][0],
        log.partition.last_stable_offset,
    ]
    assert log.partition.view.latest_sequence == 1
    assert log.loading(log.partition.view.removed_sequence) == -1


def copied():
    """A log whose transactions overlap over the ends of segments, all of it in the store and not on the local disk."""
    log = TieredLog(segment_bytes=500, file_delete_delay_ms=0)
    for number in range(12):
        log.append(number % 3, 2, 40)
        if number % 2:
            log.end(number % 3)
        log.plain()
    for producer in list(log.open_records):
        log.end(producer)
    log.partition.roll(log.now_ms)
    log.plain()
    log.sync()
    log.copy()
    log.now_ms += 1
    log.drop_local()
    assert log.partition.start_offset == log.remote.end_offset > 0
    return log


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["log", "indexes"])
def test_damage_of_an_object_is_refused_by_name_or_harms_nothing(kind):
    log = copied()
    expected = log.expected()
    assert log.read_all(0, 1 << 20) == expected
    refused = 0
    for key in sorted(key for key in log.objects if key.endswith(kind)):
        good = log.objects[key]
        for at in range(0, len(good), 23):
            log.objects[key] = bytes([*good[:at], good[at] ^ 0x55, *good[at + 1 :]])
            log.loaded.known.clear()
            try:
                assert log.read_all(0, 1 << 20) == expected
            except DamageError:
                refused += 1
        log.objects[key] = good
    assert refused


def test_a_cache_that_is_smaller_than_a_commit_index_serves_every_read():
    """What a read needs at once stays in memory together: the index and the chunks do not drop each other."""
    log = copied()
    expected = log.expected()
    cache = RangeCache(log.disk, log.directory / "cache", 400, 0)
    log.remote = log.partition.remote = RemoteLog(
        PARTITION, log.remote.manifest, cache, log.saved.append, chunk_size=100
    )
    loads = []

    def loading(call):
        for _ in range(10):
            try:
                return call()
            except NotLoadedError as missing:
                cache.make_room(missing.size)
                for wanted in missing.ranges:
                    loads.append(wanted)
                    content = log.objects[wanted.key]
                    cache.put(wanted, content[wanted.start : wanted.start + wanted.size])
        raise AssertionError(f"the read goes on loading: {loads[-6:]}")

    log.loading = loading
    assert log.read_all(0, 150) == expected
    assert [loading(lambda cut=cut: log.partition.view.offset_after(cut)) for cut in range(6)] == sorted(
        {*(min((row[0] for row in log.written if row[4] > cut), default=0) for cut in range(6))}
    )


def test_a_rebuilt_index_does_not_forget_that_earlier_commits_were_removed():
    """The segment with the commits is only in the store, and the local indexes were lost."""
    log = TieredLog(file_delete_delay_ms=0)
    for producer in range(1, 6):
        log.append(producer)
        log.end(producer)
    log.append(6)
    for _ in range(2):
        log.partition.roll(log.now_ms)
        log.plain()
    log.end(6)
    log.partition.roll(log.now_ms)
    log.plain()
    log.sync()
    log.copy()
    first, second, third, _ = log.partition.segments()
    keep = log.partition.size - first.size
    log.partition.config = dataclasses.replace(log.config, local_retention_ms=-1, local_retention_bytes=keep)
    log.drop_local()
    assert log.partition.start_offset == second.base_offset
    log.loading(lambda: log.partition.deletion.delete_records(third.base_offset))
    assert log.loading(log.partition.view.removed_sequence) == 5
    log.lose_indexes()
    assert log.loading(log.partition.view.removed_sequence) == 5


def test_damaged_bytes_are_loaded_again_after_the_object_was_restored():
    log = copied()
    expected = log.expected()
    key = min(key for key in log.objects if key.endswith("log"))
    good = log.objects[key]
    log.objects[key] = bytes([*good[:70], good[70] ^ 1, *good[71:]])
    with pytest.raises(DamageError):
        log.read_all(0, 1 << 20)
    log.objects[key] = good
    assert log.read_all(0, 1 << 20) == expected


def test_a_read_without_room_returns_no_batch_from_outside_transactions():
    log = copied()
    position = next(row[0] for row in log.written if row[4] < 0)
    read = log.loading(
        lambda: log.partition.view.read(position, 10, at_least_one=False)  # a batch takes more than 60 bytes
    )
    assert not read.buffers
    assert log.loading(lambda: log.partition.view.read(position, 10)).buffers
