"""Whole accounts: every file of a partition, and every operation on its disk, as the kept text tells of them.

The stories go to the bounds of the settings: a batch that just fits into a segment and one that does not, a time that has just
come and one that has not. See `tests.log.accounts`.
"""

import contextlib
import enum
import errno
import importlib
import inspect
import pkgutil
import random
import re
import struct
from dataclasses import MISSING, fields, is_dataclass, replace

import pytest

import stablelog.log
from stablelog.batch.records import Record, encode_batch
from stablelog.errors import DamageError, DiskError
from stablelog.log.files.epochs import EPOCH_FILE
from stablelog.log.files.log_start import LOG_START_FILE, encode_log_start
from stablelog.log.files.names import LOG, SEGMENT_SUFFIXES, SUMMARY, VIEW_START_FILE
from stablelog.log.indexes.summary import Summary
from stablelog.log.model import Origin
from stablelog.log.producer_state.producer_table import ProducerTable
from stablelog.log.producer_state.snapshots import decode_producers, encode_producers, encode_snapshot
from stablelog.log.recovery.damage import Expected
from stablelog.log.recovery.repair import examine, truncate_at_damage
from stablelog.log.retention import close_all
from stablelog.log.verify import verify_directory
from tests.log.accounts import (
    KEPT,
    Account,
    TracingDisk,
    compare,
    copy_of,
    in_words,
    kept,
    operations_of,
    short,
    time,
)
from tests.log.compaction.test_policy import HOUR_MS, KeyedLog
from tests.log.test_damage import DIRECTORY, headers, path_of
from tests.log.timeline import Log
from tests.mutants.changes import AMOUNTS, SETTINGS

SEGMENT_SIZE = 500
HEADER_SIZE = 61


def marks(partition):
    """The offsets of a partition, what it knows of times, and its segments."""
    yield (
        f"start {partition.start_offset}, stable {partition.last_stable_offset}, high {partition.high_watermark}, "
        f"synced {partition.log.synced_offset}, end {partition.end_offset}, size {partition.size}, "
        f"dirty {partition.compaction.first_dirty_offset}, epoch {partition.leader_epoch}, "
        f"pending {partition.has_pending_writes}"
    )
    for one in partition.segments():
        at = "" if one.sealed else f" at {one.max_timestamp_offset}"
        crc = one.summary.log_crc if one.sealed else one.log_crc
        yield (
            f"segment {one.base_offset}..{one.end_offset} size {one.size} created {time(one.created_ms)} times "
            f"{time(one.first_timestamp)} {time(one.max_timestamp)}{at} records "
            f"{one.record_count} committed {one.committed_count} aborted {one.least_aborted_offset} "
            f"crc {crc:08x} passed {one.passed[0]} {time(one.passed[1])}"
            f"{' sealed' * one.sealed}{' durable' * one.durable}{' proven' * one.is_proven}"
        )
    for one in partition.log.open_transactions():
        yield f"open P{one.producer_id}.{one.producer_epoch} @{one.first_offset} {time(one.started_ms)} {one.leader_epoch}"


class Told:
    """A log and its account."""

    def __init__(self, make=Log, **config):
        self.account, self.marks = Account(), []
        self.log = make(TracingDisk(), **config)
        self.tell("begin")

    def tell(self, title):
        """Tell a step: what of the partition it has changed, and of the disk."""
        partition, before = self.log.partition, self.marks
        self.marks = [] if partition.availability.is_closed else list(marks(partition))
        changed = [line for line in self.marks if line not in before]
        self.account.tell(title, self.log.disk, *changed)

    def write(self, words, **arguments):
        self.pass_ms(1)
        self.log.write(words, **arguments)
        self.tell(words)

    def pass_ms(self, time_ms):
        self.log.now_ms += time_ms

    def sized(self, size, *, by=0):
        """A batch of exactly so many bytes."""
        time_ms = self.log.now_ms + by
        for key in (None, b"", b"k"):  # a length of one byte more may move the size by two
            for length in range(size - HEADER_SIZE - 12, size - HEADER_SIZE):
                batch = encode_batch([Record(0, time_ms, key, bytes(max(length, 0)))])
                if len(batch) == size:
                    break
            else:
                continue
            break
        assert len(batch) == size
        self.log.partition.append(batch, now_ms=self.log.now_ms)
        self.tell(f"{size} bytes")


def growing_and_rolling():
    """Segments roll by size, time and index size, at the bound and behind it."""
    told = Told(
        segment_bytes=SEGMENT_SIZE,
        index_interval_bytes=150,
        snapshot_bytes=600,
        segment_ms=5000,
        segment_index_bytes=48,
        file_delete_delay_ms=1000,
        retention_ms=20_000,
    )
    log = told.log
    told.write("P1 - P2", sync=False)
    log.sync()
    told.tell("sync")
    left = SEGMENT_SIZE - log.partition.size
    told.sized(left)
    told.sized(100, by=-3)
    told.sized(SEGMENT_SIZE - 99, by=3)
    told.write("P1a P3", sync=False)
    told.pass_ms(5000)
    told.sized(70)
    told.pass_ms(1)
    told.sized(70, by=-4000)
    log.append(4, count=3, transactional=False, epoch=2)
    log.append(3, count=2, time_ms=log.now_ms + 7)
    told.tell("several records")
    told.write("P2c P3a")
    for _ in range(5):  # the time index takes the last place, then the offset index
        told.pass_ms(1)
        told.sized(160)
    log.sync()
    told.tell("sync")
    work = log.partition.sync_work()
    told.write("P5", sync=False)
    assert work is None
    log.partition.roll(log.now_ms)
    told.tell("roll")
    log.partition.roll(log.now_ms)
    told.tell("roll of an empty segment")
    log.sync()
    told.write("P5 P6")
    log.partition.log.take_snapshot()
    told.tell("snapshot")
    log.sync()
    told.write("P6a", sync=False)
    log.partition.assume_synced()
    told.tell("assumed to be synced")
    log.reopen(clean=True, leader_epoch=3, recovery_point=log.partition.end_offset)
    told.tell("stop and start")
    told.write("P5a - P7")
    log.reopen(clean=False, leader_epoch=4, recovery_point=log.partition.end_offset)
    told.tell("kill and start")
    log.partition.append(
        encode_batch([Record(0, log.now_ms, None, b"x")] * 2, base_offset=log.partition.end_offset + 3),
        now_ms=log.now_ms,
        origin=Origin.REPLICATION,
    )
    told.tell("replicated behind a gap")
    log.sync()
    log.partition.close()
    told.tell("stop")
    return told.account.lines


def deleting_and_truncating():
    """DeleteRecords, retention by size and by time at the bound and behind it, files that are removed late, truncation."""
    told = Told(
        segment_bytes=200,
        index_interval_bytes=100,
        snapshot_bytes=10_000,
        file_delete_delay_ms=1000,
        retention_ms=10_000,
        retention_bytes=900,
        producer_id_expiration_ms=100_000,
    )
    log = told.log
    for words in ("P1 - P2", "P1a - -", "P3 - P2", "- P3a P4", "- - -"):
        log.write(words)
        told.pass_ms(100)
    told.tell("five times three batches")
    partition = log.partition
    partition.deletion.delete_records(partition.segments()[1].base_offset + 1)
    told.tell("delete into the second segment")
    partition.deletion.delete_records(partition.segments()[1].base_offset - 1)
    told.tell("delete up to the last offset of a segment")
    close_all(partition.deletion.remove_deleted(log.now_ms - 1))
    told.tell("remove what is deleted")
    log.write("- - - - - - P2a P4c")
    size = partition.size
    first = partition.segments()[0].size
    log.config = partition.config
    for limit in (size - first + 1, size - first):
        partition.config = log.config.__class__(**{**vars_of(log.config), "retention_bytes": limit})
        told.tell(f"retention by {limit} of {size} bytes: {partition.deletion.apply_retention(log.now_ms)}")
    for time_ms in (999, 1):
        told.pass_ms(time_ms)
        files = partition.deletion.remove_deleted(log.now_ms)
        close_all(files)
        told.tell(f"remove files: {len(files)}")
    newest = partition.segments()[0].max_timestamp
    for time_ms in (newest + 10_000, newest + 10_001):
        told.tell(f"retention at {time(time_ms)}: {partition.deletion.apply_retention(time_ms)}")
    log.write("P5 P6 P5 - P6a P5c P6 -")
    told.tell("more")
    end = partition.end_offset
    for offset in (end, end - 1, end - 4, partition.start_offset + 1):
        partition.replication.truncate_to(offset)
        told.tell(f"truncate to {offset}")
    log.sequences.clear()
    for words in ("- -", "P8 P8c"):  # a truncation goes by the time of the last append
        told.pass_ms(7)
        log.write(words)
        partition.replication.truncate_to(partition.end_offset - 1)
        told.tell(f"truncate behind {words}")
    log.write("P9 P9c - ")
    told.tell("write behind that")
    told.pass_ms(10**6)
    log.write("P10")
    told.tell(f"expire: {list(partition.deletion.expire_producers(log.now_ms))}")
    partition.deletion.apply_retention(log.now_ms + 10**7)
    told.tell("all is too old")
    log.sync()
    partition.deletion.apply_retention(log.now_ms + 10**7)
    told.tell("and durable")
    partition.close()
    told.tell("stop")
    return told.account.lines


def vars_of(config):
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


def compacting():
    """Passes of compaction: keys, tombstones and markers up to their horizon, aborted transactions, groups of segments."""
    told = Told(KeyedLog, segment_bytes=2000, index_interval_bytes=100, min_compaction_lag_ms=0)
    log = told.log
    long_key = "k" * 16
    log.write("a=1 b=1 P1:a=2 P2:c=1,d=1 P1a a=3")
    log.write(f"P2c P3:b=2 b= {long_key}=1 P4:e=1")
    log.write(f"P3a P4a c=2 {long_key}=2 {'k' * 15}=1 d=")
    log.write("P4:f=1 P5c P4c g=1,g=2,h=1", roll=False)
    told.tell("three segments")

    def compact(title, **arguments):
        work = log.compact(**arguments)
        told.tell(
            f"{title}: {len(work.latest)} keys, {work.read_size} read, {work.written_size} written, to {work.end_offset}"
        )

    compact("first pass")
    told.write("b=3 P1:i=1 P1c")
    told.pass_ms(HOUR_MS - 1)
    log.write("j=1")
    compact("a millisecond before the horizon")
    told.pass_ms(1)
    log.write("j=2 P2:l=1 P2a")
    compact("at the horizon")
    told.pass_ms(2 * HOUR_MS)
    log.write("m=1 n=1 o=1")
    log.write("m=2 n=2 o=2")
    compact("with room for two keys", key_count_max=2)
    compact("again")
    log.reopen(clean=True, first_dirty_offset=log.partition.compaction.first_dirty_offset)
    told.tell("stop and start")
    return told.account.lines


def failing():
    """Calls that fail at each kind of file, undone and not, and what is done once they succeed again."""
    told = Told(segment_bytes=300, index_interval_bytes=100, snapshot_bytes=250, file_delete_delay_ms=10)
    log = told.log
    told.write("P1 - P2 P3 P4 P5 P6")
    for place, suffix in enumerate(
        (".log", ".index", ".timeindex", ".txnindex", ".producers", ".snapshot", ".summary")
    ):
        for late in (False, True):
            log.disk.fault = failing_at(suffix, ("writing",) if place % 2 or late else ("writing", "opening"))
            log.disk.fails_late = late
            told.pass_ms(1)
            try:
                log.write("- - -", sync=False)
                log.end(place + 1, commit=late)
                log.sync()
                outcome = "done"
            except DiskError as error:
                outcome = f"{type(error).__name__}, undone {error.undone}"
            told.tell(f"{suffix} cannot be written{', nor cut' * late}: {outcome}")
            log.disk.fault, log.disk.fails_late = None, False
            if log.partition.failure is not None:
                log.partition.close(clean=False)
                log.partition = log.open(recovery_point=0)
                told.tell("opened again")
            log.sync()
            told.tell("the disk works")
    work = log.write("-", sync=False).partition.sync_work()
    log.partition.roll(log.now_ms)
    again = log.write("- -", sync=False).partition.sync_work()
    log.partition.roll(log.now_ms)
    log.disk.fault = failing_at(".summary", ("writing",))
    again.run()
    log.partition.finish_sync(again)
    log.disk.fault = None
    told.tell(
        f"what is not written: {[short(path.name) for files in again.unwritten for path in files]}, {len(work.files)} files"
    )
    log.sync()
    told.tell("it comes first")
    log.disk.fault = failing_at("", ("renaming",))
    log.partition.deletion.delete_records(log.partition.segments()[2].base_offset)
    log.disk.fault = failing_at("", ("removing",))
    try:
        log.partition.deletion.remove_deleted(log.now_ms)
    except DiskError:
        told.tell("deleted, and cannot be removed")
    log.disk.fault = None
    close_all(log.partition.deletion.remove_deleted(log.now_ms))
    told.tell("removed")
    log.disk.fault = failing_at("", ("syncing",))
    log.write("-", sync=False)
    try:
        log.sync()
    except DiskError:
        told.tell("cannot be synced")
    log.disk.fault = None
    try:
        log.partition.close()
    except DiskError:
        log.partition.close(clean=False)
    told.tell("closed")
    assert log.disk.names_held() == []
    return told.account.lines


def failing_at(suffix, calls):
    return lambda what, path: errno.EIO if what in calls and path.name.endswith(suffix) else None


# -- damage ---------------------------------------------------------------------------------------------------------


def plain_log():
    """A log of several segments and two leader epochs, killed. Each test has a copy."""
    log = Log(TracingDisk(), segment_bytes=420, index_interval_bytes=100)
    log.write("P1 - P2 P1a P3 - P2 P2a - P3")
    log.reopen(clean=False, leader_epoch=1)
    log.write("P3c - P1 P1 P1c - P4 -", sync=False)
    log.sync()
    return closed(log)


def compacted_log():
    """A compacted log: two sealed segments with gaps, one without, and the growing one."""
    log = KeyedLog(TracingDisk(), segment_bytes=600)
    for words in ("a=1 P1:b=1 a=2", "P1c b=2 d=1", "P2:e=1 f=1 P2a e=2 g=1"):
        log.write(words, roll="g" in words or "d" in words)
        log.now_ms += 10
    log.compact()
    log.write("x=1 P3:y=1").write("p=1 P3a q=1 p=2", roll=False)
    return closed(log)


def short_log():
    """A log of one segment, which has a snapshot within it, and an open transaction."""
    log = Log(TracingDisk(), index_interval_bytes=100)
    log.write("P1 - P1a P2 P2c")
    for words in ("P3 - -", "P4", "-"):
        log.partition.log.take_snapshot()
        log.now_ms += 5
        log.write(words)
    return closed(log)


def closed(log):
    log.end_offset = log.partition.end_offset
    log.bases = [segment.base_offset for segment in log.partition.segments()]
    log.partition.close(clean=False)
    return log


def flipped(path, at, bits=1):
    def damage(disk):
        content = bytearray(disk.read_bytes(path))
        content[at] ^= bits
        disk.damage(path, bytes(content))

    return damage


def ended(path, size, more=b""):
    return lambda disk: disk.damage(path, disk.read_bytes(path)[:size] + more)


def lost(*paths):
    def damage(disk):
        for path in paths:
            disk.lose(path)

    return damage


def put(path, content):
    return lambda disk: disk.write_atomic(path, content)


def changed_batches(log):
    """A bit in each field of the header of some batches, and in their bodies."""
    for base in log.bases:
        found = headers(log, path_of(base))
        for place in sorted({0, 1, len(found) - 1} & set(range(len(found)))):
            position = found[place][0]
            for at in (7, 11, 15, 22, 64):
                yield f"{base}.log batch {place} byte {at}", flipped(path_of(base), position + at)
            yield f"{base}.log batch {place} epoch too late", flipped(path_of(base), position + 15, 2)
            if place:
                yield f"{base}.log batch {place} byte 0", flipped(path_of(base), position)
                yield f"{base}.log batch {place} byte 6", flipped(path_of(base), position + 6)


def ended_logs(log):
    """Log files that end early, at a batch and within one, or go on behind their end."""
    for base in log.bases:
        path, found = path_of(base), headers(log, path_of(base))
        size = len(log.disk.read_bytes(path))
        ends = {position for position, _ in found[::2]}
        for end in sorted(ends | {1, found[-1][0] + 60, found[-1][0] + 61, size - 1}):
            yield f"{base}.log ends at {end}", ended(path, end)
        first = log.disk.read_bytes(path)[: found[1][0] if len(found) > 1 else size]
        for more in dict.fromkeys((b"\0", bytes(61), bytes(200), first[:60], first[:61], first)):
            what = "of a batch" if any(more) else "of zeros"
            yield f"{base}.log goes on with {len(more)} bytes {what}", ended(path, size, more)


def lost_files(log):
    """Each file is lost, or cut, or changed; all of a segment, of a kind, and both snapshots of an offset."""
    names = sorted(path for path in log.disk.files())
    for path in names:
        yield f"{short(path.name)} is lost", lost(path)
        size = len(log.disk.read_bytes(path))
        if path.suffix != ".log" and size:
            yield f"{short(path.name)} is cut", ended(path, size - 1)
            yield f"{short(path.name)} is changed", flipped(path, size // 2)
            yield f"{short(path.name)} goes on", ended(path, size, b"\0" * 34)
    for base in log.bases:
        files = [path_of(base, suffix) for suffix in SEGMENT_SUFFIXES]
        yield f"segment {base} is lost", lost(*files)
        yield f"indexes of {base} are lost", lost(*files[1:])
        snapshots = [path_of(base, suffix) for suffix in (".snapshot", ".producers")]
        yield f"snapshots of {base} are lost", lost(*snapshots)
        yield f"all of {base} but its log is lost", lost(*files[1:], *snapshots)
    for suffix in (".snapshot", ".producers", ".summary"):
        yield f"every {suffix} is lost", lost(*(path for path in names if path.suffix == suffix))
    yield (
        "both kinds of snapshots are lost",
        lost(*(p for p in names if p.suffix in (".snapshot", ".producers"))),
    )
    yield "all but log files is lost", lost(*(path for path in names if path.suffix != ".log"))


def moved_starts(log):
    """The log's start is at every bound, with the segments before it there and gone."""
    for base, behind in zip(log.bases, [*log.bases[1:], log.end_offset], strict=True):
        older = [path_of(one, suffix) for one in log.bases if one < base for suffix in SEGMENT_SUFFIXES]
        logs = [path for path in older if path.suffix == ".log"]
        for start in sorted({base, behind - 1}):
            moved = put(DIRECTORY / LOG_START_FILE, encode_log_start(start))
            yield f"starts at {start}", moved
            yield f"starts at {start}, and {base}.log is lost", together(moved, lost(path_of(base)))
            if older:
                yield f"starts at {start}, before {base} is gone", together(moved, lost(*older))
        if older:
            moved = put(DIRECTORY / LOG_START_FILE, encode_log_start(base))
            yield f"starts at {base}, logs before it are gone", together(moved, lost(*logs))
            snapshots = [path_of(one, suffix) for one in log.bases for suffix in (".snapshot", ".producers")]
            yield f"starts at {base}, without snapshots", together(moved, lost(*snapshots))
    for start in (log.end_offset, log.end_offset + 1):
        yield f"starts at {start}", put(DIRECTORY / LOG_START_FILE, encode_log_start(start))
    for start in sorted({0, log.bases[-1], log.end_offset + 1}):
        yield f"the view starts at {start}", put(DIRECTORY / VIEW_START_FILE, encode_log_start(start))
    for epochs in (
        "0\n0\n",
        "0\n1\n0 0\n",
        "0\n1\n9 0\n",
        "0\n2\n0 0\n1 1\n",
        "0\n1\n1 0\n",
        "0\n2\n0 0\n9 999\n",
    ):
        yield f"epochs {epochs.split()}", put(DIRECTORY / EPOCH_FILE, epochs.encode())


def unused_ends(log):
    """An empty segment behind the last one, as a roll leaves it, with each of the files that come after it."""
    end = log.end_offset
    last = [path_of(log.bases[-1], suffix) for suffix in (".index", ".timeindex")]
    empty = put(path_of(end), b"")
    summary = put(path_of(log.bases[-1], ".summary"), Summary(log.bases[-1], end, log_size=1).encode())
    table = (
        decode_producers(log.disk.read_bytes(path_of(log.bases[-1], ".producers")))[0]
        if len(log.bases) > 1
        else ProducerTable()
    )
    ours = put(path_of(end, ".producers"), b"".join(encode_producers(table, Summary(end, end))))
    kafkas = put(path_of(end, ".snapshot"), b"".join(encode_snapshot(table)))
    yield "empty", empty
    yield "empty, and indexes before it are lost", together(empty, lost(*last))
    yield "empty, and our snapshot", together(empty, ours)
    yield "empty, and Kafka's snapshot", together(empty, kafkas)
    yield "both snapshots alone", together(ours, kafkas)
    yield "empty, snapshots and a wrong summary", together(empty, ours, kafkas, summary)
    yield "two empty ones", together(empty, put(path_of(end + 3), b""))
    yield "an empty one behind a gap", put(path_of(end + 3), b"")
    yield "an empty one that begins too early", put(path_of(end - 1), b"")
    for name in (
        f"{end:020d}.log.deleted",
        f"{end:020d}.log.cleaned",
        f"{end:020d}.index.swap",
        f"{end:020d}.summary.tmp",
    ):
        yield f"an interrupted {short(name)}", put(DIRECTORY / name, b"some")


def several_at_once(log):
    """Two or three of the other damages together."""
    chance = random.Random(len(log.bases))
    every = [
        one for damages in (changed_batches, ended_logs, lost_files, moved_starts) for one in damages(log)
    ]
    for _ in range(40):
        chosen = chance.sample(every, chance.choice([2, 2, 3]))
        yield ", ".join(title for title, _ in chosen), together(*(damage for _, damage in chosen))


def together(*damages):
    def damage(disk):
        for one in damages:
            with contextlib.suppress(FileNotFoundError, IndexError):  # another one has taken what it changes
                one(disk)

    return damage


DAMAGES = [changed_batches, ended_logs, lost_files, moved_starts, unused_ends, several_at_once]
MAKES = [plain_log, compacted_log, short_log]
PARTS = 6
NAMES_OPERATIONS = [ended_logs, lost_files]
OPENINGS = {
    "stopped": {"clean": True, "is_established": True},
    "behind": {"clean": False, "is_established": True, "recovery_point": 0},
    "foreign": {"clean": False, "recovery_point": None, "leader_epoch": 0},
}


def opened(log, whole, disk, known, *, names_operations):
    """What becomes of a start: the offsets of the partition, and the files that it has changed; `=` as in the whole log."""
    before = {path.name: disk.read_bytes(path) for path in disk.files()}
    log.disk = disk
    arguments = {"recovery_point": log.end_offset, "leader_epoch": 1, "gapless_epoch": 0, **known}
    if not known.get("is_established"):
        del arguments["gapless_epoch"]
    try:
        partition = log.open(prove=False, **arguments)
        told = f"{partition.start_offset}..{partition.end_offset}"
        told += f" {[txn.first_offset for txn in partition.log.open_transactions()]}"
        told += "".join(
            f" cut {c.offset}@{c.position}+{c.size} {short(c.kept.name)}" for c in partition.removed_tails
        )
        unproven = [segment.base_offset for segment in partition.segments() if not segment.is_proven]
        told += f" unproven {unproven}" if unproven else ""
        partition.close(clean=False)
        assert disk.names_held() == []
    except DamageError:
        told = "refused"
    done = operations_of(disk)
    after = {path.name: disk.read_bytes(path) for path in disk.files()}
    changed = [f"-{short(name)}" for name in sorted(before.keys() - after.keys())]
    there = {path.name: whole.read_bytes(path) for path in whole.files()}
    changed += [
        f"{short(name)}{'=' * (there.get(name) == after[name])}"
        for name in sorted(after)
        if before.get(name) != after[name]
    ]
    return (
        f"{told}{' ' * bool(changed)}{' '.join(changed)}{f' > {done}' if done and names_operations else ''}"
    )


def examined(log, disk, *, names_operations):
    """The damage that an examination finds, and what a cut there makes of the log."""
    expected = Expected(recovery_point=log.end_offset, leader_epoch=1, gapless_epoch=0)
    try:
        damage = examine(disk, DIRECTORY, expected)
    except DamageError:
        return "no cut mends it"
    finally:
        assert disk.names_held() == []
    if damage is None:
        return "whole"
    as_read_whole = examine(disk, DIRECTORY, replace(expected, is_read_whole=True))
    told = " refused: ".join(
        f"{short(one.path.name)}@{one.position} end {one.end_offset} size {one.size} lost {one.batch_count} batches "
        f"{one.record_count} records {one.marker_count} markers to {one.last_offset} later {list(one.later)} durable "
        f"{one.durable_end}{' gaps' * one.has_gaps}{' passed over' * one.is_passed_over}"
        for one in (damage, damage.refused)
        if one is not None
    )
    if (as_read_whole.path, as_read_whole.position) != (damage.path, damage.position):
        told += f" read whole: {short(as_read_whole.path.name)}@{as_read_whole.position}"
    cuts = truncate_at_damage(disk, DIRECTORY, damage.refused or damage)
    assert disk.names_held() == []
    copies = [
        f"{one.offset} {short(one.path.name)}@{one.position}+{one.size} {short(one.kept.name)}"
        for one in cuts
    ]
    done, content = operations_of(disk), {path.name: disk.read_bytes(path) for path in disk.files()}
    files = [
        f"{short(name)} {' '.join(in_words(name, content[name])) if name.endswith(SUMMARY) else ''}".strip()
        for name in content
        if name.endswith((LOG, SUMMARY))
    ]
    return f"{told} | cuts {copies} leaves {'; '.join(files[-2:])}{f' > {done}' if names_operations else ''}"


def outcome(log, whole, damage, *, names_operations):
    """Lines for what every start, a proof, and an examination make of a damage."""
    disk = copy_of(whole)
    damage(disk)
    before, lines = None, []
    for name, known in OPENINGS.items():
        told = opened(log, whole, copy_of(disk), known, names_operations=names_operations)
        if told != before:
            lines.append(f"  {name}: {told}")
        before = told
    found = verify_directory(disk, DIRECTORY, recovery_point=log.end_offset, gapless_epoch=0)
    assert disk.names_held() == []
    lines.append(f"  verify: {' '.join(short(finding.path.name) for finding in found)}")
    return (*lines, f"  examine: {examined(log, disk, names_operations=names_operations)}")


def damaged(make, damages):
    """Each outcome, behind the damages that have it."""
    log = make()
    whole, outcomes = log.disk, {}
    for title, damage in list(damages(log)):
        found = outcome(log, whole, damage, names_operations=damages in NAMES_OPERATIONS)
        outcomes.setdefault(found, []).append(title)
    return [line for lines, titles in outcomes.items() for line in (f"# {'; '.join(titles)}", *lines)]


def account_of(make, damages):
    return lambda: damaged(make, damages)


# -- constants and defaults -------------------------------------------------------------------------------------------


def constants_and_defaults():
    """A line for each constant number of the log's modules, and for each default of a class or of a function."""
    lines = []
    for found in pkgutil.walk_packages(stablelog.log.__path__, "stablelog.log."):
        module = importlib.import_module(found.name)
        for name, value in sorted(vars(module).items()):
            own = f"{found.name.removeprefix('stablelog.')}.{name}"
            if getattr(value, "__module__", found.name) != found.name:
                continue
            if isinstance(value, type):
                if name in SETTINGS:
                    continue  # the broker names every field
                lines += [f"{own}.{told}" for told in defaults_of_class(value)]
            elif inspect.isfunction(value):
                lines += [f"{own}({told})" for told in defaults_of(value)]
            elif re.fullmatch("_?[A-Z][A-Z_0-9]+", name) and not AMOUNTS.search(name):
                numbers = isinstance(value, int | slice) or name.strip("_") in (
                    "KINDS",
                    "REST_SIZES",
                    "NO_BATCH",
                )
                lines += [f"{own} = {value!r}"] * numbers
                if isinstance(value, struct.Struct):
                    lines.append(f"{own} = {value.format}")
                elif isinstance(value, list) and all(isinstance(one, struct.Struct) for one in value):
                    lines.append(f"{own} = {[one.size for one in value]}")
    return lines


def defaults_of_class(value):
    if issubclass(value, enum.Enum):
        return [f"{one.name} = {one.value}" for one in value]
    if hasattr(value, "_field_defaults"):
        return [f"{name} = {default!r}" for name, default in value._field_defaults.items()]
    if is_dataclass(value):
        known = [one for one in fields(value) if one.default is not MISSING]
        return [f"{one.name} = {one.default!r} {one.init} {one.compare} {one.repr}" for one in known]
    methods = [(name, getattr(one, "__func__", one)) for name, one in vars(value).items()]
    return [
        f"{name}({told})" for name, one in methods if inspect.isfunction(one) for told in defaults_of(one)
    ]


def defaults_of(function):
    parameters = inspect.signature(function).parameters.values()
    told = [f"{one.name}={one.default!r}" for one in parameters if one.default is not inspect.Parameter.empty]
    return [", ".join(told)] if told else []


STORIES = {
    "constants_and_defaults": constants_and_defaults,
    "growing_and_rolling": growing_and_rolling,
    "deleting_and_truncating": deleting_and_truncating,
    "compacting": compacting,
    "failing": failing,
}
ACCOUNTS = STORIES | {
    f"{damages.__name__}_of_{make.__name__}": account_of(make, damages)
    for damages in DAMAGES
    for make in MAKES
}


def test_an_account_of_growing_and_rolling():
    compare("growing_and_rolling", growing_and_rolling())


def test_an_account_of_deleting_and_truncating():
    compare("deleting_and_truncating", deleting_and_truncating())


def test_an_account_of_compacting():
    compare("compacting", compacting())


def test_an_account_of_calls_that_fail():
    compare("failing", failing())


def test_constants_and_defaults_are_those_that_are_kept():
    """Formats and callers rely on them: a change is to be seen. A log that is written and damaged is proof that they work."""
    KeyedLog().write("a=1 P1:b=1 P1a a=2").compact()
    log = short_log()
    title, damage = next(iter(changed_batches(log)))
    assert outcome(log, log.disk, damage, names_operations=False), title
    compare("constants_and_defaults", constants_and_defaults())


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("part", range(PARTS))
class TestDamages:
    """In parts, each with every so many damages, so that a fault in the code is met soon."""

    @pytest.mark.sampled(7)
    def test_changed_batches(self, make, part):
        check_part(make, changed_batches, part)

    @pytest.mark.sampled(7)
    def test_logs_that_end_early_or_late(self, make, part):
        check_part(make, ended_logs, part)

    @pytest.mark.sampled(5)
    def test_lost_files(self, make, part):
        check_part(make, lost_files, part)

    @pytest.mark.sampled(7)
    def test_moved_starts(self, make, part):
        check_part(make, moved_starts, part)

    @pytest.mark.sampled(9)
    def test_segments_that_are_not_used(self, make, part):
        check_part(make, unused_ends, part)

    @pytest.mark.sampled(7)
    def test_several_damages_at_once(self, make, part):
        check_part(make, several_at_once, part)


def check_part(make, damages, part):
    """Hold the outcomes of some damages against the kept text."""
    wanted = {}
    for line in kept(f"{damages.__name__}_of_{make.__name__}"):
        if line.startswith("# "):
            titles = line[2:].split("; ")
            lines = []
            wanted |= dict.fromkeys(titles, lines)
        else:
            lines.append(line)
    log = make()
    whole, found = log.disk, list(damages(log))
    assert {title for title, _ in found} == wanted.keys()
    assert len(wanted) == len(found)
    for title, damage in found[part::PARTS]:
        told = outcome(log, whole, damage, names_operations=damages in NAMES_OPERATIONS)
        assert (title, list(told)) == (title, wanted[title])


def test_every_kept_text_is_that_of_an_account():
    assert {path.stem for path in KEPT.iterdir()} == set(ACCOUNTS)
