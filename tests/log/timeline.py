"""Logs written the way the design draws them: a word per offset. `P1` a record of producer 1, `P1c` and `P1a` its end, `-` a record outside transactions."""

import re
from pathlib import Path

from stablelog.batch.markers import Marker, MarkerType
from stablelog.batch.records import Record, encode_batch
from stablelog.log.opening import open_partition
from stablelog.log.partition import Isolation, LogConfig, MarkerWrite
from stablelog.log.search.aborts import find_aborted
from stablelog.testing.sim_disk import SimDisk

DIRECTORY = Path("/data/t-0")
NOW_MS = 1_700_000_000_000


class Log:
    """A partition on a simulated disk, with the sequences of its producers."""

    def __init__(self, disk=None, *, directory=DIRECTORY, recovery_point=0, **config):
        self.disk = disk or SimDisk()
        self.directory = directory
        self.config = LogConfig(**config)
        self.sequences = {}
        self.now_ms = NOW_MS
        self.partition = self.open(recovery_point=recovery_point)

    def open(self, *, clean=False, prove=True, **arguments):
        """Open it; the synced end that the broker recorded is 0 unless a test says another."""
        partition = open_partition(
            self.disk,
            self.directory,
            self.config,
            topic="t",
            partition=0,
            clean=clean,
            now_ms=self.now_ms,
            **{"recovery_point": 0, **arguments},
        )
        if prove:
            partition.log.prove_segments()
        return partition

    def reopen(self, *, clean=True, **arguments):
        self.partition.close(clean=clean)
        self.partition = self.open(clean=clean, **arguments)

    def write(self, words, *, sync=True):
        for word in words.split():
            self.one(word)
        if sync:
            self.sync()
        return self

    def one(self, word):
        if word == "-":
            self.partition.append(encode_batch([Record(0, self.now_ms, None, b"plain")]), now_ms=self.now_ms)
            return
        producer, end = re.fullmatch(r"P(\d+)([ac]?)", word).groups()
        producer_id = int(producer)
        if end:
            self.end(producer_id, commit=end == "c")
        else:
            self.append(producer_id)

    def append(
        self, producer_id, *, count=1, epoch=0, sequence=None, transactional=True, size=5, time_ms=None
    ):
        known = self.sequences.get((producer_id, epoch), 0)
        sequence = known if sequence is None else sequence
        records = [Record(0, self.now_ms if time_ms is None else time_ms, None, bytes(size))] * count
        batch = encode_batch(
            records,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        appended = self.partition.append(batch, now_ms=self.now_ms)
        if not appended.duplicate:
            self.sequences[producer_id, epoch] = (sequence + count) & (2**31 - 1)
        return appended

    def end(self, producer_id, *, commit, epoch=0, coordinator_epoch=0, version=0):
        marker = Marker(MarkerType.COMMIT if commit else MarkerType.ABORT, coordinator_epoch)
        write = MarkerWrite(producer_id, epoch, marker, version)
        return self.partition.append_markers([write], now_ms=self.now_ms)[0]

    def sync(self):
        work = self.partition.sync_work()
        if work is not None:
            work.run()
            self.partition.finish_sync(work)

    def aborted(self, start=0, size_max=1 << 30):
        found = self.partition.read(start, size_max, Isolation.READ_COMMITTED).aborted
        return [f"P{txn.producer_id}@{txn.first_offset}..{txn.last_offset}" for txn in found]

    @property
    def stable_offset(self):
        return self.partition.last_stable_offset

    def all_aborted(self):
        return list(aborted_in(self.partition, self.partition.start_offset, self.stable_offset))


def aborted_in(partition, start, end):
    """The aborted transactions with offsets in [start, end), in the order of their markers."""
    return tuple(find_aborted(partition.log.segments, start, end)[0]) if start < end else ()


def write(words, **config):
    """A log with these words, synced."""
    return Log(**config).write(words)
