"""The files of a partition after a restore: from the objects in the store, this module makes the files that replace
those of a lost disk.

The restored log has all records up to the end of the last manifest, the list of the partition's segments in the store.
These records stay in the store. After them, the local log begins with batches without records. These batches take all
offsets that the lost broker may have given to records that are not in the store, so that no offset is ever given to two
records: see `log.files.restored`.

The store may have records of a transaction whose marker is lost. If other records of the transaction may be lost, too,
a marker after these batches aborts it in this partition, so that no reader gets only some of its records.

Source: docs/decisions/0026-restore.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from stablelog.batch.header import MAGIC, BatchHeader, assemble
from stablelog.batch.markers import Marker, MarkerType, encode_marker
from stablelog.env.disk import Buffer
from stablelog.log.files.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.files.log_start import LOG_START_FILE, encode_log_start
from stablelog.log.files.names import (
    LOG,
    PRODUCERS,
    REMOTE_MANIFEST_FILE,
    RESTORED_FILE,
    SNAPSHOT,
    VIEW_START_FILE,
)
from stablelog.log.files.partition_metadata import METADATA_FILE, encode_partition_metadata
from stablelog.log.files.restored import Restored
from stablelog.log.segments.segment import RELATIVE_OFFSET_MAX
from stablelog.tier.index_object import IndexKind
from stablelog.tier.manifest import Manifest
from stablelog.tier.names import RemotePartition
from stablelog.tier.records import SegmentState
from stablelog.tier.remote_segment import RemoteSegment

# How many offsets after the restored end get no record. The lost broker may have appended records after the log end
# that it last published: the gap holds 1,000 s of a million records a second.
GAP: Final = 1_000_000_000
# How many of them are in one segment. The offsets of a segment are within RELATIVE_OFFSET_MAX of its base offset, and abort
# markers may follow in the last one.
GAP_SEGMENT_MAX: Final = 2_000_000_000
assert GAP < GAP_SEGMENT_MAX < RELATIVE_OFFSET_MAX
# The leader epoch of a broker counts its starts. The lost broker may have started without a copy to the store.
LEADER_EPOCH_STEP: Final = 1_000


class Stored(NamedTuple):
    """The content of the object store for one partition, from which a restore makes the partition's files.

    Attributes:
        partition: the partition.
        manifest: its last manifest, the list of its segments in the store; an empty one if none was published.
        payload: the encoded manifest.
        parts: the contents of the manifest's parts (objects that list older segments), by the file name that they get.
        last_indexes: the files of the last segment except its log file, by kind; empty if there is no segment.
    """

    partition: RemotePartition
    manifest: Manifest
    payload: bytes
    parts: Mapping[str, bytes]
    last_indexes: Mapping[IndexKind, Buffer]

    @property
    def live(self) -> list[RemoteSegment]:
        """The segments of the partition in the store that are not being deleted."""
        return [one for one in self.manifest.segments if one.state is SegmentState.COPY_FINISHED]

    @property
    def end_offset(self) -> int:
        """The end of the partition's records in the store, exclusive: the restore loses the records from this offset
        on.
        """
        return self.manifest.end_offset

    @property
    def latest_sequence(self) -> int:
        """The greatest commit sequence (a commit's number in the order of commits) that the store has of a
        commit-ordered partition; -1 if there is none.
        """
        commits = [one.commit.latest_sequence for one in self.manifest.segments if one.commit is not None]
        return max(commits, default=-1)

    @property
    def restored(self) -> Restored | None:
        """The offsets and commits that earlier restores of the partition have lost; None if the partition was never
        restored.
        """
        return None if self.manifest.published is None else self.manifest.published.restored

    @property
    def view_start(self) -> int:
        """The first position in commit order (the offset that read-committed readers see) whose record is not deleted;
        0 for a partition that is not commit-ordered.
        """
        return 0 if self.manifest.published is None else self.manifest.published.view_start

    @property
    def log_end(self) -> int:
        """The greatest log end offset that is known of the lost log: the one that the last manifest (the list of the
        segments in the store) records, or the end of these segments.
        """
        said = self.manifest.published
        return self.end_offset if said is None else max(said.log_end, self.end_offset)


def leader_epoch_of(stored: Iterable[Stored]) -> int:
    """Return the leader epoch of the restored broker: greater than each leader epoch that the lost broker can have
    used.
    """
    known = [0]
    for one in stored:
        known += [epoch for segment in one.manifest.segments for epoch, _ in segment.leader_epochs]
        known += [] if one.restored is None else [one.restored.leader_epoch]
    return max(known) + LEADER_EPOCH_STEP


def gap_end(stored: Stored) -> int:
    """Return the offset at which the records that are written after the restore begin. It is so far after the known end
    of the lost log that the lost broker cannot have given this offset, or a later one, to a record.
    """
    return max(stored.end_offset, stored.log_end) + GAP


def lost_ranges(stored: Stored) -> tuple[tuple[int, int], ...]:
    """Return the offsets whose records this restore and earlier ones have lost, without those before the log start.
    Each range is a pair: its first offset, and the offset after its last one.

    If nothing was copied to the store after an earlier restore, its range and that of this restore are adjacent. A
    consumer that has read up to the earlier range then skips both.
    """
    known = () if stored.restored is None else stored.restored.ranges
    earlier = [one for one in known if one[1] > stored.manifest.log_start]
    start = max([stored.end_offset, *(end for _, end in earlier)])
    return (*earlier, (start, gap_end(stored)))


def empty_batch(start: int, end: int, leader_epoch: int) -> bytes:
    """Return the bytes of a batch without records that takes the offsets [start, end), so that no new record gets one
    of them.
    """
    assert 0 < end - start <= RELATIVE_OFFSET_MAX
    return assemble(
        BatchHeader(start, 0, leader_epoch, MAGIC, 0, 0, end - start - 1, -1, -1, -1, -1, -1, 0), b""
    )


def gap_segments(ranges: Iterable[tuple[int, int]], start: int, leader_epoch: int) -> dict[int, bytes]:
    """Return the contents of log files of segments without records, by the base offset of the segment. Their batches
    take the lost offsets of the ranges, from `start` on, so that no new record gets a lost offset.

    Each segment has one batch. A consumer whose committed offset was lost must learn of the loss: it gets an error,
    unless its offset happens to be the end of a batch. There should therefore be few batches, so each range gets only
    one, unless it has more than GAP_SEGMENT_MAX offsets.

    Args:
        ranges: the first lost offset of each range, and the offset after its last one.
        start: offsets before this one get no batch.
        leader_epoch: the leader epoch of the batches.
    """
    segments = {}
    for _, end in ranges:
        while start < end:
            segments[start] = empty_batch(start, min(start + GAP_SEGMENT_MAX, end), leader_epoch)
            start = min(start + GAP_SEGMENT_MAX, end)
    return segments


class OpenPart(NamedTuple):
    """The records of an unfinished transaction in one partition: the store has some of its records, but not its marker,
    so that a marker must abort it after the restore.

    Attributes:
        producer_id: the id of the producer.
        producer_epoch: the epoch with which the transaction has ended.
        coordinator_epoch: the epoch of the last coordinator that has ended a transaction of the producer.
        first_offset: the first offset of the transaction in the partition.
        record_count: how many of its records the store has of the partition.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    first_offset: int
    record_count: int


def abort_markers(parts: Sequence[OpenPart], base_offset: int, leader_epoch: int, now_ms: int) -> bytes:
    """Return the bytes of abort markers for transactions of which the store has records, but no marker. Each
    transaction gets a batch with one marker; the first batch has the offset `base_offset`.
    """
    return b"".join(
        encode_marker(
            Marker(MarkerType.ABORT, max(part.coordinator_epoch, 0)),
            base_offset=base_offset + number,
            leader_epoch=leader_epoch,
            producer_id=part.producer_id,
            producer_epoch=part.producer_epoch,
            timestamp_ms=now_ms,
        )
        for number, part in enumerate(parts)
    )


def topic_files(
    stored: Stored, leader_epoch: int, lost: Restored, markers: bytes, *, is_commit_ordered: bool
) -> dict[str, bytes]:
    """Return the contents of all files that the directory of a topic's partition gets, by file name.

    Args:
        stored: what the store has of the partition.
        leader_epoch: the leader epoch of the restore.
        lost: the offsets and commits whose records this restore and earlier ones have lost.
        markers: batches with abort markers, which follow the lost offsets; empty if no transaction must be aborted.
        is_commit_ordered: whether the topic is commit-ordered.
    """
    start = stored.end_offset
    files = _common_files(stored, start, leader_epoch, start)
    files[RESTORED_FILE] = lost.encode()
    segments = gap_segments(lost.ranges, start, leader_epoch)
    segments[max(segments)] += markers
    files |= {f"{base:020}{LOG}": content for base, content in segments.items()}
    for kind, suffix in ((IndexKind.SNAPSHOT, SNAPSHOT), (IndexKind.PRODUCERS, PRODUCERS)):
        if kind in stored.last_indexes and stored.live:
            files[f"{stored.live[-1].end_offset:020}{suffix}"] = bytes(stored.last_indexes[kind])
    if is_commit_ordered:
        files[VIEW_START_FILE] = encode_log_start(max(stored.manifest.log_start, stored.view_start))
    return files


def coordinator_log_files(stored: Stored, leader_epoch: int, appended: bytes) -> dict[str, bytes]:
    """Return the contents of the files that the directory of a coordinator's log gets, by file name. The log files of
    the segments that the store has are not among them: the caller downloads and adds them.

    Args:
        stored: what the store has of the log.
        leader_epoch: the leader epoch of the restore.
        appended: batches that the restore appends at the end; they may be empty.
    """
    files = _common_files(stored, stored.manifest.log_start, leader_epoch, stored.end_offset)
    # A copied segment must not grow. Recovery drops a last segment without a batch, so there is always one.
    end = stored.end_offset
    files[f"{end:020}{LOG}"] = appended or empty_batch(end, end + 1, leader_epoch)
    return files


def _common_files(stored: Stored, log_start: int, leader_epoch: int, epoch_start: int) -> dict[str, bytes]:
    content = stored.last_indexes.get(IndexKind.LEADER_EPOCHS, b"")
    epochs = LeaderEpochs.decode(bytes(content)) if len(content) else LeaderEpochs()
    epochs.truncate_to(stored.end_offset)
    epochs.assign_epoch(leader_epoch, epoch_start)
    return {
        METADATA_FILE: encode_partition_metadata(stored.partition.topic_id),
        **stored.parts,
        **({REMOTE_MANIFEST_FILE: stored.payload} if stored.payload else {}),
        LOG_START_FILE: encode_log_start(log_start),
        EPOCH_FILE: epochs.encode(),
    }
