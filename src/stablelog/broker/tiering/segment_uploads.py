"""Uploads one sealed segment: its log file and its indexes, under a new id.

The local files are read in pieces, and checked against the segment's summary, a small file with its sizes and
checksums. An upload that fails, or that a crash ends, leaves objects that no manifest (list of a partition's segments
in the store) names. The broker deletes them later.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Final

from stablelog.broker.loop.threads import in_thread
from stablelog.broker.tiering.commit_files import commit_files
from stablelog.broker.tiering.copy_throttle import CopyThrottle, run_at_half_speed
from stablelog.broker.tiering.metadata_topic import MetadataTopic
from stablelog.env.disk import Disk, read_if_there
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError, UnavailableError
from stablelog.log.compaction.aborted_data import Rewritten, without_aborted
from stablelog.log.files.epochs import LeaderEpochs
from stablelog.log.files.names import LOG as LOG_SUFFIX
from stablelog.log.indexes.summary import Summary
from stablelog.log.partition import Partition
from stablelog.log.segments.sealed_segment import SealedSegment
from stablelog.tier.copy_rules import copied_segment, epochs_up_to, other_files
from stablelog.tier.cut_points import encode_cut_points
from stablelog.tier.index_object import CommitFiles, IndexKind, directory_crc, encode_indexes
from stablelog.tier.names import INDEXES, LOG, RemotePartition
from stablelog.tier.remote_segment import RemoteSegment

PIECE_SIZE: Final = 1 << 20  # The size of the pieces in which a log file is read and uploaded, in bytes.


class SegmentUploads:
    """Uploads sealed segments to the object store.

    Args:
        store: the object store.
        disk: the disk of the partitions.
        threads: run the uploads.
        node_id: the broker's id.
        throttle: limits the rate of the uploads.
        chunk_size: the least size of the chunks in which readers load a log file, in bytes.
        events: the topic that gets an event when an upload begins; None if there is none.

    Attributes:
        size: how many bytes of log files were uploaded.
        count: the number of segments that were uploaded.
    """

    def __init__(
        self,
        store: ObjectStore,
        disk: Disk,
        threads: ThreadPoolExecutor,
        *,
        node_id: int,
        throttle: CopyThrottle,
        chunk_size: int,
        now_ms: Callable[[], int],
        events: MetadataTopic | None,
    ) -> None:
        self._store = store
        self._disk = disk
        self._threads = threads
        self._node_id = node_id
        self._throttle = throttle
        self._chunk_size = chunk_size
        self._now_ms = now_ms
        self._events = events
        self.size = 0
        self.count = 0

    async def upload(
        self,
        partition: Partition,
        remote_partition: RemotePartition,
        segment: SealedSegment,
        is_cancelled: Callable[[], bool],
    ) -> RemoteSegment:
        """Upload one segment of a partition under a new id. Return the description of the uploaded segment, which the
        caller adds to the manifest, the list of the partition's segments in the store.

        Raises:
            StoreError: the store does not answer, or rejects a request.
            UnavailableError: the upload was cancelled, or the commit index of the segment is not written yet.
            DamageError: a local file is damaged. The message names the file.
            FileNotFoundError: the segment was deleted from the disk.
        """
        segment_id = uuid.uuid4()
        key = partial(remote_partition.segment_key, segment.base_offset, segment_id)
        epochs = epochs_up_to(partition.log.epochs.entries, segment.end_offset)
        rewritten = await self._without_aborted_data(partition, segment, is_cancelled)
        summary = segment.summary if rewritten is None else rewritten.summary
        row = copied_segment(
            summary,
            epochs,
            segment_id=segment_id,
            broker_id=self._node_id,
            now_ms=self._now_ms(),
        )
        if self._events is not None:
            await self._events.append_copy_started(remote_partition, row)
        files, commit = await in_thread(
            self._threads, self._index_files, segment, rewritten, epochs, partition.view is not None
        )
        points, crcs = await in_thread(self._threads, self._cut_points, segment, summary, rewritten)
        indexes_crc = await in_thread(
            self._threads, self._upload_files, segment, summary, rewritten, files, key, is_cancelled
        )
        self.size += summary.log_size
        self.count += 1
        return replace(
            row,
            cut_points=points,
            header_crcs=crcs,
            commit=commit,
            indexes_crc=indexes_crc,
            event_ms=self._now_ms(),
        )

    async def _without_aborted_data(
        self, partition: Partition, segment: SealedSegment, is_cancelled: Callable[[], bool]
    ) -> Rewritten | None:
        """Return a copy of the segment without the data of aborted transactions. Return None if the settings of the
        topic do not demand that copies leave out this data.
        """
        if not partition.config.drops_aborted_copies or partition.view is not None:
            return None
        steps = without_aborted(
            self._disk,
            segment.path(LOG_SUFFIX).parent,
            segment.summary,
            partition.log.aborted_behind(segment.end_offset),
            index_interval=partition.config.index_interval_bytes,
        )
        return await in_thread(self._threads, run_at_half_speed, steps, is_cancelled)

    def _upload_files(
        self,
        segment: SealedSegment,
        summary: Summary,
        rewritten: Rewritten | None,
        files: Mapping[IndexKind, bytes],
        key: Callable[[str], str],
        is_cancelled: Callable[[], bool],
    ) -> int:
        """Upload the files of a segment: the log file as one object, and all others together as the object of indexes.
        Return the CRC of that object's directory, from which a reader knows that the indexes are undamaged. Runs in a
        thread.
        """
        store = self._store
        with closing(self._disk.open(segment.path(LOG_SUFFIX))) as file:
            read = file.read if rewritten is None else partial(rewritten.log.read, file.read)
            store.upload(
                key(LOG), lambda: self._pieces(segment, summary, read, is_cancelled), summary.log_size
            )
            indexes = encode_indexes(files)
            store.upload(key(INDEXES), lambda: [indexes], len(indexes))
            return directory_crc(indexes)

    def _cut_points(
        self, segment: SealedSegment, summary: Summary, rewritten: Rewritten | None
    ) -> tuple[bytes, bytes]:
        """Choose the cut points of a log file before its upload, and check all its batch headers against the checksum
        in the segment's summary, a small file with its sizes and checksums. (Cut points are the positions at which
        readers divide the file into chunks.) Return a pair: the encoded cut points, and for each of them the CRC of the
        batch headers before it, encoded. Runs in a thread.
        """
        with closing(self._disk.open(segment.path(LOG_SUFFIX))) as file:
            read = file.read if rewritten is None else partial(rewritten.log.read, file.read)
            try:
                return encode_cut_points(summary, read, self._chunk_size)
            except DamageError as error:
                raise DamageError(f"the log file {segment.path(LOG_SUFFIX)} is damaged: {error}") from None

    def _index_files(
        self,
        segment: SealedSegment,
        rewritten: Rewritten | None,
        epochs: LeaderEpochs,
        is_commit_ordered: bool,
    ) -> tuple[Mapping[IndexKind, bytes], CommitFiles | None]:
        """Read all files of a segment except its log file. Runs in a thread.

        Returns:
            A pair: the contents of the files by kind, and the description of the segment's commit index, which lists
            the transactions that commit in it; None in its place if the topic is not commit-ordered.
        """
        paths = other_files(segment.path(LOG_SUFFIX).parent, segment.base_offset, segment.end_offset)
        found = {kind: read_if_there(self._disk, path) for kind, path in paths.items()}
        files = {kind: content for kind, content in found.items() if content is not None}
        commit = commit_files(segment.summary, files, paths) if is_commit_ordered else None
        sizes, _ = segment.summary.index_files
        kinds = IndexKind.OFFSETS, IndexKind.TIMES, IndexKind.TRANSACTIONS
        if rewritten is not None:
            files.update(zip(kinds, rewritten.indexes, strict=True))
            sizes, _ = rewritten.summary.index_files
        for kind in kinds:
            content = files.get(kind, b"")
            if len(content) < sizes[kind]:
                raise DamageError(
                    f"{paths[kind]} has {len(content)} bytes, but had {sizes[kind]} when the segment was sealed: restore the file"
                )
            files[kind] = content[: sizes[kind]]  # Kafka preallocates index files, so zeros may follow.
        files[IndexKind.LEADER_EPOCHS] = epochs.encode()
        return files, commit

    def _pieces(
        self,
        segment: SealedSegment,
        summary: Summary,
        read: Callable[[int, int], bytes],
        is_cancelled: Callable[[], bool],
    ) -> Iterator[bytes]:
        """Yield the bytes of the log file that is uploaded, in pieces, and not faster than the limit for copies
        (`CopyThrottle`) allows.
        """
        position = 0
        while position < summary.log_size:
            if is_cancelled():
                raise UnavailableError(
                    f"the copy of {segment.path(LOG_SUFFIX)} was cancelled, because its topic is deleted or "
                    "the broker stops"
                )
            piece = read(position, min(PIECE_SIZE, summary.log_size - position))
            if not piece:
                raise DamageError(
                    f"{segment.path(LOG_SUFFIX)} ends too early, at byte {position}: restore the file"
                )
            self._throttle.wait_for_bytes(len(piece), is_cancelled)
            yield piece
            position += len(piece)
