"""A partition with a remote tier in a dict: the code of `stablelog.tier` decides what is copied, the test copies it."""

import uuid
from dataclasses import replace

from stablelog.broker.tiering.commit_files import commit_files
from stablelog.env.disk import read_if_there
from stablelog.errors import NotLoadedError
from stablelog.log.compaction.aborted_data import without_aborted
from stablelog.log.partition import Isolation
from stablelog.log.search.times import run_lookup
from stablelog.log.time_lookup import look_up_time
from stablelog.tier.copy_rules import copied_segment, copyable, epochs_up_to, other_files
from stablelog.tier.cut_points import encode_cut_points
from stablelog.tier.index_object import IndexKind, directory_crc, encode_indexes
from stablelog.tier.manifest import Manifest, ManifestSegments
from stablelog.tier.names import INDEXES, LOG, RemotePartition
from stablelog.tier.remote_log import RemoteLog
from stablelog.tier.segment_bytes import check_proof
from tests.log.timeline import NOW_MS, Log

PARTITION = RemotePartition("t", uuid.UUID(int=7), 0)
INTERVAL = 200  # bytes between two entries of the offset index of a copy that is rewritten


def last_of(steps):
    """Run all steps of a generator. Return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


class Loaded:
    """The ranges that were loaded, and a count of the requests by the kind of object.

    A test may forget what is loaded; what is loaded then again counts again.
    """

    def __init__(self, objects):
        self.objects = objects
        self.known = {}
        self.requests = []

    def get(self, wanted):
        return self.known.get(wanted)

    def has(self, wanted):
        return wanted in self.known

    def mark_consumed(self, wanted):
        pass

    def drop(self, wanted):
        self.known.pop(wanted, None)

    def load(self, wanted):
        assert wanted not in self.known, "it is loaded already"
        self.requests.append(wanted)
        content = self.objects.get(wanted.key, b"")
        if wanted.size:
            content = content[wanted.start : wanted.start + wanted.size]
            check_proof(content, wanted, "")
        self.known[wanted] = content

    def count(self, kind):
        return sum(wanted.key.endswith(f".{kind}") for wanted in self.requests)


class Tier:
    """The remote tier of a log: its segments are copied by `copy`, and deleted from its disk by retention."""

    def begin_tier(self, chunk_size):
        """Give the log's partition an empty remote tier."""
        self.chunk_size = chunk_size
        self.objects = {}
        self.saved = []
        self.loaded = Loaded(self.objects)
        self.remote = RemoteLog(
            PARTITION, Manifest("cluster"), self.loaded, self.saved.append, chunk_size=chunk_size
        )
        self.partition.remote = self.remote

    def copy(self, *, with_summary=True, publish=True):
        """Copy every segment that can be copied, and publish them."""
        partition = self.partition
        end_offset = max(self.remote.end_offset, self.remote.start_offset)
        wanted = copyable(partition.log.segments, end_offset, partition.last_stable_offset)
        rows = [self.copied(segment, with_summary=with_summary) for segment in wanted]
        manifest = self.remote.manifest
        if rows and not manifest.segments:
            manifest = manifest._replace(log_start=max(manifest.log_start, rows[0].base_offset))
        elif rows:
            manifest = manifest.with_log_start(self.remote.start_offset, NOW_MS, 1)
        if publish:
            self.publish(manifest.with_copied(rows))
        return rows

    def publish(self, manifest):
        self.remote.set_manifest(manifest, ManifestSegments(manifest.segments))

    def copied(self, segment, *, with_summary=True):
        base, end, identity = segment.base_offset, segment.end_offset, uuid.uuid4()
        log = self.disk.read_bytes(segment.path(".log"))
        summary, rewritten = segment.summary, self.rewritten(segment)
        files = {
            kind: content
            for kind, path in other_files(self.directory, base, end).items()
            if (content := read_if_there(self.disk, path)) is not None
        }
        if rewritten is not None:
            summary, original = rewritten.summary, log
            log = rewritten.log.read(lambda at, size: original[at : at + size], 0, rewritten.log.size)
            kinds = IndexKind.OFFSETS, IndexKind.TIMES, IndexKind.TRANSACTIONS
            files |= zip(kinds, rewritten.indexes, strict=True)
        epochs = epochs_up_to(self.partition.log.epochs.entries, end)
        files[IndexKind.LEADER_EPOCHS] = epochs.encode()
        self.objects[PARTITION.segment_key(base, identity, LOG)] = log
        self.objects[PARTITION.segment_key(base, identity, INDEXES)] = encode_indexes(files)
        points, crcs = encode_cut_points(summary, lambda at, size: log[at : at + size], self.chunk_size)
        row = copied_segment(summary, epochs, segment_id=identity, broker_id=1, now_ms=NOW_MS)
        commit = None if self.partition.view is None else self.commit_files(segment)
        row = replace(
            row,
            cut_points=points,
            header_crcs=crcs,
            commit=commit,
            indexes_crc=directory_crc(encode_indexes(files)),
        )
        return (
            row
            if with_summary
            else row.__class__(
                **{
                    name: getattr(row, name)
                    for name in row.__slots__
                    if name not in ("summary", "is_txn_index_empty")
                }
            )
        )

    def rewritten(self, segment):
        """What is copied in place of a segment; None if the segment itself is."""
        if not self.partition.config.drops_aborted_copies:
            return None
        spanning = self.partition.log.aborted_behind(segment.end_offset)
        steps = without_aborted(self.disk, self.directory, segment.summary, spanning, index_interval=INTERVAL)
        return last_of(steps)

    def commit_files(self, segment):
        paths = other_files(self.directory, segment.base_offset, segment.end_offset)
        files = {kind: read_if_there(self.disk, path) for kind, path in paths.items()}
        return commit_files(segment.summary, files, paths)

    def loading(self, call):
        """Call until what the call needs is loaded."""
        while True:
            try:
                return call()
            except NotLoadedError as missing:
                for wanted in missing.ranges:
                    self.loaded.load(wanted)

    def read(self, start, size_max=1 << 20, isolation=Isolation.READ_COMMITTED, *, at_least_one=True):
        """Read, and load what the read needs."""
        return self.loading(
            lambda: self.partition.read(start, size_max, isolation, at_least_one=at_least_one)
        )

    def look_up_time(self, timestamp_ms, isolation=Isolation.READ_COMMITTED):
        return self.loading(lambda: run_lookup(look_up_time(self.partition, timestamp_ms, isolation)))

    def drop_local(self):
        """Apply local retention that keeps nothing that is in the store."""
        return self.partition.deletion.apply_retention(self.now_ms)


class TieredLog(Tier, Log):
    """A log with a remote tier."""

    def __init__(self, *, chunk_size=100, **config):
        super().__init__(is_tiered=True, **config)
        self.begin_tier(chunk_size)
