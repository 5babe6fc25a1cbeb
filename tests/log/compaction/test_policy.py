"""What compaction leaves, told in words: `a=1` a record, `P1:a=1` one of a transaction, `a=` a tombstone, `P1c` and `P1a` its end."""

import contextlib
import random
import re
from hashlib import blake2b
from itertools import pairwise

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.filtering import RawRecord
from stablelog.batch.header import DELETE_HORIZON, Codec, headers_in, read_header
from stablelog.batch.markers import KEY
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.errors import DamageError, RefusedError, UnavailableError
from stablelog.log.compaction import policy as compaction
from stablelog.log.compaction import rewriter
from stablelog.log.compaction.policy import LatestOffsets
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.model import LogConfig
from stablelog.log.partition import Isolation
from stablelog.log.search.times import run_lookup
from stablelog.log.segments.replacement import begin_swap
from stablelog.log.time_lookup import look_up_newest, look_up_time
from stablelog.log.verify import verify_directory
from stablelog.testing.sim_disk import SimDisk
from stablelog.testing.sim_faults import SimulatedCrash
from tests.log.timeline import DIRECTORY, Log

HOUR_MS = 3_600_000
KEYS = 10_000


class KeyedLog(Log):
    """A log of a compacted topic. Each `write` ends with a roll, so that all of it may be cleaned."""

    def __init__(self, disk=None, **config):
        config = {
            "cleanup_policy": frozenset({"compact"}),
            "delete_retention_ms": HOUR_MS,
            "min_cleanable_dirty_ratio": 0.0,
            **config,
        }
        super().__init__(disk, **config)

    def put(self, *pairs, producer_id=None, codec=Codec.NONE, headers=()):
        records = [Record(0, self.now_ms + at, key, value, headers) for at, (key, value) in enumerate(pairs)]
        if producer_id is None:
            return self.partition.append(encode_batch(records, codec=codec), now_ms=self.now_ms)
        sequence = self.sequences.get((producer_id, 0), 0)
        batch = encode_batch(
            records,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        self.sequences[producer_id, 0] = sequence + len(records)
        return self.partition.append(batch, now_ms=self.now_ms)

    def write(self, words, *, sync=True, roll=True):
        for word in words.split():
            found = re.fullmatch(r"(?:P(\d+):)?(\w+=.*)", word)
            if found is None:
                self.one(word)
                continue
            pairs = [pair.split("=") for pair in found[2].split(",")]
            self.put(
                *((key.encode(), value.encode() or None) for key, value in pairs),
                producer_id=int(found[1]) if found[1] else None,
            )
        if roll:
            self.partition.roll(self.now_ms)
        if sync:
            self.sync()
        return self

    def compact(self, *, key_count_max=KEYS):
        work = self.partition.compaction.begin_pass(self.now_ms, key_count_max=key_count_max)
        assert work is not None
        for cleaned in work.steps():
            if cleaned is not None:
                assert self.partition.compaction.put_in_place(cleaned)
        self.partition.compaction.end_pass(work)
        assert list(verify_directory(self.disk, self.directory)) == []
        return work

    def pass_after(self, hours, words="z=z"):
        """Some hours later something is written, and the log is compacted."""
        self.now_ms += hours * HOUR_MS
        self.write(words)
        return self.compact()

    def batches(self):
        read = self.partition.read
        start, found = self.partition.start_offset, []
        while start < self.partition.end_offset:
            one = read(start, 1 << 20, Isolation.LOG_END)
            found += [
                (header, bytes(one.buffers[0][at : at + header.size]))
                for at, header in headers_in(one.buffers[0])
            ]
            start = one.end_offset
        return found

    def words(self):
        """What stands in the log: with its offset each record, marker and empty batch."""
        found = []
        for header, batch in self.batches():
            who = f"P{header.producer_id}" if header.has_producer else ""
            if not header.record_count:
                found.append(f"{header.last_offset}:{who or '-'}.")
            elif header.is_control:
                end = "ac"[KEY.unpack_from(decode_records(batch)[0].key)[1]]
                found.append(f"{header.base_offset}:{who}{end}")
            else:
                found += [
                    f"{record.offset}:{record.key.decode()}={(record.value or b'').decode()}"
                    for record in decode_records(batch)
                ]
        return " ".join(found)


def committed_records(partition, start):
    """What the Java client hands to its user from `start` on."""
    found = []
    while True:
        read = partition.read(start, 400, Isolation.READ_COMMITTED)
        if not read.buffers:
            return found
        aborted = sorted(read.aborted, key=lambda txn: txn.first_offset)
        aborted_producers = set()
        for at, header in headers_in(read.buffers[0]):
            while aborted and aborted[0].first_offset <= header.last_offset:
                aborted_producers.add(aborted.pop(0).producer_id)
            if header.is_control:
                aborted_producers.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted_producers):
                found += [r for r in decode_records(read.buffers[0], at) if r.offset >= start]
        start = read.end_offset


def state(partition, start=0):
    """What a reader makes of the log: the value of each key."""
    values = {}
    for record in committed_records(partition, max(start, partition.start_offset)):
        values[record.key] = record.value
    return {key: value for key, value in values.items() if value is not None}


def test_the_latest_record_of_each_key_stays_where_it_was():
    log = KeyedLog().write("a=1 b=1,c=1 a=2 b=2")
    log.compact()
    assert log.words() == "2:c=1 3:a=2 4:b=2"
    assert log.partition.end_offset == 5
    log.write("c=3")
    log.compact()
    assert log.words() == "3:a=2 4:b=2 5:c=3"


def test_what_is_undecided_growing_or_too_young_is_not_touched():
    log = KeyedLog(min_compaction_lag_ms=HOUR_MS)
    log.write("a=1 a=2")
    assert log.partition.compaction.begin_pass(log.now_ms, key_count_max=KEYS) is None
    log.now_ms += 2 * HOUR_MS
    log.write("P1:a=3 a=4")
    log.write("a=5", roll=False)
    log.now_ms += 2 * HOUR_MS
    log.compact()
    assert log.words() == "1:a=2 2:a=3 3:a=4 4:a=5"
    assert log.partition.compaction.first_dirty_offset == 2
    log.write("P1c")
    log.now_ms += 2 * HOUR_MS
    log.compact()
    assert log.words() == "2:P1. 4:a=5 5:P1c"


def test_an_aborted_value_never_hides_a_committed_one_and_its_marker_goes_in_the_third_pass():
    """Scenario 35: kept while a pass meets a batch, then until the horizon, then gone."""
    log = KeyedLog().write("a=1 P1:a=2 P1a P1:b=1 P1c")
    log.compact()
    assert log.words() == "0:a=1 2:P1a 3:b=1 4:P1c"
    assert log.aborted() == ["P1@1..2"]
    log.pass_after(0)
    assert log.words() == "0:a=1 2:P1a 3:b=1 4:P1c 5:z=z"
    assert log.aborted() == []
    marker = next(header for header, _ in log.batches() if header.base_offset == 2)
    assert marker.attributes & DELETE_HORIZON
    assert marker.base_timestamp == log.now_ms + HOUR_MS
    log.pass_after(0)
    assert "2:P1a" in log.words()
    log.pass_after(2)
    assert log.words() == "0:a=1 3:b=1 4:P1c 7:z=z"


def test_the_last_batch_of_a_producer_stays_empty_with_its_marker_and_entry_until_it_writes_again():
    """Scenario 36: its sequence is needed; emptied, it still counts as a batch of its transaction."""
    log = KeyedLog().write("P1:a=1 P1a b=1")
    for _ in range(3):
        log.pass_after(2)
        assert log.words().startswith("0:P1. 1:P1a 2:b=1")
        assert log.aborted() == ["P1@0..1"]
    for name in log.disk.list_dir(DIRECTORY):  # and from the log alone it is known where the producer stands
        if name.endswith((".snapshot", ".producers")):
            log.disk.remove(DIRECTORY / name)
    log.partition = log.open()
    again = encode_batch(
        [Record(0, 0, b"x", b"")], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
    )
    with pytest.raises(RefusedError) as refused:  # of a producer that is not known, sequence 0 would be taken
        log.partition.append(again, now_ms=log.now_ms)
    assert refused.value.code is ErrorCode.out_of_order_sequence_number
    log.write("P1:c=1 P1c")
    log.compact()
    assert not log.words().startswith("0:P1.")
    log.pass_after(2)
    log.pass_after(2)
    assert log.words().startswith("2:b=1 ")
    assert log.aborted() == []


def test_keys_that_are_those_of_markers_are_keys_like_others():
    """Scenario 37: markers all have the same two keys, and no user's record of these keys hides one."""
    log = KeyedLog().write("P1:a=1 P1a P2:b=1 P2c P1:c=1 P1a P2:d=1 P2c")
    log.put((KEY.pack(0, 0), b"abort"), (KEY.pack(0, 1), b"commit"))
    log.put((KEY.pack(0, 0), b"again"))
    log.write("")
    log.compact()
    markers = [header.base_offset for header, _ in log.batches() if header.is_control]
    assert markers == [1, 3, 5, 7]
    assert state(log.partition) == {
        b"b": b"1",
        b"d": b"1",
        KEY.pack(0, 0): b"again",
        KEY.pack(0, 1): b"commit",
    }


def test_a_commit_marker_stays_while_a_batch_of_its_transaction_does_however_many_segments_lie_between():
    """Scenario 38: and the log ends where it ended, though its last batch is gone."""
    log = KeyedLog(segment_bytes=150)
    log.write("P1:a=1 P1:b=1 c=1 c=2 P1c P1:z=1 P1c z=z")
    assert len(log.partition.segments()) > 3
    for _ in range(3):
        log.pass_after(2)
        assert log.words().startswith("0:a=1 1:b=1 3:c=2 4:P1c")
    log.pass_after(2, "a=9")
    log.pass_after(2, "b=9")
    log.pass_after(2)
    log.pass_after(2)
    assert "4:P1c" not in log.words()
    end = log.partition.end_offset
    log.write("P1:x=1 P1a", roll=True)
    log.pass_after(0)
    assert log.partition.segments()[-2].end_offset == end + 3
    segments = log.partition.segments()
    assert all(one.end_offset == two.base_offset for one, two in pairwise(segments))


def test_a_tombstone_goes_when_its_horizon_has_passed_and_not_before():
    log = KeyedLog().write("a=1 b=1 a=")
    log.compact()
    assert log.words() == "1:b=1 2:a="
    header, _ = log.batches()[1]
    assert header.base_timestamp == log.now_ms + HOUR_MS
    assert decode_records(log.batches()[1][1])[0].timestamp_ms == log.now_ms
    log.pass_after(0)
    assert "2:a=" in log.words()
    log.pass_after(2)
    assert log.words() == "1:b=1 4:z=z"


def test_the_marker_that_is_all_that_tells_an_epoch_stays():
    log = KeyedLog().write("P1:a=1")
    log.end(1, commit=False, epoch=1, version=2)
    log.write("b=1")
    for _ in range(4):
        log.pass_after(2)
    assert "1:P1a" in log.words()
    sum(log.partition.deletion.expire_producers(log.now_ms + 100 * HOUR_MS))
    log.pass_after(2)
    assert "1:P1a" not in log.words()


def test_segments_become_few():
    log = KeyedLog(segment_bytes=2000)
    for number in range(40):
        log.write(f"a={number} b={number} k{number}=1")
    assert len(log.partition.segments()) == 41
    log.compact()
    assert len(log.partition.segments()) <= 10
    log.pass_after(0)
    assert len(log.partition.segments()) <= 4
    assert len(state(log.partition)) == 43
    bases = {segment.base_offset for segment in log.partition.segments()}
    assert {int(name[:20]) for name in log.disk.list_dir(DIRECTORY) if name[:1] == "0"} == bases


def test_more_keys_than_there_is_memory_for_take_several_passes():
    log = KeyedLog(segment_bytes=400)
    log.write(" ".join(f"k{number % 30}={number}" for number in range(90)))
    wanted = state(log.partition)
    first_dirty = []
    while log.partition.compaction.first_dirty_offset < log.partition.segments()[-1].base_offset:
        assert len(log.compact(key_count_max=7).latest) <= 7
        first_dirty.append(log.partition.compaction.first_dirty_offset)
        assert state(log.partition) == wanted
    assert len(first_dirty) > 10
    assert first_dirty == sorted(set(first_dirty))


def test_long_keys_are_told_apart():
    latest = LatestOffsets(0, 10)
    keys = [b"x" * 15, b"x" * 16, b"x" * 17, b"x" * 4000]
    log = KeyedLog()
    for key in keys:
        log.put((key, b"1"))
    log.put((keys[2], b"2"))
    log.write("")
    log.compact()
    assert [record.key for record in committed_records(log.partition, 0)] == [
        keys[0],
        keys[1],
        keys[3],
        keys[2],
    ]
    assert latest.has_room(11)


def test_a_record_without_a_key_is_refused_in_a_compacted_topic():
    log = KeyedLog()
    with pytest.raises(RefusedError) as caught:
        log.put((b"a", b"1"), (None, b"2"))
    assert caught.value.code is ErrorCode.invalid_record
    assert log.partition.end_offset == 0


def test_a_damaged_batch_stops_compaction_and_stays():
    log = KeyedLog().write("a=1 a=2")
    segment = log.partition.segments()[0]
    content = bytearray(log.disk.read_bytes(segment.path(".log")))
    content[-1] ^= 1
    log.disk.write_atomic(segment.path(".log"), bytes(content))
    segment.evict()
    with pytest.raises(DamageError):
        log.compact()
    assert log.disk.read_bytes(segment.path(".log")) == content
    assert not [name for name in log.disk.list_dir(DIRECTORY) if name.endswith(".cleaned")]


def test_the_greatest_time_is_found_when_its_record_is_gone():
    log = KeyedLog()
    log.now_ms += 50
    log.write("P1:a=1 P1c", roll=False)
    log.now_ms -= 50
    log.write("P2:b=1 P2c a=2")
    log.now_ms -= 100
    log.write("P2:x=1 P2c")
    log.compact()
    assert run_lookup(look_up_newest(log.partition, Isolation.READ_COMMITTED)) is not None


# -- crashes and random histories ------------------------------------------------------------------------------


def random_words(chance, count):
    words, open_producers = [], set()
    for _ in range(count):
        roll = chance.random()
        key = chance.choice("abcdef")
        value = chance.choice(["", "1", "2", "3" * chance.randint(1, 30)])
        if roll < 0.35:
            words.append(f"{key}={value}")
        elif roll < 0.75:
            producer = chance.randint(1, 3)
            open_producers.add(producer)
            words.append(f"P{producer}:{key}={value},{chance.choice('ghij')}=5")
        elif open_producers:
            producer = chance.choice(sorted(open_producers))
            open_producers.discard(producer)
            words.append(f"P{producer}{chance.choice('ac')}")
    return " ".join(words)


def compact_somehow(log, chance):
    work = log.partition.compaction.begin_pass(log.now_ms, key_count_max=chance.choice((2, 5, 1000)))
    if work is None:
        return
    for cleaned in work.steps():
        if cleaned is not None:
            log.partition.compaction.put_in_place(cleaned)
    log.partition.compaction.end_pass(work)


def times_are_found(log):
    """Lookups by time find what is left, and nothing else."""
    stable = log.stable_offset
    left = [
        (record.offset, record.timestamp_ms)
        for header, batch in log.batches()
        if not header.is_control
        for record in decode_records(batch)
    ]
    for time in sorted({time for _, time in left}):
        first = next(record for record in left if record[1] >= time)
        found = run_lookup(look_up_time(log.partition, time, Isolation.READ_COMMITTED))
        assert (found and found[:2]) == (first if first[0] < stable else None)
    greatest = max((time for _, time in left), default=-1)
    first = next((record for record in left if record[1] == greatest), None)
    found = run_lookup(look_up_newest(log.partition, Isolation.READ_COMMITTED))
    assert (found and found[:2]) == (first if first and first[0] < stable else None)


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_compacted_a_reader_ends_with_the_same_values(seed):
    chance = random.Random(seed)
    log = KeyedLog(segment_bytes=400, index_interval_bytes=100, snapshot_bytes=600)
    whole = KeyedLog(segment_bytes=400)
    for _ in range(12):
        words = random_words(chance, 15)
        for one in (log, whole):
            one.write(words, roll=False)
            one.now_ms += HOUR_MS // 2
        if chance.random() < 0.5:
            for one in (log, whole):
                one.partition.roll(one.now_ms)
                one.sync()
        compact_somehow(log, chance)
        if chance.random() < 0.3:
            log.reopen(clean=chance.random() < 0.5)
        assert list(verify_directory(log.disk, DIRECTORY)) == []
        assert log.partition.end_offset == whole.partition.end_offset
        assert log.stable_offset == whole.stable_offset
        for start in range(0, log.partition.end_offset, 7):
            assert state(log.partition, start) == state(whole.partition, start)
        times_are_found(log)
        assert [txn.first_offset for txn in log.partition.log.open_transactions()] == [
            txn.first_offset for txn in whole.partition.log.open_transactions()
        ]
    assert log.partition.size < whole.partition.size


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(2))
def test_a_crash_at_every_operation_of_a_pass_loses_nothing(seed):
    def opened(disk):
        return KeyedLog(disk, segment_bytes=500, index_interval_bytes=100)

    chance = random.Random(seed)
    log = opened(SimDisk())
    for _ in range(2):
        log.write(random_words(chance, 12) + " P1c P2a P3c")
        compact_somehow(log, chance)
        log.now_ms += 2 * HOUR_MS
    log.write(random_words(chance, 8) + " P1c P2a P3c")
    wanted = log.partition.end_offset, log.stable_offset, state(log.partition)
    log.partition.close()
    crash_at = 0
    crashed = True
    while crashed:
        disk = log.disk.crash(chance)  # all of it is durable: a copy
        before = opened(disk)
        crash_at += 1
        disk.crash_at = disk.steps + crash_at
        crashed = False
        try:
            before.compact()
        except SimulatedCrash:
            crashed = True
        after = disk.crash(chance)
        after.crash_at = chance.randint(1, 12)  # and once more while the first crash is being put right
        try:
            found = opened(after)
        except SimulatedCrash:
            after = after.crash(chance)
            found = opened(after)
        after.crash_at = None
        assert (found.partition.end_offset, found.stable_offset, state(found.partition)) == wanted
        assert list(verify_directory(after, DIRECTORY)) == [], crash_at
        names = after.list_dir(DIRECTORY)
        assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
    assert crash_at > 50


@pytest.mark.extended
def test_a_disk_that_fails_at_any_operation_of_a_pass_loses_nothing():
    chance = random.Random(7)
    log = KeyedLog(segment_bytes=500)
    log.write(random_words(chance, 25) + " P1c P2a P3c")
    wanted = log.partition.end_offset, log.stable_offset, state(log.partition)
    log.partition.close()
    fail_at, failed = 0, True
    while failed:
        disk = log.disk.crash(chance)  # all of it is durable: a copy
        found = KeyedLog(disk, segment_bytes=500)
        fail_at += 1
        disk.fail_at = disk.steps + fail_at
        failed = False
        try:
            found.compact()
        except UnavailableError:
            failed = True
        disk.fail_at = None
        with contextlib.suppress(
            UnavailableError
        ):  # if it was putting a segment in place, nothing is read before a restart
            assert state(found.partition) == wanted[2]
        found.reopen(clean=False)
        assert (found.partition.end_offset, found.stable_offset, state(found.partition)) == wanted
        assert list(verify_directory(disk, DIRECTORY)) == []
    assert fail_at > 30


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("lost", [True, False], ids=["missing", "damaged"])
def test_a_compacted_segment_in_front_of_an_empty_one_needs_no_summary(clean, lost):
    log = KeyedLog()
    log.write("a=1 b=1 c=1 a=2 b=2 a=3")
    log.compact()
    before, end_offset = log.batches(), log.partition.end_offset
    log.partition.close(clean=clean)
    summary = log.partition.segments()[0].path(".summary")
    if lost:
        log.disk.lose(summary)
    else:
        log.disk.damage(summary, bytes(len(log.disk.read_bytes(summary))))
    log.partition = log.open(
        clean=clean, is_established=True, leader_epoch=1, gapless_epoch=0, recovery_point=end_offset
    )
    assert (log.batches(), log.partition.end_offset) == (before, end_offset)
    assert log.disk.exists(summary)


def test_what_compaction_leaves_of_several_leader_epochs_agrees_with_their_file():
    """A batch without records takes the offsets of removed batches of several epochs."""
    log = KeyedLog(segment_bytes=500)
    log.write("k=1 a=1 b=1", roll=False)
    log.reopen(leader_epoch=1)
    log.write("a=2 b=2")
    log.write("a=3 b=3 c=3 d=3 e=3")
    log.write("f=3")
    log.compact()
    empty = [header for header, _ in log.batches() if not header.record_count]
    assert [(one.base_offset, one.last_offset, one.leader_epoch) for one in empty] == [(1, 4, 1)]
    assert log.partition.replication.end_offset_for_epoch(0) == (0, 3)
    log.reopen(leader_epoch=6, is_established=True)
    assert log.partition.replication.end_offset_for_epoch(0) == (0, 3)


def test_a_value_of_a_transaction_that_is_aborted_behind_what_is_compacted_hides_nothing():
    log = KeyedLog().write("a=1 P1:a=2")
    log.write("P1a", roll=False)  # in the growing segment
    log.compact()
    assert state(log.partition) == {b"a": b"1"}
    assert log.words() == "0:a=1 1:P1. 2:P1a"


def test_the_records_of_a_committed_transaction_that_stay_are_counted_where_its_marker_is():
    log = KeyedLog().write("P1:a=1 P1:b=1 c=1")
    log.write("P1c P2:d=1 P2a a=2")
    size = log.partition.size
    work = log.compact()
    assert (work.read_size, work.written_size) == (size, log.partition.size)
    assert log.words() == "1:b=1 2:c=1 3:P1c 4:P2. 5:P2a 6:a=2"
    assert sum(segment.committed_count for segment in log.partition.segments()) == 3


# -- the keys that a pass notes ---------------------------------------------------------------------------------------


def raw(offset, key):
    return RawRecord(offset, 0, key, False, 0, b"")


def test_only_records_with_a_key_from_the_first_dirty_offset_on_are_noted():
    latest = LatestOffsets(5, 10)
    latest.add_keys([raw(3, b"a"), raw(4, None), raw(5, b"b"), raw(6, None), raw(7, b"b")])
    assert len(latest) == 1
    for key, offset, is_latest in (
        (b"a", 3, True),  # nothing is noted of it
        (b"b", 5, False),
        (b"b", 6, False),
        (b"b", 7, True),
        (b"c", 0, True),
    ):
        assert latest.is_latest(key, offset) is is_latest, (key, offset)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_there_is_room_for_the_first_batch_and_for_as_many_keys_as_are_given(count):
    latest = LatestOffsets(5, 2)
    assert latest.has_room(99), "one batch is taken in any case"
    latest.add_keys([raw(5, b"a")])
    latest.end_offset = 6
    assert latest.has_room(count) is (count <= 1)


def test_a_digest_that_stands_for_a_key_is_no_key():
    """A key of up to 15 bytes stands for itself, and for a longer one a digest does. No key looks like another's digest."""
    keys = [bytes(size) for size in range(40)]
    keys += [blake2b(key, digest_size=size).digest() for key in keys for size in (14, 15, 16, 17)]
    latest = LatestOffsets(0, 10**6)
    latest.add_keys([raw(offset, key) for offset, key in enumerate(keys)])
    assert len(latest) == len(set(keys))
    for offset, key in enumerate(keys):
        assert latest.is_latest(key, offset), key
        assert not latest.is_latest(key, offset - 1)


# -- a pass over what a start has taken on trust ------------------------------------------------------------------------


# -- a swap that Kafka has begun ----------------------------------------------------------------------------------------


def with_a_snapshot_within_its_first_segment(**config):
    """A log of two segments and an empty one; a snapshot describes the first five offsets of the first segment."""
    log = KeyedLog(**config).write("a=1 b=1 P1:x=1 P1c c=1", roll=False)
    log.partition.log.take_snapshot()
    log.write("a=2 b=2")
    assert f"{5:020d}.producers" in log.disk.list_dir(DIRECTORY)
    return log


@pytest.mark.parametrize("is_killed", [False, True])
def test_no_replay_of_a_compacted_segment_begins_at_a_snapshot_of_an_original_one(is_killed):
    """The snapshot has the size that the original log file had there. In the new log file, no batch begins there."""
    log = with_a_snapshot_within_its_first_segment().write("a=3,c=3 d=3,e=3,f=3,g=3,h=3,i=3,j=3 k=3")
    if is_killed:  # the swap has begun, and the next open finishes it
        work = log.partition.compaction.begin_pass(log.now_ms, key_count_max=KEYS)
        next(cleaned for cleaned in work.steps() if cleaned is not None)
        begin_swap(log.disk, DIRECTORY, 0)
        log.reopen(clean=False)
    else:
        log.compact()
    words = log.words()
    assert log.words().startswith("2:x=1 3:P1c 6:b=2 ")
    assert not any(name.startswith(f"{5:020d}.") for name in log.disk.list_dir(DIRECTORY))
    log.disk.lose(DIRECTORY / f"{0:020d}.summary")
    log.partition.close(clean=False)
    log.partition = log.open(is_established=True, recovery_point=log.partition.end_offset)
    assert log.words() == words
    assert list(verify_directory(log.disk, DIRECTORY)) == []


def test_no_snapshot_of_an_original_segment_describes_the_time_index_of_a_merged_one():
    """The merged segment has all batches, but not the entry that a close added to the time index of the first one."""
    log = KeyedLog().write("a=1 b=1 P1:x=1 P1c c=1", roll=False)
    log.partition.close()
    log.partition = log.open(clean=True)
    log.now_ms += 1
    log.write("d=1").write("e=1")
    log.compact()  # which compares all files with the log
    assert len(log.partition.segments()) == 2
    log.reopen()
    assert list(verify_directory(log.disk, DIRECTORY)) == []


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
    for dirty_from, ratio, is_dirty_enough in (
        (5, 0.4, True),
        (5, 0.41, False),
        (4, 1.0, True),
        (9, 0.0, False),
        (8, 0.4, True),
    ):
        config = LogConfig(min_cleanable_dirty_ratio=ratio)
        assert compaction.is_dirty_enough(sized, dirty_from, config) is is_dirty_enough


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
        groups = compaction.group_segments(summaries, config)
        assert [len(group) for group in groups] == counts
        assert [one for group in groups for one in group] == summaries


def test_a_gap_at_the_end_of_a_segment_that_the_pass_has_merged_is_not_read_again(monkeypatch):
    """Kafka's cleaner leaves such gaps. The pass may have closed and replaced the segment by then."""
    monkeypatch.setattr(compaction, "WINDOW", 0)
    monkeypatch.setattr(rewriter, "OPEN_SEGMENTS_MAX", 1)
    log = KeyedLog(segment_bytes=700)
    log.write("x=1 P2:y=1 P2c")
    log.write("P1:a=1 P1a b=1 P1:c=1 P1c q=9")
    log.write("P1:d=1 P1a " + " ".join(f"e{number}=1" for number in range(6)))
    log.write("f=1")
    log.partition.close()
    path = DIRECTORY / f"{log.partition.log.segments.bases[1]:020d}.log"
    content = log.disk.read_bytes(path)
    last = [position for position, _ in headers_in(content)][-1]
    log.disk.damage(path, content[:last])  # as if its last batch had been removed
    log.disk.lose(path.with_suffix(".summary"))
    log.partition = log.open()
    log.compact()
    assert list(verify_directory(log.disk, DIRECTORY)) == []


def test_an_aborted_transaction_without_a_marker_hides_no_later_one():
    """Compaction of other brokers may have removed its marker, and the index still has its entry."""
    entries = [AbortedTxn(1, 0, 1, 2), AbortedTxn(1, 2, 4, 5)]  # the first one's marker is not in the log
    walk = compaction.TransactionWalk(0, [], lambda _start, _end: entries)

    def header(offset):
        record = Record(offset, 1, b"k", b"v", ())
        batch = encode_batch(
            [record],
            base_offset=offset,
            leader_epoch=0,
            producer_id=1,
            producer_epoch=0,
            base_sequence=offset,
            transactional=True,
        )
        return read_header(batch)

    assert [walk.process_data(header(offset)) for offset in (0, 2, 3, 5)] == [
        entries[0],
        entries[1],
        entries[1],
        None,
    ]
