"""Verification of the snapshots: compares both files of each snapshot with the producer state of the log at its offset."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from stablelog.crc32c import crc32c
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.files.names import INDEX_SUFFIXES, LOG, PRODUCERS, SNAPSHOT, snapshot_offsets
from stablelog.log.indexes.summary import NOTHING, Summary
from stablelog.log.producer_state.producer import NO_TXN, ProducerEntry
from stablelog.log.producer_state.producer_table import ProducerTable
from stablelog.log.producer_state.producers import NEVER_MS, Producers
from stablelog.log.producer_state.snapshots import decode_producers, decode_snapshot
from stablelog.log.verify.state import FileFinding, LogState


class SnapshotProof:
    """The proof that a partition's snapshots match its log: each is compared when the reading of the log has reached
    its offset.

    Args:
        state: the state of the log up to the last batch that was read.
        names: the names of the files in the partition's directory.
    """

    def __init__(self, state: LogState, names: Iterable[str]) -> None:
        self._state = state
        self._pending = snapshot_offsets(names)[
            ::-1
        ]  # offsets of the snapshots that are not compared yet, descending

    def load_state_at(self, offset: int) -> None:
        """Load the producer state in the snapshot at `offset`, the beginning of the log. The verification begins with
        this state. If there is no such snapshot, the state there is unknown.
        """
        state = self._state
        state.are_begins_known = False
        # If a snapshot file cannot be read, `_prove` reports the file later.
        with contextlib.suppress(DamageError, UnknownFormatError):
            if (ours := state.content(offset, PRODUCERS)) is not None:
                table = decode_producers(ours)[0]
            elif (kafkas := state.content(offset, SNAPSHOT)) is not None:
                table = decode_snapshot(kafkas, 0)
                # A `.snapshot` file has only the last batch of each producer, and no number of records of an open
                # transaction.
                state.batches_known = 1
                state.are_counts_known = all(producer.txn_first_offset == NO_TXN for producer in table)
            else:
                return
            state.producers = Producers.from_table(table, now_ms=NEVER_MS)
            state.are_begins_known = True

    def header_crcs(self, base_offset: int) -> dict[int, int]:
        """Return the CRCs over a segment's batch headers that snapshots record, as far as these snapshots are not
        compared with the log yet. Each CRC covers the headers from the file's beginning; the keys of the result are the
        sizes in bytes of these parts.
        """
        marks = {}
        for offset in self._pending:
            with contextlib.suppress(DamageError, UnknownFormatError):
                _, progress = decode_producers(self._state.content(offset, PRODUCERS) or b"")
                if progress.base_offset == base_offset and progress.log_size:
                    marks[progress.log_size] = progress.log_crc
        return marks

    def prove_up_to(self, end_offset: int) -> Iterator[FileFinding]:
        """Prove the snapshots up to this offset, which the reading of the log has reached: compare them with the
        producer state of the log. Yield a finding for each file that contradicts it.
        """
        while self._pending and self._pending[-1] <= end_offset:
            offset = self._pending.pop()
            is_known = self._state.is_complete and offset == self._state.end_offset
            yield from self._prove(offset, is_known=is_known)

    def prove_past_end(self) -> Iterator[FileFinding]:
        """Yield a finding (a contradiction between a file and the log) for each snapshot of an offset after the end of
        the log.
        """
        for offset in self._pending:
            yield FileFinding(
                self._state.path(offset, SNAPSHOT),
                f"is a snapshot of offset {offset}, but the log ends at offset {self._state.end_offset}",
            )
            yield from self._prove(offset, is_known=False)

    def _prove(self, offset: int, *, is_known: bool) -> Iterator[FileFinding]:
        """Prove both files of a snapshot: compare them with the log, and yield a finding for each one that is damaged
        or contradicts it.

        Args:
            offset: the offset of the snapshot.
            is_known: whether the whole producer state at this offset is known from the log. Only then are the producers
                in the files compared with it.
        """
        for suffix, batch_count in ((PRODUCERS, self._state.batches_known), (SNAPSHOT, 1)):
            content, path = self._state.content(offset, suffix), self._state.path(offset, suffix)
            if content is None:
                continue
            progress = None
            try:
                if suffix == PRODUCERS:
                    table, progress = decode_producers(content)
                else:
                    table = decode_snapshot(content, 0)
            except (DamageError, UnknownFormatError) as error:
                yield FileFinding(path, str(error))
                continue
            if is_known:
                yield from self._compare(path, table, batch_count)
            if progress is not None:
                yield from self._prove_progress(path, progress)

    def _compare(self, path: Path, said: ProducerTable, batch_count: int) -> Iterator[FileFinding]:
        log_says = self._state.producers.packed_copy()
        for known in log_says:
            there = said.get(known.producer_id)
            # The producer may have expired before the snapshot, unless its transaction is open.
            if there is None and known.txn_first_offset == NO_TXN:
                continue
            if there is None or not agrees_with_log(there, known, batch_count):
                yield FileFinding(path, f"producer {known.producer_id} is {there}, but the log has {known}")
        for there in said:
            if log_says.get(there.producer_id) is None:
                yield FileFinding(
                    path, f"has the producer {there.producer_id}, which has not written to the log"
                )

    def _prove_progress(self, path: Path, progress: Summary) -> Iterator[FileFinding]:
        """Check that the index files begin with the entries that the progress of a snapshot describes. The progress is
        a summary of the segment up to the snapshot, with the sizes and CRCs that the indexes had there. Yield a finding
        for each index file that does not.
        """
        state, base_offset = self._state, progress.base_offset
        if not state.disk.exists(state.path(base_offset, LOG)) or state.is_compacted:
            return
        for suffix, size, crc in zip(INDEX_SUFFIXES, *progress.index_files, strict=True):
            content = (state.content(base_offset, suffix) or b"")[:size]
            if len(content) < size or crc32c(content) != crc:
                yield FileFinding(
                    state.path(base_offset, suffix),
                    f"has other content in its first {size} bytes than {path.name} says",
                )


def agrees_with_log(said: ProducerEntry, known: ProducerEntry, batch_count: int) -> bool:
    """Whether the state of a producer in a snapshot matches the log. The snapshot may have fewer batches than the log,
    because the producer may have expired between two of its batches.

    Args:
        said: the state in the snapshot.
        known: the state that follows from the log.
        batch_count: how many of the last batches are compared; 1 for a `.snapshot` file.
    """
    batches, kept = known.batches[-batch_count:], said.batches[-batch_count:]
    if batch_count == 1:
        # A `.snapshot` file has one timestamp for a producer: the timestamp of its last batch, or of the marker that
        # follows this batch.
        batches, kept = ([batch._replace(timestamp_ms=NOTHING) for batch in rows] for rows in (batches, kept))
    return (
        said.producer_epoch == known.producer_epoch
        and said.coordinator_epoch in (known.coordinator_epoch, -1)
        and said.txn_first_offset == known.txn_first_offset
        and len(kept) <= len(batches)
        and kept == batches[len(batches) - len(kept) :]
    )
