"""What stays of segments from which aborted data is removed. `|` begins a segment; `P1.` is a batch without records,
and `P1a!` an abort marker with an entry in the transaction index.
"""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.batch.header import headers_in
from stablelog.batch.markers import read_marker
from stablelog.errors import DamageError
from stablelog.log.compaction import aborted_data, policy, rewriter
from stablelog.log.compaction.aborted_data import RewrittenLog, without_aborted
from stablelog.log.files.names import INDEX_SUFFIXES, LOG, SUMMARY
from stablelog.log.indexes.transaction_index import TransactionIndex
from stablelog.log.partition import Isolation
from stablelog.log.retention import count_too_old
from stablelog.log.verify import verify_directory
from stablelog.testing.sim_disk import SimDisk
from stablelog.testing.sim_faults import SimulatedCrash
from tests.log.timeline import DIRECTORY, NOW_MS, Log
from tests.scale import examples

HOUR_MS = 3_600_000


def written(words, **config):
    """A log with these words."""
    log = Log(**config)
    for word in words.split():
        log.partition.roll(log.now_ms) if word == "|" else log.one(word)
        log.sync()
    return log


def described(log, place):
    """One segment of a log without its aborted data; None if it stays as it is."""
    segment = log.partition.segments()[place]
    spanning = log.partition.log.aborted_behind(segment.end_offset)
    steps = without_aborted(log.disk, log.directory, segment.summary, spanning, index_interval=100)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def content_of(log, place):
    """The summary, the indexes and the log file of a segment without its aborted data."""
    segment = log.partition.segments()[place]
    original = log.disk.read_bytes(segment.path(LOG))
    new = described(log, place)
    if new is None:
        indexes = [log.disk.read_bytes(segment.path(one)) for one in INDEX_SUFFIXES[:2]]
        return segment.summary, (*indexes, b"".join(map(encoded, entries_of(segment)))), original
    return new.summary, new.indexes, new.log.read(lambda at, size: original[at : at + size], 0, new.log.size)


def encoded(txn):
    from stablelog.log.indexes.transaction_index import ENTRY

    return ENTRY.pack(0, *txn)


def entries_of(segment):
    return [segment.txn_index[place] for place in range(len(segment.txn_index))]


def words_of(content, txnindex):
    index = TransactionIndex(txnindex)
    entries = {index[place].last_offset: index[place] for place in range(len(index))}
    found = []
    for position, header in headers_in(content):
        name = f"P{header.producer_id}" if header.has_producer else ""
        if header.is_control:
            marker = read_marker(content, position)
            name += "ac"[marker.type] + "!" * (header.base_offset in entries)
            entries.pop(header.base_offset, None)
        elif not header.record_count:
            name += "."
        found.append(f"{header.base_offset}:{name or '-'}")
    assert not entries, "an entry without its marker"
    return " ".join(found)


def left(words, place=0):
    """What stays of one segment, told in words; None if it stays as it is."""
    log = written(words)
    if described(log, place) is None:
        return None
    _, indexes, content = content_of(log, place)
    return words_of(content, indexes[2])


@pytest.mark.parametrize(
    ("words", "stays"),
    [
        # A transaction that is whole in the segment goes with its marker and its entry.
        ("P1 P1 P1a P1 P1c |", "3:P1 4:P1c"),
        ("P1 P1a P1 P1a P1 P1c - |", "4:P1 5:P1c 6:-"),
        ("P1 P2 P1 P2c P1a P1 P1c |", "1:P2 3:P2c 5:P1 6:P1c"),
        # The last batch of a producer keeps its sequence, and with it stay the marker and the entry.
        ("P1 P1 P1a |", "0:P1. 1:P1. 2:P1a!"),
        ("P1 P1a |", "0:P1. 1:P1a!"),
        ("P1 P1 P1 P1a |", "0:P1. 2:P1. 3:P1a!"),
        ("P1 P1a P1 P1 P1a - |", "2:P1. 3:P1. 4:P1a! 5:-"),
        # Nothing of other transactions goes.
        ("P1 P1 P1c - |", None),
        ("P1 P1 | P1c", None),
        ("P1a - P1 P1c |", None),
        # The last batch of a segment stays.
        ("- P1 P1 P1 | P1 P1a P1 P1c", "0:- 1:P1. 3:P1."),
        ("P2 P1 P2c P1 P1 P2 P2c P1 P1 | P1 P1a", "0:P2 1:P1. 2:P2c 5:P2 6:P2c 8:P1."),
    ],
)
def test_what_stays_of_a_segment(words, stays):
    assert left(words) == stays


def test_a_transaction_in_several_segments_keeps_its_marker_and_its_entry():
    words = "P1 P1 P1 - | P1 P1 - | P1 P1 P1a P1 P1c - |"
    assert left(words, 0) == "0:P1. 2:P1. 3:-"
    assert left(words, 1) == "5:P1. 6:-"
    assert left(words, 2) == "9:P1a! 10:P1 11:P1c 12:-"


def test_the_first_batch_of_a_transaction_that_ends_later_stays_without_records():
    words = "P1 - | P1 P1 P1 P2 P2c | P2 P2 P2c P1 P1a"
    assert left(words, 1) == "4:P1. 5:P2 6:P2c"
    words = "P1 P2 P1 P1 | P2a P1a P1 P1c P2 P2c"
    assert left(words, 0) == "0:P1. 1:P2. 3:P1."


def test_a_segment_may_lose_everything_up_to_its_end():
    words = "P1 P2 | P1 P1 P2 P2 P2 | - P1 P1a P2 P2a"
    log = written(words)
    summary, _, content = content_of(log, 1)
    assert words_of(content, b"") == "3:P1. 6:P2."
    assert (summary.end_offset, summary.record_count, summary.max_timestamp) == (7, 0, -1)


def test_records_outside_transactions_and_of_the_same_producer_stay():
    log = Log()
    log.append(1)
    log.end(1, commit=False)
    log.append(1, transactional=False)
    log.partition.roll(NOW_MS)
    log.sync()
    assert words_of(content_of(log, 0)[2], b"") == "2:P1"


def test_the_summary_of_a_copy_counts_what_stays_and_all_that_is_committed():
    log = written("- P1 P2 P1 P1a P2c P1 P1c |")
    [original] = [one.summary for one in log.partition.segments() if one.summary]
    summary, (_, _, txnindex), content = content_of(log, 0)
    assert (original.record_count, summary.record_count) == (5, 3)
    assert summary.committed_count == original.committed_count == 3
    assert (summary.txnindex_size, txnindex, summary.least_aborted_offset) == (0, b"", -1)
    assert summary.stable_offset == original.stable_offset
    assert summary.log_size == len(content) < original.log_size


def test_an_abort_whose_marker_is_not_synced_is_not_used():
    log = Log()
    log.write("P1 P1 P1 -")
    log.partition.roll(NOW_MS)
    log.sync()
    log.one("P1a")
    log.partition.assume_synced()
    assert log.partition.last_stable_offset == 5
    assert described(log, 0) is None
    log.sync()
    log.write("-")
    assert words_of(content_of(log, 0)[2], b"") == "0:P1. 2:P1. 3:-"


def test_a_segment_of_too_many_producers_stays_as_it_is(monkeypatch):
    words = "P1 P1 P1a P2 P2 P2a P3 P3 P3a |"
    assert left(words) == "0:P1. 1:P1. 2:P1a! 3:P2. 4:P2. 5:P2a! 6:P3. 7:P3. 8:P3a!"
    monkeypatch.setattr(aborted_data, "PRODUCERS_MAX", 2)
    assert left(words) is None


def test_the_result_does_not_depend_on_how_many_entries_are_read_at_a_time(monkeypatch):
    words = "P1 P2 P3 P1 P1a P1 P2 P1a P3a P1 P1 P1a P2a P1 P2 P3 P1c P2c P3c |"
    whole = left(words)
    assert whole == "13:P1 14:P2 15:P3 16:P1c 17:P2c 18:P3c"
    monkeypatch.setattr(policy, "WINDOW", 0)
    assert left(words) == whole


def test_a_transaction_whose_marker_is_gone_ends_where_the_marker_was():
    # Kafka's compaction may leave an entry without its marker.
    from stablelog.log.indexes.transaction_index import AbortedTxn

    log = written("- P1 P1c P1 P1c |")
    segment = log.partition.segments()[0]
    steps = without_aborted(
        log.disk, log.directory, segment.summary, [AbortedTxn(1, 0, 0, 5)], index_interval=100
    )
    with pytest.raises(StopIteration) as end:
        while True:
            next(steps)
    assert end.value.value is None


# -- the bytes of a copy --------------------------------------------------------------------------------------


@pytest.mark.extended
@given(
    st.lists(st.one_of(st.tuples(st.integers(0, 40), st.integers(1, 9)), st.binary(min_size=1, max_size=5)))
)
def test_bytes_of_a_copy_are_found_at_any_position(parts):
    original = bytes(range(50))
    log, wanted = RewrittenLog(), b""
    for part in parts:
        if isinstance(part, bytes):
            log.add_new(part)
            wanted += part
        else:
            log.add_range(*part)
            wanted += original[part[0] : part[0] + part[1]]
    assert log.size == len(wanted)
    for position in range(len(wanted) + 1):
        for size in (1, 3, 100):
            found = log.read(lambda at, size: original[at : at + size], position, size)
            assert found == wanted[position : position + size]


def test_ranges_that_follow_each_other_are_one():
    log, calls = RewrittenLog(), []

    def original(at, size):
        calls.append((at, size))
        return bytes(size)

    log.add_range(10, 5)
    log.add_range(15, 5)
    log.add_new(b"new")
    log.add_range(23, 2)
    log.read(original, 0, 100)
    assert calls == [(10, 10), (23, 2)]


def test_an_original_that_has_become_shorter_is_an_error():
    log = RewrittenLog()
    log.add_range(0, 10)
    with pytest.raises(DamageError, match="ends at byte 4"):
        log.read(lambda _at, _size: bytes(4), 0, 10)


# -- a log of copies ------------------------------------------------------------------------------------------


WORDS = st.lists(
    st.one_of(
        st.sampled_from(("P1", "P1", "P2", "P2", "P3", "-")),
        st.sampled_from(("P1c", "P1a", "P1a", "P2c", "P2a", "P2a", "P3c", "P3a", "|")),
    ),
    min_size=20,
    max_size=60,
)


def restored(log, *, with_indexes):
    """A log that has only the copies of the segments of another one."""
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    for place, segment in enumerate(log.partition.segments()):
        if segment.summary is None:
            continue
        summary, indexes, content = content_of(log, place)
        files = {LOG: content}
        if with_indexes:
            files |= zip(INDEX_SUFFIXES, indexes, strict=True)
            files[SUMMARY] = summary.encode()
            if not indexes[2]:
                del files[INDEX_SUFFIXES[2]]
        for suffix, data in files.items():
            disk.write_atomic(segment.path(suffix), data)
    log.partition.roll(NOW_MS)
    last = log.partition.segments()[-1]
    disk.write_atomic(last.path(LOG), b"")
    return Log(disk)


@pytest.mark.extended
@settings(max_examples=examples(30), deadline=None)
@given(WORDS, st.booleans())
def test_a_log_of_copies_replays_to_the_same_producers_and_to_the_entries_that_stay(words, with_indexes):
    log = written(" ".join([*words, "P1a", "P2a", "P3a", "-", "|"]))
    kept = []
    for place, segment in enumerate(log.partition.segments()):
        if segment.summary is not None:
            index = TransactionIndex(content_of(log, place)[1][2])
            kept += [index[number][:3] for number in range(len(index))]
    copy = restored(log, with_indexes=with_indexes)
    assert list(verify_directory(copy.disk, copy.directory)) == []
    assert [txn[:3] for txn in copy.all_aborted()] == kept
    assert {txn[:3] for txn in kept} <= {txn[:3] for txn in log.all_aborted()}
    assert copy.partition.end_offset == log.partition.end_offset
    assert copy.stable_offset == log.stable_offset
    same = [
        (one.producer_id, one.producer_epoch, one.batches[-1:], one.txn_first_offset)
        for one in log.partition.log.producers
    ]
    assert same == [
        (one.producer_id, one.producer_epoch, one.batches[-1:], one.txn_first_offset)
        for one in copy.partition.log.producers
    ]


# -- local segments -------------------------------------------------------------------------------------------


def cleaned(log):
    """Remove aborted data from the local segments. Return how many were replaced."""
    work = log.partition.compaction.begin_pass(log.now_ms, key_count_max=1)
    if work is None:
        return None
    count = 0
    for one in work.steps():
        if one is not None:
            assert log.partition.compaction.put_in_place(one)
            count += one.changed
    log.partition.compaction.end_pass(work)
    assert list(verify_directory(log.disk, log.directory)) == []
    return count


def committed(log):
    """The headers of the batches that a read-committed reader delivers."""
    found, offset = [], log.partition.start_offset
    while offset < log.stable_offset:
        one = log.partition.read(offset, 1 << 20, Isolation.READ_COMMITTED)
        spans = [(txn.producer_id, txn.first_offset, txn.last_offset) for txn in one.aborted]
        found += [
            header
            for _, header in headers_in(b"".join(bytes(part) for part in one.buffers))
            if not header.is_control
            and header.record_count
            and not any(
                header.is_transactional and header.producer_id == who and first <= header.base_offset <= last
                for who, first, last in spans
            )
        ]
        assert one.end_offset > offset
        offset = one.end_offset
    return found


def told(summary):
    """What a summary tells except for the sparse indexes, which depend on the interval of their entries."""
    return replace(summary, index_size=0, index_crc=0, timeindex_size=0, timeindex_crc=0)


@pytest.mark.extended
@settings(max_examples=examples(30), deadline=None)
@given(WORDS, st.booleans())
def test_local_segments_lose_the_same_bytes_as_copies(words, is_late):
    log = written(" ".join([*words, "P1a", "P2a", "P3a", "-", "|"]), drops_aborted=True)
    if not is_late:
        log.write("-")
    before, plain = committed(log), log.partition.size
    copies = [content_of(log, place) for place, one in enumerate(log.partition.segments()) if one.summary]
    cleaned(log)
    segments = [one for one in log.partition.segments() if one.summary]
    assert [log.disk.read_bytes(one.path(LOG)) for one in segments] == [content for _, _, content in copies]
    assert [told(one.summary) for one in segments] == [told(summary) for summary, _, _ in copies]
    assert committed(log) == before
    assert log.partition.size <= plain
    # A second pass, after a restart, changes nothing. So a pass need not be recorded.
    log.reopen()
    assert cleaned(log) in (0, None)
    assert committed(log) == before


@pytest.mark.parametrize("place", [65, -1])
def test_a_damaged_batch_is_an_error_of_a_pass(place):
    log = written("P1 P1 P1a P1 P1c |", drops_aborted=True)
    path = log.partition.segments()[0].path(LOG)
    content = bytearray(log.disk.read_bytes(path))
    content[place] ^= 1
    log.disk.write_atomic(path, bytes(content))
    work = log.partition.compaction.begin_pass(log.now_ms, key_count_max=1)
    with pytest.raises(DamageError, match=r"the CRC of the batch at offset"):
        list(work.steps())
    assert not any(name.endswith(rewriter.CLEANED) for name in log.disk.list_dir(log.directory))


def test_a_damaged_marker_ends_a_copy_and_damaged_records_are_copied_as_they_are():
    log = written("P1 P1 P1a P1 P1c |")
    path = log.partition.segments()[0].path(LOG)
    content = log.disk.read_bytes(path)
    log.disk.write_atomic(path, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DamageError, match="the CRC of the batch at offset 4"):
        described(log, 0)
    at = [position for position, _ in headers_in(content)][3] + 65
    log.disk.write_atomic(path, content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    assert words_of(content_of(log, 0)[2], b"") == "3:P1 4:P1c"


@pytest.mark.extended
def test_a_stop_at_any_operation_of_a_pass_loses_nothing():
    words = "P1 P2 P1 P1 | P1 P2 P1a P2c P1 P1c | P3 P3 P3a - |"
    wanted = committed(written(words))
    chance, crash_at, is_stopped = random.Random(7), 0, True
    while is_stopped:
        crash_at += 1
        log = written(words, drops_aborted=True)
        log.disk.crash_at = log.disk.steps + crash_at
        is_stopped = False
        try:
            cleaned(log)
        except SimulatedCrash:
            is_stopped = True
        after = Log(log.disk.crash(chance), drops_aborted=True)
        assert committed(after) == wanted
        assert list(verify_directory(after.disk, after.directory)) == []
        cleaned(after)
        assert committed(after) == wanted
    assert crash_at > 50


# -- retention ------------------------------------------------------------------------------------------------


def test_a_segment_that_lost_all_its_records_is_deleted_with_the_next_one():
    log = written("P1 - | P1 P1 P1 | - P1 P1a P1 P1c | -", drops_aborted=True, retention_ms=HOUR_MS)
    cleaned(log)
    log.partition.deletion.delete_records(2)
    segments = log.partition.log.segments
    assert [one.record_count for one in segments][:2] == [0, 2]
    assert count_too_old(segments, log.config, log.now_ms, log.now_ms) == 0
    assert log.partition.deletion.apply_retention(log.now_ms) == 0
    assert log.partition.start_offset == 2
    later_ms = log.now_ms + 2 * HOUR_MS
    assert count_too_old(segments, log.config, later_ms, later_ms) == 3
    assert (
        count_too_old(
            segments, replace(log.config, cleanup_policy=frozenset({"compact"})), log.now_ms, log.now_ms
        )
        == 1
    )
