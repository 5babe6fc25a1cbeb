"""Tables of bounds: what parts of the log answer for the last value that they accept, and for the first that they do not."""

import itertools
import random
from dataclasses import replace

import pytest
from crc32c import crc32c

from stablelog.batch.header import headers_in, read_header
from stablelog.batch.markers import Marker, MarkerType, encode_marker
from stablelog.batch.records import Record, encode_batch
from stablelog.errors import DamageError, NewerFormatError, OffsetOutOfRangeError, RefusedError, UnprovenError
from stablelog.log import partition as partition_module
from stablelog.log.append import PlannedBatch, fitting
from stablelog.log.compaction import policy as compaction
from stablelog.log.compaction import rewriter
from stablelog.log.files.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.files.log_start import decode_log_start, encode_log_start
from stablelog.log.files.names import SegmentName
from stablelog.log.indexes import transaction_index
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.time_index import TimeIndex
from stablelog.log.indexes.transaction_index import AbortedTxn, TransactionIndex
from stablelog.log.model import Appended, Isolation, LogConfig, MarkerWrite, Origin
from stablelog.log.producer_state import producer_table
from stablelog.log.producer_state.producer import KeptBatch, Producer
from stablelog.log.producer_state.producer_table import ProducerTable
from stablelog.log.producer_state.producers import Producers
from stablelog.log.producer_state.snapshots import (
    FoundSnapshots,
    ProducersFile,
    SnapshotFile,
    Snapshots,
    decode_producers,
    decode_snapshot,
)
from stablelog.log.recovery import examine as examine_module
from stablelog.log.recovery import replay, tail
from stablelog.log.recovery.epoch_check import check_epochs, latest_epoch, latest_epoch_of_all
from stablelog.log.recovery.repair import examine
from stablelog.log.retention import count_too_much, count_too_old
from stablelog.log.search.times import finished
from stablelog.log.segments import growing_segment as growing_segment_module
from stablelog.log.segments import scan as scan_module
from stablelog.log.segments import segment as segment_module
from stablelog.log.segments.growing_segment import GrowingSegment
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.proof import DamagedBatch
from stablelog.log.segments.sealed_segment import SealedSegment
from stablelog.log.verify import segment as segment_proof
from stablelog.log.verify import verify_directory
from stablelog.log.verify.snapshots import agrees_with_log
from stablelog.testing.sim_disk import SimDisk
from tests.log.compaction.test_policy import KeyedLog
from tests.log.known import Batch as KnownBatch
from tests.log.known import Known
from tests.log.test_damage import changed, headers, path_of, several_segments
from tests.log.timeline import DIRECTORY, NOW_MS, Log

# -- indexes and segments -------------------------------------------------------------------------------------------


def indexes():
    offsets, times, txns = OffsetIndex(7), TimeIndex(7), TransactionIndex()
    for at in range(1, 4):
        offsets.append(7 + at, 100 * at)
        times.append_if_later(NOW_MS + at, 7 + at)
        txns.append(AbortedTxn(1, 7, 7 + at, 7))
    return offsets, times, txns


@pytest.mark.parametrize("which", range(3), ids=["offsets", "times", "transactions"])
def test_an_index_has_entries_from_0_to_its_length(which):
    index = indexes()[which]
    assert len({index[place] for place in range(len(index))}) == 3
    for place in (-1, 3, -4):
        with pytest.raises(IndexError):
            index[place]


def grown(size=200):
    """A growing segment that begins at offset 10, with a batch of that size and one entry in each index."""
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    segment = GrowingSegment.created(disk, SegmentName.of(DIRECTORY, 10))
    for at, base in enumerate((10, 11)):
        batch = encode_batch([Record(0, NOW_MS + at, None, bytes(size // 2 - 70))], base_offset=base)
        header = read_header(batch)
        segment.append((batch,))
        segment.note(header, segment.size, batch[:61], 10)
    return segment


def test_a_segment_has_room_up_to_each_bound():
    segment = grown()
    assert (len(segment.offset_index), len(segment.time_index)) == (1, 1)
    for size, last_offset, index_bytes, fits in (
        (50, 20, 36, True),
        (51, 20, 36, False),  # bytes of the log file
        (50, 10 + 2**31 - 1, 36, True),
        (50, 10 + 2**31, 36, False),  # what an entry can say
        (50, 20, 35, False),  # two entries of the time index, and one place for the last entry
    ):
        assert segment.has_room(size, last_offset, segment.size + 50, index_bytes) is fits


def test_the_offset_index_bounds_a_segment_where_all_times_are_equal():
    segment = grown()
    for at in range(2, 20):
        batch = encode_batch([Record(0, NOW_MS, None, b"")], base_offset=10 + at)
        segment.append((batch,))
        segment.note(read_header(batch), segment.size, batch[:61], 10)
    count = len(segment.offset_index)
    assert (count, len(segment.time_index)) == (19, 1)
    assert segment.has_room(1, 99, 10**6, (count + 1) * 8)
    assert not segment.has_room(1, 99, 10**6, (count + 1) * 8 - 1)


def test_a_damaged_batch_refuses_exactly_the_reads_that_touch_it():
    segment = GrowingSegment(SimDisk(), SegmentName.of(DIRECTORY, 0))
    batches = [DamagedBatch(300, 50, 3), DamagedBatch(100, 20, 1), DamagedBatch(500, 1, 5)]
    assert [segment.note_damaged(batch) for batch in batches] == [True] * 3
    assert [segment.note_damaged(batch) for batch in batches] == [False] * 3
    assert [batch.position for batch in segment.damaged_batches] == [100, 300, 500]
    places = [0, 99, 100, 101, 119, 120, 121, 299, 300, 349, 350, 499, 500, 501, 600]
    for begin, end in itertools.combinations(places, 2):
        touched = [b for b in batches if set(range(begin, end)) & set(range(b.position, b.position + b.size))]
        if touched:
            with pytest.raises(DamageError, match=str(path_of(0))):
                segment.check_undamaged(begin, end)
        else:
            segment.check_undamaged(begin, end)
    for place in places:
        behind = min((batch.position for batch in batches if batch.position >= place), default=None)
        found = segment.damaged_behind(place)
        assert (found and found.position) == behind


@pytest.mark.parametrize("isolation", Isolation)
def test_a_read_ends_before_a_damaged_batch_and_is_refused_in_it(isolation):
    log = Log().write("- - - - -")
    (segment,) = log.partition.segments()
    size = segment.size // 5
    segment.note_damaged(DamagedBatch(2 * size, size, 2))
    segment.note_damaged(DamagedBatch(4 * size, size, 4))
    assert log.partition.log.segments.damaged_count == 2
    for start, end in ((0, 2), (1, 2), (2, None), (3, 4), (4, None)):
        if end is None:
            with pytest.raises(DamageError, match=f"the CRC of the batch of offset {start}"):
                log.partition.read(start, 10**6, isolation)
        else:
            assert log.partition.read(start, 10**6, isolation).end_offset == end


def test_markers_are_written_together_as_far_as_a_segment_can_hold_them():
    def planned(*counts):
        found, offset = [], 100
        for count in counts:
            batch = encode_marker(
                Marker(MarkerType.COMMIT, 0),
                base_offset=offset,
                leader_epoch=0,
                producer_id=1,
                producer_epoch=0,
                timestamp_ms=NOW_MS,
                position_count=count,
            )
            found.append(PlannedBatch(read_header(batch), batch[:61], (batch,)))
            offset = found[-1].header.next_offset
        return found

    for batches in (planned(0, 3, 5), planned(2, 3, 5), planned(4)):
        lasts = [one.header.last_offset - 100 for one in batches]
        assert lasts == sorted(lasts)
        for limit in range(lasts[-1] + 2):
            assert fitting(batches, limit) == max(1, sum(last <= limit for last in lasts))


def test_a_batch_says_no_more_records_than_it_has_room_for():
    """A record takes 7 bytes at the least. A batch that says more would take offsets that nothing stands at. The header
    is enough to see it.
    """
    log = Log(proves_records=False)
    plain = encode_batch([Record(0, NOW_MS, None, bytes(42))])
    room = (len(plain) - 61) // 7
    assert (len(plain) - 61) % 7 == 0
    for count, is_taken in ((room - 1, True), (room, True), (room + 1, False), (room + 9, False)):
        batch = bytearray(plain)
        batch[23:27], batch[57:61] = (count - 1).to_bytes(4, "big"), count.to_bytes(4, "big")
        batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
        if is_taken:
            appended = log.partition.append(bytes(batch), now_ms=NOW_MS)
            assert appended.last_offset - appended.first_offset == count - 1
        else:
            with pytest.raises(RefusedError, match=f"{count} records in {len(plain) - 61} bytes"):
                log.partition.append(bytes(batch), now_ms=NOW_MS)


@pytest.mark.parametrize(("retention_ms", "count"), [(-1, 0), (9, 3), (10, 0)])
def test_without_a_limit_no_segment_is_too_old_or_too_much(retention_ms, count):
    log = Log(segment_bytes=1).write("- - -")
    log.partition.roll(NOW_MS)
    config = LogConfig(retention_ms=retention_ms)
    assert count_too_old(log.partition.log.segments, config, NOW_MS + 10, NOW_MS + 10) == count
    sizes = [segment.size for segment in log.partition.segments()]
    for stay, too_much in ((-1, 0), (sum(sizes), 0), (sum(sizes) - sizes[0], 1), (0, 3)):
        assert count_too_much(log.partition.log.segments, LogConfig(retention_bytes=stay)) == too_much


def test_an_append_tells_where_it_went_and_by_which_time():
    for by_broker, order in itertools.product((False, True), ("offset", "commit")):
        log = Log(message_timestamp_type="LogAppendTime" if by_broker else "CreateTime", order=order)
        log.write("- - -")
        log.partition.deletion.delete_records(1)
        log.now_ms += 9
        time_ms = log.now_ms if by_broker else -1
        assert log.append(1, count=4) == Appended(3, 6, time_ms)
        log.now_ms += 1
        assert log.append(1, count=4, sequence=0) == Appended(3, 6, time_ms, duplicate=True)
        log.append(2, count=2)
        markers = [
            MarkerWrite(1, 0, Marker(MarkerType.COMMIT, 0)),
            MarkerWrite(1, 0, Marker(MarkerType.COMMIT, 0)),
            MarkerWrite(2, 0, Marker(MarkerType.ABORT, 0)),
        ]
        last = (
            9 if order == "offset" else 13
        )  # in commit order, the marker takes an offset for each record, too
        assert log.partition.append_markers(markers, now_ms=log.now_ms) == [
            Appended(9, last, log.now_ms),
            Appended(-1, -1, -1, duplicate=True),
            Appended(last + 1, last + 1, log.now_ms),
        ]
        assert log.partition.end_offset == last + 2
        if order == "offset":
            batch = encode_batch([Record(0, NOW_MS, None, b"x")] * 3, base_offset=20)
            outcome = log.partition.append(batch, now_ms=log.now_ms, origin=Origin.REPLICATION)
            assert outcome == Appended(20, 22, -1)


def test_markers_that_go_past_what_a_segment_can_hold_begin_another_one(monkeypatch):
    log = Log().write("P1 P2 P3 -")
    for module in (growing_segment_module, partition_module):
        monkeypatch.setattr(module, "RELATIVE_OFFSET_MAX", 5)
    markers = [MarkerWrite(one, 0, Marker(MarkerType.COMMIT, 0)) for one in (1, 2, 3)]
    log.partition.append_markers(markers, now_ms=log.now_ms)
    assert [segment.base_offset for segment in log.partition.segments()] == [0, 4]
    assert log.partition.end_offset == 7


def test_a_log_that_begins_within_a_batch_that_is_cut_begins_at_its_new_end_also_after_a_start():
    log = Log().write("- -")
    log.append(1, count=5)
    log.sync()
    log.partition.deletion.delete_records(4)
    log.partition.replication.truncate_to(4)
    for clean in (False, True):
        assert (log.partition.start_offset, log.partition.end_offset) == (2, 2)
        log.reopen(clean=clean)


def test_a_segment_may_be_cleaned_from_the_end_of_its_lag_on():
    summaries = [Summary(0, 5, max_timestamp=100), Summary(5, 9, max_timestamp=90)]
    for now_ms, lag_ms, stable, count in (
        (110, 10, 9, 2),
        (109, 10, 9, 0),
        (105, 0, 9, 2),
        (0, 0, 8, 1),
        (0, 0, 4, 0),
        (0, 0, 5, 1),
    ):
        config = LogConfig(min_compaction_lag_ms=lag_ms)
        assert compaction.count_cleanable(summaries, stable, config, now_ms) == count
    sized = [Summary(0, 5, log_size=60), Summary(5, 9, log_size=40)]
    for dirty_from, ratio, is_worth_it in (
        (5, 0.4, True),
        (5, 0.41, False),
        (4, 1.0, True),
        (9, 0.0, False),
        (8, 0.4, True),
    ):
        config = LogConfig(min_cleanable_dirty_ratio=ratio)
        assert compaction.is_worth_it(sized, dirty_from, config) is is_worth_it


@pytest.mark.parametrize("name", ["log_size", "index_size", "timeindex_size"])
def test_segments_become_one_as_far_as_that_has_room(name):
    summaries = [Summary(at, at + 1, **{name: 10}) for at in range(6)]
    for limit, counts in (
        (9, [1] * 6),
        (10, [1] * 6),
        (19, [1] * 6),
        (20, [2] * 3),
        (30, [3] * 2),
        (59, [5, 1]),
    ):
        config = LogConfig(
            segment_bytes=limit if name == "log_size" else 10**9,
            segment_index_bytes=10**9 if name == "log_size" else limit,
        )
        groups = compaction.grouped(summaries, config)
        assert [len(group) for group in groups] == counts
        assert [one for group in groups for one in group] == summaries


def test_of_sealed_segments_the_one_not_used_for_longest_is_closed():
    class Held:
        closed = False

        def give_back(self):
            self.closed = True

    open_files, shared = OpenFiles(2), OpenFiles(2)
    one, two, three, four = (Held() for _ in range(4))
    for used in (one, two, one, three):
        open_files.used(used)
    assert [held.closed for held in (one, two, three)] == [False, True, False]
    open_files.forget(one)
    open_files.forget(one)
    assert len(open_files) == 1
    open_files.join(shared)
    for used in (four, three, one):
        open_files.used(used)
    assert [held.closed for held in (one, two, three, four)] == [False, True, False, True]
    assert (len(open_files), len(shared)) == (0, 2)


# -- reads of a log with gaps, and of aborted transactions -----------------------------------------------------------


def test_a_read_passes_over_segments_from_which_everything_was_compacted():
    """As another program leaves them: a segment that ends early, and two without any batch."""
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    for base, offsets in ((0, (0, 1)), (10, ()), (20, ()), (30, (30, 32)), (40, (40,))):
        content = b"".join(
            encode_batch([Record(0, NOW_MS + at, None, b"")], base_offset=at, leader_epoch=0)
            for at in offsets
        )
        disk.write_atomic(path_of(base), content)
    log = Log.__new__(Log)
    log.disk, log.directory, log.now_ms = disk, DIRECTORY, NOW_MS
    log.config = Log().config
    partition = log.open(clean=True, recovery_point=None)
    assert [segment.end_offset for segment in partition.segments()] == [10, 20, 30, 40, 41]
    there = [0, 1, 30, 32, 40]
    for isolation in Isolation:
        for start in range(41):
            found = partition.read(start, 1, isolation)
            first = next(offset for offset in there if offset >= start)
            assert [one.base_offset for _, one in headers_in(found.buffers[0])] == [first]
            assert found.start_offset == start
    for time in range(-1, 43):
        for isolation in Isolation:
            found = finished(partition.look_up_time(NOW_MS + time, isolation))
            first = next((offset for offset in there if offset >= time), None)
            assert (found and found[0]) == first
    partition.close(clean=False)


def test_a_read_that_ends_in_a_gap_has_no_batch():
    """Compaction has left the gap, and what lies behind it is undecided."""
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    for base, batches in (
        (0, [encode_batch([Record(0, NOW_MS, None, b"")], base_offset=0)]),
        (10, [data_of(1, 30), data_of(1, 40)]),
    ):
        disk.write_atomic(path_of(base), b"".join(batches))
    log = Log.__new__(Log)
    log.disk, log.directory, log.now_ms, log.config = disk, DIRECTORY, NOW_MS, Log().config
    partition = log.open(clean=True, recovery_point=None)
    assert partition.last_stable_offset == 30
    for start, end in ((0, 10), (1, None), (5, None), (29, None), (30, None), (31, None)):
        found = partition.read(start, 1 << 20, Isolation.READ_COMMITTED)
        assert (found.start_offset, found.end_offset) == (start, start if end is None else end)
        assert len(found.buffers) == (end is not None)
        assert found.aborted == ()
    assert partition.read(5, 1 << 20, Isolation.READ_UNCOMMITTED).end_offset == 41
    assert partition.read(5, 1, Isolation.READ_UNCOMMITTED, at_least_one=False).buffers == []
    partition.close(clean=False)


def data_of(producer_id, base_offset):
    """A batch of a transaction."""
    return encode_batch(
        [Record(0, NOW_MS, None, b"")],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0 if base_offset == 30 else 1,
        transactional=True,
    )


@pytest.mark.parametrize("seed", range(2))
def test_aborted_transactions_are_those_of_a_list_while_segments_are_deleted(seed):
    chance, log, known = random.Random(seed), Log(segment_bytes=250), Known()
    for _ in range(70):
        producer = chance.randint(1, 5)
        is_open = any(one == producer for one, _ in known.open_transactions())
        kind = chance.choice(["data", "data", "abort", "commit"]) if is_open else "data"
        if kind == "data":
            offset = log.append(producer).first_offset
        else:
            offset = log.end(producer, commit=kind == "commit").first_offset
        known.batches.append(KnownBatch(offset, offset, producer, kind, 0, ()))
    for producer, _ in known.open_transactions():
        offset = log.end(producer, commit=False).first_offset
        known.batches.append(KnownBatch(offset, offset, producer, "abort", 0, ()))
    log.sync()
    partition, end = log.partition, log.partition.end_offset
    assert len(partition.segments()) > 15
    aborted = [(txn.first, txn.marker) for txn in known.transactions() if not txn.committed]
    begins = [0, 0, end // 3, end // 3 + 4, 2 * end // 3, end - 3]
    for begin in begins if seed else begins[1:]:
        partition.deletion.delete_records(begin)
        for start in range(begin, end, 3):
            for stop in range(start + 1, end + 1, 2):
                told = [(txn.first_offset, txn.last_offset) for txn in partition.aborted_in(start, stop)]
                assert told == [one for one in aborted if one[0] < stop and one[1] >= start]


def test_compaction_replaces_a_segment_of_which_all_goes_and_leaves_one_of_which_all_stays():
    log = KeyedLog(segment_bytes=400)
    log.write("a=1 b=1 a=2 b=2 a=3").write("c=1 d=1 e=1 f=1 g=1").write("a=4 b=3 h=1 i=1 j=1")
    before = log.partition.segments()
    log.compact()
    after = log.partition.segments()
    assert [one.base_offset for one in after] == [one.base_offset for one in before] == [0, 5, 10, 15]
    assert [one is other for one, other in zip(after, before, strict=True)] == [False, True, True, True]
    assert log.words() == "4:-. 5:c=1 6:d=1 7:e=1 8:f=1 9:g=1 10:a=4 11:b=3 12:h=1 13:i=1 14:j=1"


def test_compaction_writes_the_same_in_pieces_of_any_size(monkeypatch):
    found = set()
    for write_size in (1, 100, 200, 1 << 20):
        monkeypatch.setattr(rewriter, "WRITE_SIZE", write_size)
        log = KeyedLog().write("a=1 b=1 a=2 P1:c=1 d=1 P1a e=1 P2:f=1 P2c g=1").write("a=3 h=1 i=1")
        log.compact()
        found.add((log.words(), log.disk.read_bytes(path_of(0))))
    assert len(found) == 1


def test_a_scrub_of_a_segment_reads_all_of_it_and_names_each_damaged_batch():
    log = Log().write("- - - -")
    (segment,) = log.partition.segments()
    assert sum(segment.scrub()) == segment.size
    positions = [position for position, _ in headers(log, path_of(0))]
    for position in positions[1::2]:
        changed(log, path_of(0), position + 64)
    damaged = [one for one in segment.scrub() if isinstance(one, DamagedBatch)]
    assert [(one.position, one.base_offset) for one in damaged] == [(positions[1], 1), (positions[3], 3)]


def test_a_damaged_marker_in_a_trusted_segment_is_named_by_the_start_that_reads_it():
    log = Log(segment_bytes=300).write("P1 P1c P1 P1c " * 3)
    log.partition.close()
    position = next(at for at, one in headers(log, path_of(0)) if one.is_control)
    changed(log, path_of(0), position + 76)
    for path in [path for path in log.disk.files() if path.suffix in (".producers", ".snapshot")]:
        log.disk.lose(path)
    with pytest.raises(
        DamageError, match=rf"{path_of(0)}: the CRC of the batch at offset 1, byte {position}, does not"
    ):
        log.open(clean=True)


def test_a_log_file_that_gets_shorter_before_it_is_proven_is_damaged():
    log = Log(segment_bytes=300).write("- " * 20)
    log.partition.close()
    log.partition = log.open(clean=True, prove=False)
    log.disk.damage(path_of(0), log.disk.read_bytes(path_of(0))[:-1])
    with pytest.raises(UnprovenError) as raised:
        log.partition.read(0, 100, Isolation.LOG_END)
    with pytest.raises(DamageError, match="bytes, but "):
        list(raised.value.prove())
    with pytest.raises(DamageError, match=str(path_of(0))):
        log.partition.read(0, 100, Isolation.LOG_END)


def test_reads_outside_the_log_and_of_a_lost_file_are_refused():
    log = Log(segment_bytes=300).write("- " * 20)
    log.partition.deletion.delete_records(5)
    assert (log.partition.topic, log.partition.index, log.partition.directory) == ("t", 0, DIRECTORY)
    for isolation in Isolation:
        for start, is_there in ((-1, False), (4, False), (5, True), (20, True), (21, False)):
            if is_there:
                log.partition.read(start, 1, isolation)
            else:
                with pytest.raises(OffsetOutOfRangeError, match=f"offset {start} is not in the log of t-0"):
                    log.partition.read(start, 1, isolation)
    log.partition.close()
    log.partition = log.open(clean=True)
    log.partition.segments()[0].give_back()
    log.disk.lose(log.partition.segments()[0].path(".log"))
    with pytest.raises(DamageError, match="is missing, and was durable"):
        log.partition.read(5, 1, Isolation.LOG_END)


def test_a_record_of_the_first_millisecond_of_1970_has_a_time():
    log = Log(message_timestamp_before_ms_max=1000, retention_ms=1000)
    log.append(1, time_ms=-1, transactional=False)
    with pytest.raises(RefusedError, match="behind the broker's clock"):
        log.append(1, time_ms=0, transactional=False)
    for time_ms, count in ((0, 1), (-1, 0)):
        log = Log(retention_ms=1000)
        log.append(1, time_ms=time_ms, transactional=False)
        log.partition.roll(log.now_ms)
        log.sync()
        assert log.partition.deletion.apply_retention(log.now_ms + 1) == count


# -- leader epochs --------------------------------------------------------------------------------------------------

EPOCH_LOGS = [  # (first offset, last offset, epoch) of each batch, and the bases of the segments
    ([(0, 0, 0), (1, 1, 0), (2, 3, 1), (4, 4, 1), (5, 5, 3), (6, 6, 3)], (0, 4)),
    ([(0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 3, 4), (4, 5, 4)], (0, 2, 3)),
    ([(2, 2, 1), (3, 4, 1), (6, 6, 2), (7, 7, 2)], (2, 7)),
]


def log_of_epochs(batches, bases):
    """A log with these batches in these segments."""
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    disk.write_atomic(path_of(bases[0]), b"")
    log = Log.__new__(Log)
    log.disk, log.directory, log.now_ms = disk, DIRECTORY, NOW_MS
    log.config = Log().config
    log.partition = log.open(clean=True, recovery_point=None)
    for first, last, epoch in batches:
        if first in bases[1:]:
            log.partition.roll(NOW_MS)
        records = [Record(0, NOW_MS, None, b"")] * (last - first + 1)
        batch = encode_batch(records, base_offset=first, leader_epoch=epoch)
        log.partition.append(batch, now_ms=NOW_MS, origin=Origin.REPLICATION)
    log.sync()
    return log


def are_right(entries, batches, bases):
    """Whether the batches are those of which a file of epochs tells, by the rules in words of `check_epochs`."""
    if not entries:
        return True
    end = batches[-1][1] + 1
    first = max(bases[0], entries[0][1])
    holder = next((batch for batch in batches if batch[1] >= first), None)
    if holder is not None and holder[0] >= first:
        told = max((epoch for epoch, start in entries if start <= holder[0]), default=-1)
        if told != holder[2]:
            return False
    for epoch, start in entries:
        if not bases[0] <= start < end:
            continue  # deleted, or nothing was written since
        base = max(one for one in bases if one <= start)
        stop = min((one for one in bases if one > base), default=end)
        holder = next((one for one in batches if one[1] >= start and one[0] < stop), None)
        before = [one for one in batches if base <= one[0] and one[1] < start][-1:]
        if holder is None:
            continue
        gone = holder[0] > start  # compaction may have removed the batch that began there
        if holder[2] < epoch if gone else holder[::2] != (start, epoch):
            return False
        if before and before[0][2] >= epoch and before[0][1] == start - 1:
            return False
    return True


@pytest.mark.parametrize("batches_and_bases", EPOCH_LOGS)
def test_a_file_of_leader_epochs_is_held_against_every_batch_where_one_begins(batches_and_bases):
    batches, bases = batches_and_bases
    log = log_of_epochs(batches, bases)
    pairs = list(itertools.product(range(5), range(8)))
    rising = [
        entries
        for count in range(3)
        for entries in itertools.combinations(pairs, count)
        if all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(entries))
    ]
    true = list(LeaderEpochs.decode(log.disk.read_bytes(DIRECTORY / EPOCH_FILE)).entries)
    rising += [[*true[:at], *true[at + 1 :]] for at in range(len(true))] + [true]
    outcomes = set()
    for entries in rising:
        try:
            check_epochs(LeaderEpochs(list(entries)), log.partition.log.segments, DIRECTORY / EPOCH_FILE)
            is_right = True
        except DamageError:
            is_right = False
        assert is_right == are_right(entries, batches, bases), entries
        outcomes.add(is_right)
    assert outcomes == {True, False}


@pytest.mark.parametrize("batches_and_bases", EPOCH_LOGS)
def test_the_latest_epoch_of_a_closed_log_is_one_of_a_batch_or_one_that_begins_behind_all(batches_and_bases):
    batches, bases = batches_and_bases
    log = log_of_epochs(batches, bases)
    log.partition.close()
    last, path = batches[-1][1], DIRECTORY / EPOCH_FILE
    files = [[], [(2, 9)], [(1, 2), (9, last)], [(1, 2), (9, last + 1)], [(3, 5), (4, 6), (9, 7)], [(0, 0)]]
    files += [
        LeaderEpochs.decode(log.disk.read_bytes(path)).entries,
        [(1, 0), (2, 1)],
        [(7, 1), (8, last + 1)],
    ]
    for known, entries in itertools.product(range(-1, 5), files):
        log.disk.write_atomic(path, LeaderEpochs(list(entries)).encode())
        later = [entry for entry in entries if entry[0] > known]
        from_base = max((base for base in bases if later and base <= later[0][1]), default=bases[0])
        there = {batch[2] for batch in batches if batch[0] >= from_base}
        counted = [epoch for epoch, start in later if epoch in there or start > last]
        assert latest_epoch(log.disk, DIRECTORY, known) == max(counted, default=known), (known, entries)
    for content in (b"rubbish", b"1\n0\n"):
        log.disk.write_atomic(path, content)
        for known in range(-1, 5):
            wanted = max(known, batches[-1][2])
            assert latest_epoch(log.disk, DIRECTORY, known) == wanted
    missing = DIRECTORY.with_name("t-1")
    assert latest_epoch_of_all(log.disk, [missing, DIRECTORY], -1) == batches[-1][2]


# -- producers and their files ---------------------------------------------------------------------------------------


def header(producer_id, sequence, base_offset, *, count=1, transactional=True):
    return read_header(
        encode_batch(
            [Record(0, NOW_MS, None, b"")] * count,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            base_offset=base_offset,
            transactional=transactional,
        )
    )


@pytest.mark.parametrize("is_packed", [True, False])
def test_counts_of_open_transactions_replace_what_was_counted_and_nothing_else(is_packed):
    producers = Producers()
    for producer_id in (1, 2, 3):
        producers.note(header(producer_id, 0, 10 * producer_id, count=4), None, NOW_MS)
    if is_packed:
        producers.pack_unused(NOW_MS + 1)
    before = {one.producer_id: one for one in producers}
    producers.set_open_record_counts({1: 7, 3: 9})
    producers.note(header(1, 4, 50), None, NOW_MS + 1)
    after = {one.producer_id: one for one in producers}
    assert [producers.open_record_count(one) for one in (1, 2, 3)] == [8, 4, 9]
    assert [after[one].txn_record_count for one in (1, 2, 3)] == [8, 4, 9]
    assert after[2] == before[2]
    assert after[3].batches == before[3].batches


@pytest.mark.parametrize("seed", range(4))
def test_the_first_unstable_offset_is_the_least_of_all_that_is_open_or_not_durable(seed):
    chance, producers = random.Random(seed), Producers()
    opened, ended, offset, high_watermark = {}, [], 0, 0
    for _ in range(300):
        producer_id, choice = chance.randrange(6), chance.random()
        if choice < 0.4:
            producers.note(header(producer_id, 0, offset), None, NOW_MS)
            opened.setdefault(producer_id, offset)
            offset += 1
        elif choice < 0.8:
            marker = Marker(chance.choice(list(MarkerType)), 0)
            txn = producers.note(header(producer_id, 0, offset), marker, NOW_MS)
            assert (txn is not None) == (producer_id in opened)
            if txn is not None:
                producers.ended(txn)
                ended.append((offset, opened.pop(producer_id)))
            offset += 1
        else:
            high_watermark = chance.randint(high_watermark, offset)
            producers.high_watermark_moved(high_watermark)
        undecided = [*opened.values(), *(first for at, first in ended if at >= high_watermark)]
        assert producers.first_unstable_offset() == min(undecided, default=None)
        assert producers.first_open_offset() == min(opened.values(), default=None)


def test_a_snapshot_is_due_from_its_bound_on():
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    snapshots = Snapshots(disk, DIRECTORY)
    assert snapshots.is_due(0)
    snapshots.appended(99)
    assert not snapshots.is_due(100)
    snapshots.appended(1)
    assert snapshots.is_due(100)
    assert not snapshots.is_due(101)
    snapshots.put_off()
    assert not snapshots.is_due(1)
    size = len(snapshots.take(Producers(), Summary(0, 5))[DIRECTORY / f"{5:020d}.producers"])
    snapshots.appended(8 * size - 1)
    assert not snapshots.is_due(1)
    snapshots.appended(1)
    assert snapshots.is_due(1)


@pytest.mark.parametrize("has_producers", [False, True])
@pytest.mark.parametrize("held_producers", [False, True])
def test_a_stop_needs_a_snapshot_where_a_start_would_replay_much_or_forget_producers(
    has_producers, held_producers
):
    log = Log().write("-")
    log.reopen()  # the time index is complete then
    (segment,) = log.partition.segments()
    producers = Producers.restored(producers_of(int(has_producers)), NOW_MS)
    for replayed_size, whole, is_there in (
        (4096, (), False),
        (4097, (), False),
        (10**6, (1,), True),
        (0, (0, 2), False),
    ):
        snapshots = Snapshots(log.disk, DIRECTORY)
        found = FoundSnapshots(frozenset({0, 1, 2}), frozenset(whole), replayed_size - 96, held_producers)
        snapshots.opened(found)
        snapshots.appended(96)
        is_needed = has_producers or held_producers or replayed_size > 4096
        assert snapshots.lacks_newest(producers, segment) is (is_needed and not is_there)


def test_within_a_segment_the_two_newest_durable_snapshots_stay():
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    snapshots = Snapshots(disk, DIRECTORY)

    removed = []
    disk.fault = lambda what, path: removed.append(int(path.stem)) if what == "removing" else None

    def left():
        return sorted({int(path.stem) for path in disk.files()})

    for offset in (5, 7, 9, 9, 12, 15):
        for path, content in snapshots.take(Producers(), Summary(5, offset)).items():
            disk.write_atomic(path, content)
    for durable, stay in (
        (8, [5, 7, 9, 12, 15]),
        (11, [5, 7, 9, 12, 15]),
        (12, [5, 9, 12, 15]),
        (15, [5, 12, 15]),
    ):
        snapshots.remove_older(durable)
        assert left() == stay
    snapshots.forget_past(13)
    assert left() == [5, 12]
    for path, content in snapshots.take(Producers(), Summary(5, 13)).items():
        disk.write_atomic(path, content)
    snapshots.remove_older(99)
    assert left() == [5, 12, 13]
    snapshots.keep_newest(14, [5])
    assert left() == [5, 12, 13]
    removed.clear()
    snapshots.keep_newest(13, [5])
    assert left() == [5, 13]
    assert set(removed) == {12}, "those that have gone before are not removed again"


def producers_of(count):
    return ProducerTable.of(
        Producer(
            one,
            one % 5,
            one % 3 - 1,
            [KeptBatch(one, one, 0, NOW_MS)] * (one % 6),
            NOW_MS,
            NOW_MS,
            one % 4 - 1,
            3,
            2,
        )
        for one in range(count)
    )


def test_kafkas_snapshot_gives_the_last_batch_and_the_open_transaction_of_each_producer():
    batches = [KeptBatch(5, 30, 2, NOW_MS), KeptBatch(9, 40, 3, NOW_MS + 1)]
    table = ProducerTable.of(
        [
            Producer(1, 2, 3, batches, 70, NOW_MS + 4, 38, 60, 4),
            Producer(2, 3, -1, [], 71, NOW_MS + 5),
            Producer(3, 0, 0, batches[:1], 72, NOW_MS, -1),
        ]
    )
    assert list(decode_snapshot(b"".join(SnapshotFile(table)), 99)) == [
        Producer(1, 2, 3, [KeptBatch(9, 40, 3, NOW_MS + 4)], 99, NOW_MS + 4, 38, 99, 0),
        Producer(2, 3, -1, [], 99, NOW_MS + 5),
        Producer(3, 0, 0, [KeptBatch(5, 30, 2, NOW_MS)], 99, NOW_MS),
    ]


def test_a_snapshot_agrees_with_the_log_if_it_says_the_same_or_less():
    batches = [KeptBatch(one, 10 * one, 0, NOW_MS + one) for one in range(1, 4)]
    known = Producer(1, 2, 3, batches, txn_first_offset=20)
    for said, count, agrees in (
        (known, 5, True),
        (replace(known, batches=batches[1:]), 5, True),
        (replace(known, batches=batches[:1]), 5, False),
        (replace(known, batches=[]), 5, True),
        (replace(known, batches=[batches[2]._replace(timestamp_ms=7)]), 1, True),
        (replace(known, batches=[batches[2]._replace(timestamp_ms=7)]), 5, False),
        (replace(known, batches=[batches[2]._replace(last_offset=7)]), 1, False),
        (replace(known, coordinator_epoch=-1), 5, True),
        (replace(known, coordinator_epoch=0), 5, False),
        (replace(known, coordinator_epoch=4), 5, False),
        (replace(known, producer_epoch=3), 5, False),
        (replace(known, producer_epoch=3, batches=[]), 5, False),
        (replace(known, txn_first_offset=-1), 5, False),
        (replace(known, batches=[KeptBatch(0, 0, 0, 1), *batches]), 5, False),
        (replace(known, batches=[KeptBatch(0, 0, 0, 1), *batches[1:]]), 5, False),
    ):
        assert agrees_with_log(said, known, count) is agrees, said
    markerless = replace(known, coordinator_epoch=-1)
    assert not agrees_with_log(replace(markerless, batches=[KeptBatch(0, 0, 0, 1), *batches]), markerless, 5)


CONTENTS = {
    "summary": (Summary(3, 9, log_size=7).encode(), Summary.decode),
    "producers": (b"".join(ProducersFile(producers_of(9), Summary(0, 9))), decode_producers),
    "snapshot": (b"".join(SnapshotFile(producers_of(3))), lambda content: decode_snapshot(content, 0)),
    "log start": (encode_log_start(123), lambda content: decode_log_start(content, DIRECTORY)),
    "epochs": (LeaderEpochs([(1, 2), (4, 6)]).encode(), LeaderEpochs.decode),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_that_is_cut_anywhere_or_goes_on_is_refused_as_damage(name):
    content, decode = CONTENTS[name]
    decode(content)
    for end in range(len(content) - 2):
        with pytest.raises((DamageError, NewerFormatError)):
            decode(content[:end])
    for more in (b"\0", content) if name != "epochs" else ():
        with pytest.raises((DamageError, NewerFormatError)):
            decode(content + more)
    if name not in ("epochs", "log start"):
        for at in range(2, len(content)):
            with pytest.raises((DamageError, NewerFormatError)):
                decode(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


@pytest.mark.parametrize("count", [0, 33, 255])
def test_a_block_holds_1_to_32_producers(count):
    assert len(ProducerTable.of_blocks([])) == 0
    block = producers_of(32).blocks()[0]
    assert len(ProducerTable.of_blocks([block[:7], block[7:]])) == 32
    with pytest.raises(DamageError):
        ProducerTable.of_blocks([bytes([count]) + block[1:]])


@pytest.mark.parametrize("kind", range(256))
def test_a_block_has_producers_of_up_to_5_batches_with_and_without_a_transaction(kind):
    entry = producer_table.SNAPSHOT_ENTRY.pack(7, 0, -1, -1, 0, -1, -1, -1)
    count = kind & ~8
    rest_size = (8 + 24 * (count - 1)) * bool(count) + 16 * bool(kind & 8)
    if count > 5:
        with pytest.raises(DamageError, match="of an unknown kind"):
            ProducerTable.of_blocks([b"\1" + entry + bytes(8) + bytes([kind]) + bytes(rest_size)])
        return
    for size in (rest_size - 1, rest_size, rest_size + 1):
        block = b"\1" + entry + bytes(8) + bytes([kind]) + bytes(max(size, 0))
        if size == rest_size:
            (producer,) = ProducerTable.of_blocks([block])
            assert (producer.producer_id, len(producer.batches)) == (7, count)
        elif size >= 0:
            with pytest.raises(DamageError):
                ProducerTable.of_blocks([block])


def test_the_ids_of_blocks_rise_from_each_to_the_next():
    def block(*ids):
        (found,) = ProducerTable.of(Producer(one, 0) for one in ids).blocks()
        return found

    assert len(ProducerTable.of_blocks([block(1, 3), block(4), block(9)])) == 4
    for blocks in ([block(1, 3), block(3)], [block(1, 3), block(2)], [block(3), block(3)]):
        with pytest.raises(DamageError, match="do not ascend after id 3"):
            ProducerTable.of_blocks(blocks)


@pytest.mark.parametrize("seed", range(6))
def test_a_table_of_producers_in_any_order_is_a_dict_that_is_sorted(seed, monkeypatch):
    monkeypatch.setattr(producer_table, "BLOCK_COUNT_MAX", 4)
    chance = random.Random(seed)

    def producer(one):
        used_ms, first = chance.randrange(100), chance.choice([-1, -1, 5])
        started_ms = -1 if first < 0 else chance.randrange(100)
        batches = [KeptBatch(one, one, 0, 3)] * chance.randrange(3)
        return Producer(one, 1, 2, batches, used_ms, 3, first, started_ms, 0 if first < 0 else 7)

    assert ProducerTable().greatest_id(10) == -1
    given = [producer(chance.randrange(60)) for _ in range(chance.choice([1, 4, 5, 40, 70]))]
    if seed % 2:
        given.sort(key=lambda one: one.producer_id)
    wanted = {one.producer_id: one for one in given}
    table = ProducerTable.of(given)
    assert list(table) == [wanted[one] for one in sorted(wanted)]
    assert len(table) == len(wanted)
    for one in range(-1, 61):
        assert table.get(one) == wanted.get(one)
        assert table.greatest_id(one) == max((known for known in wanted if known <= one), default=-1)
    opened = [wanted[one] for one in sorted(wanted) if wanted[one].txn_first_offset >= 0]
    assert table.open_producers() == opened
    copy, before = table.copy(), list(table)
    for limit in (90, 50, 10):
        table.limit_times(limit)
        for one in wanted.values():
            one.used_ms, one.txn_started_ms = min(one.used_ms, limit), min(one.txn_started_ms, limit)
        assert list(table) == [wanted[one] for one in sorted(wanted)]
    again, idle = table.copy(), [one for one in before if one.txn_first_offset < 0]
    again.put(Producer(61, 1, used_ms=4))
    assert again.remove_unused(2**62, 99)[0] == len(idle) + 1
    assert [one.producer_id for one in again] == [one.producer_id for one in opened]
    assert [(one.producer_id, one.used_ms) for one in copy] == [
        (one.producer_id, one.used_ms) for one in before
    ]
    for used_before in (3, 9, 11):
        removed, more = table.remove_unused(used_before, chance.choice([1, 2, 99]))
        while more:
            again, more = table.remove_unused(used_before, 1)
            removed += again
        gone = {
            o for o, known in wanted.items() if known.used_ms < used_before and known.txn_first_offset < 0
        }
        assert removed == len(gone)
        wanted = {one: known for one, known in wanted.items() if one not in gone}
        assert list(table) == [wanted[one] for one in sorted(wanted)]
        assert len(table) == len(wanted)


@pytest.mark.parametrize("seed", range(4))
def test_a_growing_index_of_aborts_answers_as_a_list_however_it_is_searched(seed, monkeypatch):
    monkeypatch.setattr(transaction_index, "SCAN_COUNT_MAX", seed)
    chance, rows, stable = random.Random(seed), [], 0
    index = TransactionIndex()
    for last in range(3, 300, 5):
        stable = max(stable, chance.randint(0, last))
        rows.append(AbortedTxn(chance.randrange(4), chance.randint(max(stable - 9, 0), last), last, stable))
        index.append(rows[-1])
        if last % 9 == 0:
            index = TransactionIndex(bytes(index.content()))
        for _ in range(4):
            start = chance.randrange(last + 2)
            end = chance.randrange(start, last + 9)
            stop = next((at for at, row in enumerate(rows) if row.stable_offset >= end), None)
            seen = rows if stop is None else rows[: stop + 1]
            touching = [row for row in seen if row.first_offset < end and row.last_offset >= start]
            assert index.collect(start, end) == (touching, stop is not None)
    assert [index[place] for place in range(len(index))] == rows


# -- how far a segment goes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [0, 7])
@pytest.mark.parametrize("spare", [1, 0, -1])
def test_every_reader_of_a_segment_knows_how_far_its_offsets_may_go(spare, base, monkeypatch):
    """The bound is made low here: offsets of a segment's last batch lie at it, or one past it."""
    log = Log().write("- " * base)
    if base:
        log.partition.roll(NOW_MS)
        log.sync()
        log.partition.deletion.delete_records(base)
    log.write("- - P1 - -")
    log.partition.close()
    for module in (replay, examine_module, segment_proof, tail, compaction):
        monkeypatch.setattr(module, "RELATIVE_OFFSET_MAX", 4 + spare)
    fits = spare >= 0
    summaries = [Summary(0, 3), Summary(3, 5)]
    assert len(compaction.grouped(summaries, log.config)) == (1 if fits else 2)
    found = list(verify_directory(log.disk, DIRECTORY))
    assert [finding.path for finding in found] == ([] if fits else [path_of(base)])
    damage = examine(log.disk, DIRECTORY, examine_module.Expected())
    assert (damage is None) == fits
    for path in [path for path in log.disk.files() if path.suffix in (".producers", ".snapshot")]:
        log.disk.lose(path)
    assert log.open(clean=False, recovery_point=0).end_offset == base + (5 if fits else 4)


@pytest.mark.parametrize("read_size", [70, 1 << 20], ids=["read one by one", "read at once"])
def test_a_batch_whose_offset_was_written_already_is_a_finding(read_size, monkeypatch):
    """However many batches are read at once: those that are larger than that are read by themselves."""
    monkeypatch.setattr(scan_module, "BATCHES_READ_SIZE", read_size)
    log = Log().write("- - -")
    log.partition.close()
    assert list(verify_directory(log.disk, DIRECTORY)) == []
    changed(log, path_of(0), headers(log, path_of(0))[2][0] + 7)  # 3 in place of 2
    changed(log, path_of(0), headers(log, path_of(0))[1][0] + 7)  # 0 in place of 1
    found = [one for one in verify_directory(log.disk, DIRECTORY) if one.path == path_of(0)]
    assert any(
        "must be greater than 0" in one.message or "does not follow offset 0" in one.message for one in found
    )


def test_behind_damage_only_what_may_stand_there_is_taken_for_a_batch():
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    for base_offset, delta, attributes, is_found in (
        (7, 0, 0, True),
        (6, 0, 0, False),  # before the end of what is whole
        (7 + 2**31 - 1, 0, 0, True),
        (7 + 2**31, 0, 0, False),
        (7, -1, 0, False),
        (7, 3, 0, True),
        (7, 0, 0x7F, True),
        (7, 0, 0x80, False),
    ):
        batch = bytearray(encode_batch([Record(0, NOW_MS, None, b"x")], base_offset=base_offset))
        batch[21:23], batch[23:27] = attributes.to_bytes(2, "big"), delta.to_bytes(4, "big", signed=True)
        batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
        disk.write_atomic(path_of(0), bytes(80) + batch)
        found = [position for position, _ in tail.batches_behind(disk.open(path_of(0)), 0, 7)]
        assert found == [80] * is_found, (base_offset, delta, attributes)


def test_a_search_in_pieces_of_any_size_finds_the_same_batches(monkeypatch):
    batches = [encode_batch([Record(0, NOW_MS, None, bytes(at))], base_offset=at) for at in range(4)]
    content = b"\x02".join([b"damaged" * 11, batches[0] + batches[1], batches[2] + batches[3]])
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    disk.write_atomic(path_of(0), content)
    wanted = [(content.index(batch), at) for at, batch in enumerate(batches)]
    for scan_size in (*range(61, 215, 3), 10_000):
        monkeypatch.setattr(tail, "SCAN_SIZE", scan_size)
        found = list(tail.batches_behind(disk.open(path_of(0)), 0, 0))
        assert [(position, one.base_offset) for position, one in found] == wanted, scan_size


@pytest.mark.parametrize(
    ("at", "new", "is_refused"),
    [(8, 0, True), (8, 48, True), (8, -70, True), (8, 49, False), (23, -1, True), (23, 0, False)],
)
def test_a_lookup_of_an_offset_meets_only_what_may_be_a_batch(at, new, is_refused):
    """Also in a log file that was proven: the disk may change it since."""
    log = Log().write("- - -")
    (segment,) = log.partition.segments()
    content = bytearray(log.disk.read_bytes(path_of(0)))
    content[at : at + 4] = new.to_bytes(4, "big", signed=True)
    log.disk.damage(path_of(0), bytes(content))
    if is_refused:
        with pytest.raises(DamageError, match=f"{path_of(0)}: the bytes at byte 0 are no batch"):
            segment.find(1)
    else:
        assert segment.find(0).position == 0


def test_a_proof_goes_over_the_map_that_readers_get(monkeypatch):
    """So its pages are there for them. A file that is too short is not mapped: the proof says what is wrong."""
    log = Log(segment_bytes=300).write("- " * 20)
    log.partition.close()
    log.partition = log.open(clean=True, prove=False)
    content, given = log.disk.read_bytes(path_of(0)), []
    monkeypatch.setattr(
        segment_module, "prove_headers", lambda *arguments: iter(given.append(arguments) or ())
    )
    for there in (content, content + b"more", content[:-1]):
        log.disk.damage(path_of(0), there)
        summary = log.partition.segments()[0].summary
        segment = SealedSegment(log.disk, SegmentName.of(DIRECTORY, 0), summary, OpenFiles())
        list(segment.unproven().prove())
        disk, path, size, crc, mapped = given.pop()
        assert (disk, path, size, crc) == (log.disk, path_of(0), len(content), segment.summary.log_crc)
        assert mapped is None if len(there) < len(content) else bytes(mapped) == content


# -- which batch has changed -------------------------------------------------------------------------------------------


def with_epochs(epochs):
    """A log of one segment, of a batch for each leader epoch. No CRC covers them."""
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    batches = [
        encode_batch([Record(0, NOW_MS, None, b"")], base_offset=at, leader_epoch=epoch)
        for at, epoch in enumerate(epochs)
    ]
    disk.write_atomic(path_of(0), b"".join(batches))
    return disk, len(batches[0])


def test_of_leader_epochs_that_do_not_rise_the_one_that_was_too_great_or_the_one_that_is_too_small_is_named():
    expected = examine_module.Expected(leader_epoch=5, gapless_epoch=0)
    for epochs in itertools.product(range(4), repeat=4):
        disk, size = with_epochs(epochs)
        damage = examine(disk, DIRECTORY, expected)
        known = [0, *epochs]  # the log begins with epoch 0
        falls = next((at for at in range(1, 4) if epochs[at] < epochs[at - 1]), None)
        if falls is None:
            assert damage is None, epochs
            continue
        before = known[falls - 1]
        was_too_great = epochs[falls - 1] > before and epochs[falls] >= before
        assert damage.position == size * (falls - was_too_great), epochs
        assert damage.end_offset == falls - was_too_great


def test_a_gap_that_a_changed_offset_makes_is_cut_with_its_batch():
    """What is left has no gap, so the segment may grow."""
    log = several_segments()
    path = path_of(log.bases[0])
    position, header = headers(log, path)[2]
    assert header.base_offset == 2
    changed(log, path, position + 7)  # it says 3, as the one behind it does
    expected = examine_module.Expected(leader_epoch=1, gapless_epoch=0)
    damage = examine(log.disk, DIRECTORY, expected)
    assert (damage.position, damage.end_offset, damage.has_gaps) == (position, 2, False)


@pytest.mark.parametrize("which", [0, 2])
def test_the_batch_whose_leader_epoch_has_changed_is_where_a_sealed_segment_is_cut(which):
    """Only the summary's CRC tells that one has changed; the first that is unlike the one before it is taken."""
    for place in range(len(headers(several_segments(), path_of(several_segments().bases[which])))):
        log = several_segments()
        path = path_of(log.bases[which])
        position, header = headers(log, path)[place]
        changed(log, path, position + 15)
        damage = examine(log.disk, DIRECTORY, examine_module.Expected())
        after_first = place or headers(log, path)[1][0]  # what the first one is unlike, nothing tells
        assert damage.path == path
        if place:
            assert (damage.position, damage.end_offset) == (position, header.base_offset)
        else:
            assert damage.position == after_first


# -- the search behind damage ----------------------------------------------------------------------------------------


def test_a_large_batch_is_searched_for_if_another_follows_and_there_is_room_for_its_crc(monkeypatch):
    large = encode_batch([Record(0, NOW_MS, None, bytes(900))], base_offset=4)
    small = encode_batch([Record(0, NOW_MS, None, b"")], base_offset=5)
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    for is_followed, (limit, reads) in itertools.product((True, False), ((0, 16), (0, 1), (0, 0), (1, 0))):
        disk.write_atomic(path_of(0), bytes(100) + large + (small if is_followed else bytes(100)))
        monkeypatch.setattr(tail, "LONE_SIZE_MAX", len(large) - 1 + limit)
        monkeypatch.setattr(tail, "SPARE_READS", reads)
        found = [one.base_offset for _, one in tail.batches_behind(disk.open(path_of(0)), 0, 0)]
        is_found = bool(limit) or (is_followed and reads > 0)
        assert found == [4] * is_found + [5] * is_followed, (is_followed, limit, reads)
