"""The view in commit order against a reader that sorts everything by commit marker."""

import dataclasses
import gc
import weakref

import hypothesis.strategies as st
import pytest
from crc32c import crc32c
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stablelog.batch.header import headers_in
from stablelog.batch.records import Record, decode_records, encode_batch, find_by_time
from stablelog.commit_order import stored_view
from stablelog.commit_order.commit_index import CommitIndex
from stablelog.commit_order.extents import EXTENT, LONG_COUNT
from stablelog.commit_order.index_format import CommitSummary
from stablelog.commit_order.verify import verify_view
from stablelog.errors import OffsetOutOfRangeError
from stablelog.log.model import Isolation
from stablelog.log.search.times import run_lookup
from stablelog.log.time_lookup import look_up_newest, look_up_time
from tests.commit_order.committed_log import DIRECTORY, NOW_MS, Log, set_long_count
from tests.scale import examples

PRODUCERS = st.integers(1, 5)


def test_records_are_served_in_the_order_of_the_commits_not_of_the_writes():
    log = Log()
    log.append(1)  # 0
    log.append(2)  # 1
    log.plain()  # 2
    log.append(1, count=2)  # 3, 4
    log.end(2)  # 5, takes 6
    log.end(1)  # 7, takes 8 9 10
    log.sync()
    assert log.read_all(0, 1 << 30) == [(2, b"2"), (6, b"1"), (8, b"0"), (9, b"3"), (10, b"4")]
    assert log.partition.last_stable_offset == log.partition.end_offset == 11


def test_an_open_transaction_delays_nobody():
    log = Log()
    log.append(1)
    for producer in (2, 3):
        log.append(producer)
        log.end(producer)
    log.sync()
    assert [payload for _, payload in log.read_all(0, 1 << 30)] == [b"1", b"2"]
    assert log.partition.last_stable_offset == log.partition.end_offset
    log.end(1)
    log.sync()
    assert [payload for _, payload in log.read_all(0, 1 << 30)] == [b"1", b"2", b"0"]


def test_an_aborted_transaction_is_nowhere_and_the_end_does_not_wait_for_it():
    log = Log()
    log.plain()
    log.append(1, count=3)
    log.end(1, commit=False)
    log.sync()
    assert log.partition.last_stable_offset == 1
    assert log.partition.high_watermark == 5
    assert [log.fetched(start) for start in range(1, 6)] == [([], [])] * 5
    with pytest.raises(OffsetOutOfRangeError):
        log.fetched(6)


def test_nothing_is_shown_that_is_not_durable():
    log = Log()
    log.append(1)
    log.end(1)
    assert log.fetched(0) == ([], [])
    log.sync()
    assert [payload for _, payload in log.read_all(0, 1 << 30)] == [b"0"]


def test_a_time_finds_the_first_commit_at_it_or_later():
    log = Log()
    for _ in range(3):
        log.append(1)
        log.now_ms += 1000
        log.end(1)
    log.sync()

    def find(*arguments):
        return run_lookup(look_up_time(log.partition, *arguments))

    assert find(0, Isolation.READ_COMMITTED)[:2] == (2, NOW_MS + 1000)
    assert find(NOW_MS + 1001, Isolation.READ_COMMITTED)[:2] == (5, NOW_MS + 2000)
    assert find(NOW_MS + 3001, Isolation.READ_COMMITTED) is None
    assert run_lookup(look_up_newest(log.partition, Isolation.READ_COMMITTED))[:2] == (8, NOW_MS + 3000)


def test_the_time_0_is_a_time_like_any_other():
    log = Log()
    log.now_ms = 0
    assert run_lookup(look_up_newest(log.partition, Isolation.READ_COMMITTED)) is None
    log.append(1)
    log.end(1)
    log.sync()
    for at in range(2):
        assert run_lookup(look_up_newest(log.partition, Isolation.READ_COMMITTED))[:2] == (2, 0)
        assert run_lookup(look_up_time(log.partition, at, Isolation.READ_COMMITTED)) == ((2, 0, 0), None)[at]


def test_a_view_without_transactions_has_no_commit_sequence_and_keeps_nothing_back():
    log = Log()
    assert log.partition.view.latest_sequence == log.partition.view.torn_sequence() == -1
    for _ in range(2):
        log.plain()
        log.partition.roll(log.now_ms)
    log.append(1)
    log.end(1, commit=False)
    log.partition.roll(log.now_ms)
    log.sync()
    view = log.partition.view
    assert (view.latest_sequence, view.torn_sequence(), view.removed_sequence()) == (-1, -1, -1)
    summaries = [index.summary for index in view.indexes if index.summary]
    assert [(one.latest_sequence, one.least_first_offset) for one in summaries] == [(-1, 2**63 - 1)] * 3
    assert [one.latest_ms for one in summaries] == [NOW_MS, NOW_MS, -1]


def test_a_marker_is_no_record_to_a_lookup_by_time_in_either_order():
    log = Log()
    log.append(1)  # 0
    log.append(2)  # 1
    log.now_ms += 1000
    log.end(1, commit=False)  # 2
    log.end(3)  # 3, of a transaction that has written nothing
    log.now_ms -= 500
    log.plain()  # 4
    log.now_ms += 1500
    log.end(2)  # 5, and 6 is the record's position
    log.sync()

    def find(*arguments):
        return run_lookup(look_up_time(log.partition, *arguments))

    committed, uncommitted = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED
    assert [find(NOW_MS + ms, committed)[0] for ms in (0, 500, 501, 1000, 2000)] == [4, 4, 6, 6, 6]
    assert find(NOW_MS + 2001, committed) is None
    assert [find(NOW_MS + ms, uncommitted)[0] for ms in (0, 1, 500)] == [0, 4, 4]
    assert find(NOW_MS + 501, uncommitted) is None
    assert run_lookup(look_up_newest(log.partition, committed))[:2] == (6, NOW_MS + 2000)
    assert run_lookup(look_up_newest(log.partition, uncommitted))[:2] == (4, NOW_MS + 500)


def test_the_view_does_not_keep_a_closed_partition_in_memory():
    """The partition has the view: a strong reference would make a circle."""
    log = Log()
    log.sync()
    view, gone = log.partition.view, weakref.ref(log.partition)
    gc.disable()
    try:
        log.partition = None
        assert gone() is None
    finally:
        gc.enable()
    assert view.indexes


def test_a_cut_lies_behind_the_last_commit_that_it_counts():
    log = Log(segment_bytes=600)
    for _ in range(20):
        log.append(1)
        log.end(1)
        log.plain()
    log.sync()
    log.append(1)
    for cut in range(22):
        after = log.partition.view.offset_after(cut)
        later = [row[0] for row in log.written if row[4] > cut]
        assert after == (min(later) if later else log.partition.last_stable_offset)
    assert [txn.commit_sequence for txn in log.partition.view.transactions(0, 5)] == [1, 2, 3, 4, 5]


def test_a_view_without_transactions_is_not_walked_for_what_was_removed(monkeypatch):
    log = Log(segment_bytes=600)
    for _ in range(300):
        log.plain()
        log.sync()
    log.partition.deletion.delete_records(20)
    looked_at = []
    look = CommitIndex.__getitem__
    monkeypatch.setattr(
        CommitIndex, "__getitem__", lambda index, place: looked_at.append(place) or look(index, place)
    )
    assert log.partition.view.removed_sequence() is None
    assert len(looked_at) < 10
    log.append(1)
    log.end(1)
    log.sync()
    assert log.partition.view.removed_sequence() == 0


def test_a_view_leaves_out_a_transaction_that_has_lost_its_beginning_and_no_other():
    log = Log(segment_bytes=600, file_delete_delay_ms=0)
    log.append(1)
    for _ in range(100):
        log.append(2)
        log.end(2)
    log.append(1)
    log.end(1)
    for _ in range(3):
        log.plain()
    log.sync()
    before = log.expected()
    log.tear_transactions(len(log.partition.segments()) - 10)
    assert log.partition.start_offset > 1
    left = log.read_all(log.partition.visible_start(Isolation.READ_COMMITTED), 1 << 30)
    assert left == log.expected()
    assert 20 < len(left) < len(before) - 2
    assert {payload for _, payload in left}.isdisjoint({b"0", b"101"})
    assert 101 not in [txn.commit_sequence for txn in log.partition.view.transactions(0, 200)]
    for again in (
        log.reopen,
        log.lose_indexes,
        log.reopen,
    ):  # the torn one is the last, though whole ones stand before it
        assert log.partition.view.removed_sequence() == log.partition.view.torn_sequence() == 101
        log.partition.roll(log.now_ms)  # verified is what is sealed
        log.sync()
        assert list(verify_view(log.disk, DIRECTORY)) == []
        again()
        assert log.read_all(log.partition.visible_start(Isolation.READ_COMMITTED), 1 << 30) == left
    entries = [index[place] for index in log.partition.view.indexes for place in range(len(index))]
    assert 101 in {entry.latest_sequence for entry in entries if entry.first_offset == -1}


@pytest.mark.parametrize("size_max", [1, 1 << 30])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_reader_passes_a_torn_transaction_at_the_end_of_the_view(count, size_max):
    """The end of the view is behind the torn transaction, and a reader comes to it from each position."""
    log = Log(segment_bytes=600, file_delete_delay_ms=0)
    log.append(1, 3)
    for _ in range(20):
        log.append(2)
        log.end(2)
    for _ in range(count):
        log.append(3)
        log.end(3)
    log.end(1)
    log.sync()
    log.tear_transactions(2)
    for again in (lambda: None, log.reopen, log.lose_indexes):
        again()
        view = log.partition.view
        assert view.end_offset == log.partition.high_watermark
        for start in range(view.start_offset, view.end_offset + 1):
            assert log.read_all(start, size_max) == [row for row in log.expected() if row[0] >= start]


def test_an_empty_batch_takes_no_more_room_than_the_reader_has():
    log = Log(segment_bytes=600, file_delete_delay_ms=0)
    log.append(1)
    for _ in range(20):
        log.append(2)
        log.end(2)
    log.end(1)
    log.sync()
    log.tear_transactions(2)
    start, end = log.partition.high_watermark - 1, log.partition.high_watermark
    for size_max, at_least_one, size in ((60, True, 61), (61, False, 61), (60, False, 0)):
        found = log.partition.read(start, size_max, Isolation.READ_COMMITTED, at_least_one=at_least_one)
        assert (found.size, found.end_offset) == (size, end if size else start)


def test_a_cut_of_which_only_deleted_segments_knew_is_where_the_view_begins():
    log = Log(segment_bytes=600, file_delete_delay_ms=0)
    for _ in range(3):
        log.append(1)
        log.end(1)
    log.sync()
    log.partition.roll(log.now_ms)
    log.sync()
    log.partition.deletion.delete_records(log.partition.last_stable_offset)
    assert log.partition.view.offset_after(1) == log.partition.visible_start(Isolation.READ_COMMITTED)


def test_an_index_that_does_not_agree_with_the_log_is_found():
    log = Log(segment_bytes=500)
    for _ in range(20):
        log.append(1, count=2)
        log.append(2)
        log.plain()
        log.end(1)
        log.end(2)
    log.sync()
    assert list(verify_view(log.disk, DIRECTORY)) == []
    path = DIRECTORY / next(name for name in log.disk.list_dir(DIRECTORY) if name.endswith(".commitindex"))
    index = CommitIndex(log.disk, DIRECTORY, int(path.name.split(".")[0]))
    entries = bytearray(log.disk.read_bytes(path))
    entries[7] ^= 1
    log.disk.write_atomic(path, bytes(entries))
    assert "`.commitsummary` file" in next(verify_view(log.disk, DIRECTORY)).message
    summary = CommitSummary.decode(log.disk.read_bytes(index.path(".commitsummary")))
    lying = dataclasses.replace(summary, entries_crc=crc32c(entries))
    log.disk.write_atomic(index.path(".commitsummary"), lying.encode())
    assert list(verify_view(log.disk, DIRECTORY)) != []


@pytest.mark.parametrize("at", [7, 11, 15, 23, 27, 31])
def test_verifying_finds_an_extent_that_would_give_a_reader_something_else(at):
    log = Log(segment_bytes=3_000)
    for _ in range(3):
        log.append(1, count=2, size=600)
        log.append(1)
        log.append(1)
        log.end(1)
    log.sync()
    index = log.partition.view.indexes[0]
    assert index.is_written
    for place in range(len(index.extents)):
        content = log.disk.read_bytes(index.path(".commitextents"))
        extents = bytearray(content)
        extents[place * EXTENT.size + at] ^= 1
        lying = dataclasses.replace(index.summary, extents_crc=crc32c(extents))
        log.disk.write_atomic(index.path(".commitextents"), bytes(extents))
        log.disk.write_atomic(index.path(".commitsummary"), lying.encode())
        assert [found.path for found in verify_view(log.disk, DIRECTORY)] != []
        log.disk.write_atomic(index.path(".commitextents"), content)
    log.disk.write_atomic(index.path(".commitsummary"), index.summary.encode())
    assert list(verify_view(log.disk, DIRECTORY)) == []


class History(RuleBasedStateMachine):
    @initialize(
        segment_bytes=st.sampled_from([400, 1500, 1 << 20]), long_count=st.sampled_from([3, LONG_COUNT])
    )
    def begin(self, segment_bytes, long_count):
        self.patched = pytest.MonkeyPatch()
        set_long_count(self.patched, long_count)
        self.log = Log(segment_bytes=segment_bytes, file_delete_delay_ms=0)

    def answer(self, call):
        """What a call returns."""
        return call()

    @rule(producer=PRODUCERS, count=st.integers(1, 4), size=st.sampled_from([0, 0, 600, 5000]))
    def write(self, producer, count, size):
        self.log.append(producer, count, size)

    @rule(count=st.integers(1, 3))
    def write_outside(self, count):
        self.log.plain(count)

    @rule(producer=PRODUCERS, commit=st.booleans())
    def end(self, producer, commit):
        if producer in self.log.open_records:
            self.log.end(producer, commit=commit)

    @rule(ms=st.integers(0, 1000))
    def wait(self, ms):
        self.log.now_ms += ms

    @rule()
    def sync(self):
        self.log.sync()

    @rule()
    def roll(self):
        self.log.partition.roll(self.log.now_ms)

    @rule(clean=st.booleans())
    def restart(self, clean):
        self.log.sync()
        self.positions_hold_over(lambda: self.log.reopen(clean=clean))

    @rule()
    def lose_every_index(self):
        self.log.sync()

        self.positions_hold_over(self.log.lose_indexes)

    def positions_hold_over(self, change):
        before = self.log.expected(), self.log.partition.last_stable_offset
        start = self.log.partition.visible_start(Isolation.READ_COMMITTED)
        change()
        assert self.log.partition.visible_start(Isolation.READ_COMMITTED) == start
        assert (self.log.expected(), self.log.partition.last_stable_offset) == before

    @rule(data=st.data())
    def delete(self, data):
        self.log.sync()
        before = data.draw(st.integers(0, self.log.partition.high_watermark))
        before = max(before, self.log.partition.visible_start(Isolation.READ_COMMITTED))
        start = self.answer(lambda: self.log.partition.deletion.delete_records(before))
        assert start >= before
        kept = [row for row in self.log.written if row[0] >= before]
        torn = {row[4] for row in self.log.written if row[0] < before and row[4] >= 0}
        lost = [row for row in sorted(kept) if row[0] < start and row[4] not in torn]
        assert lost == [], (before, start)

    @rule(share=st.floats(0, 1))
    def retain(self, share):
        self.log.sync()
        partition = self.log.partition
        before = partition.start_offset  # maybe in a transaction that had ended, until a cut opened it again
        first_open = min((rows[0][0] for rows in self.log.open_records.values()), default=None)
        partition.config = dataclasses.replace(self.log.config, retention_bytes=int(partition.size * share))
        partition.deletion.apply_retention(self.log.now_ms)
        partition.deletion.remove_deleted(self.log.now_ms)
        partition.config = self.log.config
        assert first_open is None or partition.start_offset <= max(before, first_open)
        start = partition.visible_start(Isolation.READ_COMMITTED)
        assert start >= self.log.log_start
        assert self.log.read_all(start, 1 << 20) == self.log.expected()

    @rule(data=st.data())
    def truncate(self, data):
        self.log.sync()
        partition = self.log.partition
        to = data.draw(st.integers(partition.start_offset, partition.end_offset))
        if to < partition.visible_start(Isolation.READ_COMMITTED):
            return
        partition.replication.truncate_to(to)
        end = partition.end_offset
        self.forget_from(end)

    def forget_from(self, end):
        log = self.log
        # A commit of which the marker is gone is open again; what was written from there on is gone.
        log.written = [row for row in log.written if row[0] < end]
        by_producer = {txn.producer_id: txn.first_offset for txn in log.partition.log.open_transactions()}
        log.open_records = {}
        data, at = b"", log.partition.start_offset
        while at < end:  # a read ends with its segment
            read = log.partition.read(at, 1 << 30, Isolation.LOG_END)
            data, at = data + b"".join(read.buffers), read.end_offset
        for position, header in headers_in(data):
            first = by_producer.get(header.producer_id)
            if first is not None and header.is_transactional and header.base_offset >= first:
                log.open_records.setdefault(header.producer_id, []).extend(
                    (record.offset, record.value.strip()) for record in decode_records(data, position)
                )
        log.sequences = {one.producer_id: one.last_sequence + 1 for one in log.partition.log.producers}

    @rule(data=st.data(), size_max=st.sampled_from([1, 100, 700, 6000, 1 << 20]))
    def fetch_from_anywhere(self, data, size_max):
        partition = self.log.partition
        start = partition.visible_start(Isolation.READ_COMMITTED)
        position = data.draw(st.integers(start, partition.last_stable_offset))
        expected = [row for row in self.log.expected() if row[0] >= position]
        assert self.log.read_all(position, size_max) == expected

    @rule(ms=st.integers(-10, 5000))
    def look_up_a_time(self, ms):
        partition = self.log.partition
        there = {position for position, _ in self.log.expected()}
        visible = sorted(row for row in self.log.written if row[0] in there)
        expected = next((row[0] for row in visible if row[3] >= NOW_MS + ms), None)
        found = self.answer(
            lambda: run_lookup(look_up_time(partition, NOW_MS + ms, Isolation.READ_COMMITTED))
        )
        assert (found and found[0]) == expected

    @rule(cut=st.integers(0, 30))
    def cut(self, cut):
        partition = self.log.partition
        start = partition.visible_start(Isolation.READ_COMMITTED)
        later = [
            row[0] for row in self.log.written if row[4] > cut and start <= row[0] < partition.high_watermark
        ]
        expected = {min(later) if later else partition.last_stable_offset}
        if any(row[4] > cut and row[0] < start for row in self.log.written):
            expected.add(start)  # as long as an index knows of what was removed
        found = self.answer(lambda: partition.view.offset_after(cut))
        # Between two positions of the same cut there is no record.
        read = [position for position, _ in self.log.expected()]
        assert any(
            not any(min(found, one) <= position < max(found, one) for position in read) for one in expected
        )

    @rule()
    def what_was_removed_is_known_or_said_to_be_unknown(self):
        there = {position for position, _ in self.log.expected()}
        rows = [row for row in self.log.written if row[4] >= 0 and row[0] < self.log.partition.high_watermark]
        removed = max((row[4] for row in rows if row[0] not in there), default=-1)
        whole = min((row[4] for row in rows if row[4] > removed), default=None)
        found = self.answer(self.log.partition.view.removed_sequence)
        if found is None:
            assert whole is None
        else:
            assert removed <= found
            assert whole is None or found < whole

    @invariant()
    def the_end_is_behind_the_last_that_can_be_read(self):
        expected = self.log.expected()
        start = self.log.partition.visible_start(Isolation.READ_COMMITTED)
        if expected:
            assert self.log.partition.last_stable_offset > expected[-1][0]
        else:
            assert self.log.partition.last_stable_offset >= start

    def teardown(self):
        try:
            if hasattr(self, "log"):
                self.log.sync()
                assert list(verify_view(self.log.disk, DIRECTORY)) == []
                assert (
                    self.log.read_all(self.log.partition.visible_start(Isolation.READ_COMMITTED), 1 << 20)
                    == self.log.expected()
                )
        finally:
            if hasattr(self, "patched"):
                self.patched.undo()


History.TestCase.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
)
test_the_view_equals_a_sort_by_commit_marker = History.TestCase


def test_a_transaction_over_two_segments_stays_whole_when_nothing_is_cut_from_the_log():
    history = History()
    log = history.log = Log(segment_bytes=400)
    log.append(1, count=4)
    log.partition.roll(log.now_ms)
    log.append(1, count=4)
    log.sync()
    log.partition.replication.truncate_to(log.partition.end_offset)
    history.forget_from(log.partition.end_offset)
    log.end(1)
    log.sync()
    assert len(log.read_all(0, 1 << 20)) == 8
    assert log.read_all(0, 1 << 20) == log.expected()


def test_a_time_in_a_long_run_is_found_without_reading_what_is_older(monkeypatch):
    log = Log()
    for _ in range(600):
        log.now_ms += 1
        log.plain()
    log.sync()
    log.reopen(clean=False)
    decoded = []

    def counted(batch, *args, **named):
        decoded.append(batch)
        return find_by_time(batch, *args, **named)

    monkeypatch.setattr("stablelog.log.search.times.find_by_time", counted)
    assert run_lookup(look_up_time(log.partition, NOW_MS + 590, Isolation.READ_COMMITTED))[:2] == (
        589,
        NOW_MS + 590,
    )
    assert len(decoded) == 1


def test_what_was_removed_ends_with_the_commit_before_the_first_that_is_left():
    log = Log(file_delete_delay_ms=0)
    for _ in range(3):
        log.append(1)
        log.end(1)
    log.partition.roll(log.now_ms)
    start = log.partition.end_offset
    for _ in range(2):
        log.append(1)
        log.end(1)
    log.sync()
    assert log.partition.view.removed_sequence() == -1
    log.partition.deletion.delete_records(start)
    log.reopen()
    assert len(log.partition.segments()) == 1
    assert log.partition.view.removed_sequence() == 3
    assert all(log.partition.view.offset_after(g) >= log.partition.view.start_offset for g in range(6))


def test_a_commit_behind_what_a_sync_has_made_durable_is_not_shown_by_it():
    log = Log()
    log.append(1)
    log.end(1)
    work = log.partition.sync_work()
    log.append(2)
    log.end(2)
    work.run()
    log.partition.finish_sync(work)
    assert log.partition.last_stable_offset == log.partition.high_watermark == 3
    assert [payload for _, payload in log.read_all(0, 1 << 30)] == [b"0"]
    log.sync()
    assert [payload for _, payload in log.read_all(0, 1 << 30)] == [b"0", b"1"]


def test_markers_of_transactions_that_wrote_nothing_are_nothing_to_a_proof():
    log = Log()
    log.append(1)
    log.end(1)
    log.end(2)  # a commit without records
    log.append(1)
    log.end(1, commit=False)
    log.append(3)
    log.end(3)
    log.partition.roll(log.now_ms)
    log.sync()
    assert list(verify_view(log.disk, DIRECTORY)) == []
    assert log.read_all(0, 1 << 30) == log.expected()


def test_a_lookup_in_a_run_ends_with_the_run():
    """Behind it stands a batch of an open transaction, which has the time that is looked for."""
    log = Log()
    log.now_ms += 1000
    log.plain()
    log.now_ms -= 500
    log.plain()
    log.now_ms += 500
    log.append(1)
    log.sync()
    assert run_lookup(look_up_time(log.partition, NOW_MS + 1000, Isolation.READ_COMMITTED))[0] == 0
    log.partition.deletion.delete_records(1)
    assert run_lookup(look_up_time(log.partition, NOW_MS + 500, Isolation.READ_COMMITTED))[0] == 1
    assert run_lookup(look_up_time(log.partition, NOW_MS + 501, Isolation.READ_COMMITTED)) is None


@pytest.mark.parametrize("step", [2, 3, 100])
def test_runs_in_which_a_time_is_not_found_are_passed_over_step_by_step(monkeypatch, step):
    monkeypatch.setattr(stored_view, "STEP_COUNT_MAX", step)
    log = Log()
    log.now_ms += 1000
    log.plain()
    log.now_ms -= 1000
    for _ in range(10):  # runs of two batches each, parted by what is aborted
        log.append(1)
        log.end(1, commit=False)
        log.plain()
        log.plain()
    log.now_ms += 500
    log.plain()
    log.sync()
    last = log.expected()[-1][0]
    assert run_lookup(look_up_time(log.partition, NOW_MS + 500, Isolation.READ_COMMITTED))[0] == 0
    log.partition.deletion.delete_records(1)
    steps = list(look_up_time(log.partition, NOW_MS + 500, Isolation.READ_COMMITTED))
    assert (len(steps) > 3) == (step < 4)
    assert run_lookup(look_up_time(log.partition, NOW_MS + 500, Isolation.READ_COMMITTED))[0] == last
    assert run_lookup(look_up_time(log.partition, NOW_MS + 501, Isolation.READ_COMMITTED)) is None


def test_records_without_a_time_are_not_the_newest():
    log = Log()
    log.partition.append(encode_batch([Record(0, -1, None, b"x")]), now_ms=log.now_ms)
    log.sync()
    assert log.fetched(0)[0] == [(0, b"x")]
    assert run_lookup(look_up_newest(log.partition, Isolation.READ_COMMITTED)) is None


def test_what_is_known_of_torn_transactions_grows_with_the_log_start_and_goes_with_the_index(monkeypatch):
    log = Log(file_delete_delay_ms=0)
    for producer in (1, 2, 3):
        log.append(producer, size=1000)
        log.partition.roll(log.now_ms)
    for producer in (1, 2, 3):
        log.end(producer)
    log.plain()
    log.partition.roll(log.now_ms)
    log.plain()
    log.sync()
    view = log.partition.view
    assert view.torn_sequence() == -1
    ends = [row[0] + 1 for row in log.written if row[4] > 0]
    for torn, start in enumerate(ends, 1):
        log.partition.deletion.delete_records(start)
        assert [view.torn_sequence() for _ in range(2)] == [torn] * 2
        assert log.read_all(start, 1 << 20) == log.expected()
        with monkeypatch.context() as patch:
            patch.setattr(CommitIndex, "__getitem__", None)
            assert view.torn_sequence() == torn, "no entry is looked at twice"
    log.partition.deletion.delete_records(log.partition.high_watermark)
    assert view.torn_sequence() == -1


@pytest.mark.parametrize("with_commit", [False, True])
def test_as_long_as_the_log_is_whole_it_is_known_that_no_commit_was_removed(with_commit):
    log = Log()
    log.plain(5)
    log.append(1)
    log.end(1, commit=False)
    log.commit_sequence = 6  # commits in other partitions
    if with_commit:
        log.append(1)
        log.end(1)
    log.sync()
    view = log.partition.view
    for start in (0, 3, 5, 7):
        log.partition.deletion.delete_records(start)
        assert (view.start_offset, view.removed_sequence()) == (start, -1)
    log.reopen()
    assert log.partition.view.removed_sequence() == -1
    if with_commit:
        log.partition.deletion.delete_records(log.partition.high_watermark)
        assert log.partition.view.removed_sequence() == 7
