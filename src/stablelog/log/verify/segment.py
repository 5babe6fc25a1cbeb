"""Verification of one segment: checks its batches, and compares its indexes and its summary (its offsets, sizes and
checksums) with them.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Final

from stablelog.batch.header import HEADER, BatchHeader
from stablelog.crc32c import crc32c
from stablelog.env.disk import File
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.files.names import INDEX, INDEX_SUFFIXES, LOG, SUMMARY, TIMEINDEX, TXNINDEX, SegmentName
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.summary import NOTHING, Summary
from stablelog.log.indexes.time_index import TimeIndex
from stablelog.log.indexes.transaction_index import ENTRY, AbortedTxn, TransactionIndex
from stablelog.log.recovery.plan import NEVER
from stablelog.log.segments.growing_segment import GrowingSegment
from stablelog.log.segments.scan import TornError, check_crc, check_offset, scan_batches
from stablelog.log.segments.segment import RELATIVE_OFFSET_MAX
from stablelog.log.verify.snapshots import SnapshotProof
from stablelog.log.verify.state import FileFinding, LogState

COVERED: Final = {  # by name of a summary's field that describes another file: the suffix of that file
    "log_size": LOG,
    "log_crc": LOG,
    "index_crc": INDEX,
    "timeindex_crc": TIMEINDEX,
    "txnindex_crc": TXNINDEX,
}


class SegmentProof:
    """The proof that the files of one segment match its log file. While it reads the log file, it updates `state`.

    Args:
        state: the state of the log up to the beginning of this segment.
        snapshots: the snapshots of the partition.
        base_offset: the base offset of the segment.
        following: the base offset of the next segment; None for the last segment.
        gapless_epoch: a leader epoch. Batches of this epoch and of later ones follow each other without a gap in the
            growing segment, so a gap between two of them means lost records.
    """

    def __init__(
        self,
        state: LogState,
        snapshots: SnapshotProof,
        base_offset: int,
        following: int | None,
        gapless_epoch: int,
    ) -> None:
        self._state = state
        self._snapshots = snapshots
        self._base_offset = base_offset
        self._following = following
        self._gapless_epoch = gapless_epoch
        # What the batches contain, up to the last one that was read.
        self._seen = GrowingSegment(state.disk, SegmentName.of(state.directory, base_offset))
        # The greatest timestamp of all batches, including those that compaction has emptied: Kafka's time index counts
        # these, too.
        self._max_timestamp_of_all = NOTHING
        self._aborted: list[AbortedTxn] = []  # the transactions that were aborted in the segment
        # By offset of the marker: the producer ids of abort markers that end no open transaction.
        self._empty_aborts: dict[int, int] = {}
        self._offset_place = self._time_place = 0  # the number of the next entry to be checked in each index
        self._last_indexed = NOTHING  # the offset in the last checked entry of the offset index

    def run(self) -> Iterator[FileFinding]:
        """Verify the segment, and yield the findings, which say what contradicts its log file. There are none if a
        running broker has deleted the segment meanwhile.
        """
        state, base, seen = self._state, self._base_offset, self._seen
        # The index files are read after the size of the log file. If a running broker appends in between, the index
        # files may have entries for later bytes, but they lack none because of this. The summary is read before the
        # size: if there is a summary, the log file does not grow any more.
        self._summary = state.content(base, SUMMARY)
        try:
            file = state.disk.open(state.path(base, LOG))
        except FileNotFoundError:
            state.are_begins_known = False
            return
        with contextlib.closing(file):
            self._indexes = {suffix: state.content(base, suffix) or b"" for suffix in INDEX_SUFFIXES}
            self._offset_index = OffsetIndex(base, self._indexes[INDEX])
            self._time_index = TimeIndex(base, self._indexes[TIMEINDEX])
            if base < state.end_offset:
                yield self._finding(
                    LOG,
                    f"begins at offset {base}, but the segment before it ends at offset {state.end_offset}",
                )
            is_whole = True
            try:
                yield from self._prove_batches(file)
            except DamageError as error:
                is_whole = False
                yield self._finding(LOG, str(error))
        state.end_offset = max(state.end_offset, seen.end_offset)
        if self._following is not None and seen.end_offset < self._following:
            state.is_compacted = True  # Kafka's compaction may have removed the last batches
        yield from self._snapshots.prove_up_to(state.end_offset)
        if is_whole:
            if self._following is not None:
                yield from self._prove_index_ends()
            yield from self._prove_txn_index()
            yield from self._prove_summary()

    def _finding(self, suffix: str, message: str) -> FileFinding:
        return FileFinding(self._state.path(self._base_offset, suffix), message)

    # -- batches -----------------------------------------------------------------------------------------------

    def _prove_batches(self, file: File) -> Iterator[FileFinding]:
        """Check each batch, and the index entries that point to it. Yield a finding (a contradiction between a file and
        the log) for each entry that contradicts the batches.

        A torn batch at the end of the last segment is no finding: a write is not finished, or a crash has left it, and
        the next start truncates the log there.

        Raises:
            DamageError: the bytes at the position of a batch are no batch, or have changed since they were written.
        """
        marks = self._snapshots.header_crcs(self._base_offset) if self._following is None else {}
        gapless_epoch = self._gapless_epoch if self._following is None else NEVER
        seen = self._seen
        try:
            for position, header, batch in scan_batches(file.read, 0, file.size):
                check_crc(header, batch, position)
                check_offset(header, position, seen.end_offset, gapless_epoch)
                yield from self._advance_to(header)
                seen.index_batch(header, position, batch[: HEADER.size], sys.maxsize)
                self._max_timestamp_of_all = max(self._max_timestamp_of_all, header.max_timestamp)
                yield from self._prove_entries(position, header)
                self._apply_batch(header, batch)
                if marks.get(seen.size, seen.log_crc) != seen.log_crc:
                    yield self._finding(
                        LOG,
                        f"the headers of the batches up to byte {seen.size} have changed since they were written",
                    )
                    marks = {}
        except TornError:
            if self._following is not None:
                raise

    def _advance_to(self, header: BatchHeader) -> Iterator[FileFinding]:
        """Update the state of the log up to the beginning of a batch. Yield a finding for each snapshot at an offset up
        to there that contradicts the log, and for the batch itself if its offsets are past what the segment can hold.
        """
        state = self._state
        is_whole = header.is_control or header.record_count == header.last_offset_delta + 1
        if header.base_offset > state.end_offset or not header.record_count or not is_whole:
            state.is_compacted = True
        yield from self._snapshots.prove_up_to(header.base_offset)
        state.epochs.assign_epoch(header.leader_epoch, header.base_offset)
        if header.last_offset - self._base_offset > RELATIVE_OFFSET_MAX:
            yield self._finding(
                LOG,
                f"the batch of offset {header.base_offset} is beyond the offsets that the segment can hold",
            )

    def _apply_batch(self, header: BatchHeader, batch: memoryview) -> None:
        state = self._state
        txn = state.producers.apply_read_batch(header, batch, 0)
        if txn is not None:
            if txn.aborted is not None:
                self._aborted.append(txn.aborted)
            else:
                self._seen.committed_count += txn.record_count
            state.producers.end_transaction(txn)
            state.producers.move_high_watermark(header.next_offset)
        elif header.is_control and state.is_compacted:
            self._empty_aborts[header.base_offset] = header.producer_id
        state.end_offset = header.next_offset

    # -- offset and time index ---------------------------------------------------------------------------------

    def _prove_entries(self, position: int, header: BatchHeader) -> Iterator[FileFinding]:
        """Check the next entry of the offset index and that of the time index, if it points to this batch or to an
        earlier position. Yield a finding (a contradiction between a file and the log) for each wrong entry.
        """
        place = self._offset_place
        if place < len(self._offset_index) and self._offset_index[place][1] <= position:
            offset, at = self._offset_index[place]
            if at != position:
                yield self._finding(INDEX, _no_batch(place, at))
            elif offset < header.last_offset or self._last_indexed >= header.base_offset:
                # Before 4.2, Kafka wrote the last offset of a whole append into the entry. An append may consist of
                # several batches, so this offset may be greater than the last offset of the batch.
                yield self._finding(
                    INDEX,
                    f"entry {place} says offset {offset} for byte {at}, but the batch there has the offsets [{header.base_offset}, {header.last_offset}]",
                )
            self._last_indexed = offset
            self._offset_place += 1
        place = self._time_place
        if place < len(self._time_index) and self._time_index[place][1] <= header.last_offset:
            timestamp, offset = self._time_index[place]
            greatest = self._seen.max_timestamp, self._max_timestamp_of_all
            if timestamp not in greatest or offset < header.base_offset:
                yield self._finding(
                    TIMEINDEX,
                    f"entry {place} says timestamp {timestamp} for offset {offset}, but the greatest timestamp up to offset {header.last_offset} is {greatest[0]}",
                )
            self._time_place += 1

    def _prove_index_ends(self) -> Iterator[FileFinding]:
        """Prove the ends of the indexes: yield a finding (a contradiction between a file and the log) for each index
        with an entry that points past the last batch of a sealed segment.
        """
        place = self._offset_place
        if place < len(self._offset_index):
            yield self._finding(INDEX, _no_batch(place, self._offset_index[place][1]))
        place = self._time_place
        if place < len(self._time_index):
            yield self._finding(
                TIMEINDEX,
                f"entry {place} says offset {self._time_index[place][1]}, which is after the end of the segment",
            )

    # -- transaction index -------------------------------------------------------------------------------------

    def _prove_txn_index(self) -> Iterator[FileFinding]:
        content, seen = self._indexes[TXNINDEX], self._seen
        torn = len(content) % ENTRY.size
        if torn and self._following is not None:
            yield self._finding(TXNINDEX, f"has {len(content)} bytes, so its last entry is incomplete")
        index = TransactionIndex(content[: len(content) - torn])
        found, wanted = [index[place] for place in range(len(index))], self._aborted
        if self._following is None:
            found = [txn for txn in found if txn.last_offset < seen.end_offset]
            wanted = wanted[: len(found)]
        if found == wanted:
            return
        if not self._state.is_complete:
            yield from self._prove_txns_by_end(found, wanted)
            return
        common = min(len(found), len(wanted))
        place = next((at for at in range(common) if found[at] != wanted[at]), common)
        there, right = (str(row[place]) if place < len(row) else "nothing" for row in (found, wanted))
        yield self._finding(TXNINDEX, f"entry {place} is {there}, but the log has {right}")

    def _prove_txns_by_end(self, found: list[AbortedTxn], wanted: list[AbortedTxn]) -> Iterator[FileFinding]:
        """Compare the entries of the transaction index (`found`) with the aborted transactions in the log (`wanted`) by
        their ends, the offsets of the markers. In the index, a transaction may begin at an earlier offset than in the
        log, which no longer contains the beginning of every transaction. Yield a finding for each difference.
        """
        by_end = {txn.last_offset: txn for txn in found}
        for right in wanted:
            there = by_end.pop(right.last_offset, None)
            if (
                there is None
                or there.producer_id != right.producer_id
                or there.first_offset > right.first_offset
                or there.stable_offset > right.stable_offset
            ):
                yield self._finding(
                    TXNINDEX,
                    f"the entry of the abort marker at offset {right.last_offset} is {there}, but the log has {right}",
                )
        for there in by_end.values():
            # Kafka's compaction keeps an entry until it removes the abort marker, even if no record of the transaction
            # remains.
            is_marked = self._empty_aborts.get(there.last_offset) == there.producer_id
            if self._state.are_begins_known and not is_marked:
                yield self._finding(
                    TXNINDEX, f"has the entry {there}, but the log has no such aborted transaction"
                )

    # -- summary -----------------------------------------------------------------------------------------------

    def _prove_summary(self) -> Iterator[FileFinding]:
        if self._summary is None:
            return  # the segment grows, or was sealed and is not durable yet
        try:
            summary = Summary.decode(self._summary)
        except (DamageError, UnknownFormatError) as error:
            yield self._finding(SUMMARY, str(error))
            return
        path = self._state.path(self._base_offset, SUMMARY)
        for name, value in self._summary_fields().items():
            said = getattr(summary, name)
            if said != value:
                # The summary matches its own CRC. So the file that the field describes has changed, not the summary.
                suffix = COVERED.get(name)
                if suffix is None:
                    yield FileFinding(path, f"{name} is {said}, but the files have {value}")
                else:
                    yield self._finding(suffix, f"has {name} {value}, but {path.name} says {said}")

    def _summary_fields(self) -> dict[str, int]:
        """Compute the fields of the segment's summary (its offsets, timestamps, counts and sizes) that follow from the
        log. Return them by name.
        """
        state, seen = self._state, self._seen
        fields = {
            "base_offset": self._base_offset,
            "log_size": seen.size,
            "log_crc": seen.log_crc,
            "max_timestamp": seen.max_timestamp,
            "record_count": seen.record_count,
            "index_crc": crc32c(self._indexes[INDEX]),
            "timeindex_crc": crc32c(self._indexes[TIMEINDEX]),
            "txnindex_crc": crc32c(self._indexes[TXNINDEX]),
        }
        if state.is_complete:
            fields["end_offset"] = seen.end_offset
            if state.are_counts_known:
                fields["committed_count"] = seen.committed_count
            fields["stable_offset"] = state.producers.first_open_offset(seen.end_offset)
            fields["least_aborted_offset"] = min((txn.first_offset for txn in self._aborted), default=NOTHING)
        return fields


def _no_batch(place: int, position: int) -> str:
    return f"entry {place} says that a batch begins at byte {position}, but none begins there"
