"""Format of the files of a commit index, which lists the committed transactions of one segment in commit order.

A file of entries has one row for each transaction. Batches outside transactions that follow each other in the log have
one row together. When the segment is sealed, its commit index is sealed, too: a `.commitsummary` file then holds the
sizes and checksums of its files.

The rows of the file of extents (byte ranges of batches) are described in `commit_order.extents`.

Format: docs/reference/formats.md, "Commit index".
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple

from stablelog.commit_order.extents import LONG_COUNT
from stablelog.crc32c import crc32c
from stablelog.errors import DamageError, refuse_unknown_version
from stablelog.log.files.names import COMMIT_SUFFIXES

ENTRIES_SUFFIX, EXTENTS_SUFFIX, SUMMARY_SUFFIX = COMMIT_SUFFIXES
NO_PRODUCER = -1  # the producer id in the entry of batches outside transactions
NOTHING = 2**63 - 1  # stands for no offset; it is greater than any offset
ENTRY = struct.Struct(
    ">"
    "q"  # start: the first position of the entry
    "q"  # record_count: how many positions the entry takes
    "q"  # latest_ms: the latest commit time of this entry and of all entries before it in the segment
    "q"  # first_offset: the offset of the transaction's first batch in the log
    "q"  # producer_id; -1 outside transactions
    "q"  # latest_sequence: the greatest commit sequence of this entry and of all before it in the partition; -1 none
    "q"  # extent_first: the number of the first extent
    "i"  # extent_count: how many extents the entry has
    "i"  # leader_epoch: the leader epoch of the commit marker
)
SUMMARY = struct.Struct(
    ">"
    "h"  # version: 3
    "q"  # base_offset: the base offset of the segment
    "q"  # end_offset: the end offset of the segment, exclusive
    "I"  # log_crc: the CRC over the batch headers, from the segment's summary
    "q"  # view_end: the first position in commit order after the entries of this index and of all earlier ones
    "q"  # least_first_offset: the least first offset of the index's transactions; 2^63-1 if it has none
    "q"  # latest_sequence: the greatest commit sequence up to the segment's end; -1 none
    "q"  # latest_ms: the latest commit time in the segment; -1 if there is no entry
    "q"  # entries_size: the size of the file of entries in bytes
    "I"  # entries_crc: CRC-32C over the file of entries
    "q"  # extents_size: the size of the file of extents in bytes
    "I"  # extents_crc: CRC-32C over the file of extents
    "i"  # open_count: how many (producer id, first offset) of open transactions follow
)
OPEN = struct.Struct(">qq")
VERSION = 3
CRC = struct.Struct(">I")


class CommittedRange(NamedTuple):
    """A committed transaction, or a run of records outside transactions, at the positions [start, end) in commit order.

    Attributes:
        start: the first position.
        end: the position after the last record.
        commit_sequence: the commit sequence of the transaction, its number, counted over all topics of its transaction
            group; -1 for records outside transactions.
        time_ms: the commit time, in ms since 1970.
    """

    start: int
    end: int
    commit_sequence: int
    time_ms: int


class Entry(NamedTuple):
    """An entry of a commit index: a committed transaction, or a run of batches outside transactions. `ENTRY` describes
    the fields.
    """

    start: int
    record_count: int
    latest_ms: int
    first_offset: int
    producer_id: int
    latest_sequence: int
    extent_first: int
    extent_count: int
    leader_epoch: int

    @property
    def end(self) -> int:
        """The end of the entry, exclusive: the position in commit order after its last record."""
        return self.start + self.record_count

    @property
    def is_outside(self) -> bool:
        """Whether the entry is a run of batches outside transactions."""
        return self.producer_id == NO_PRODUCER

    @property
    def committed(self) -> CommittedRange:
        """The committed transaction or run of records that the entry describes: its positions, the commit sequence (the
        number of the commit, counted over all topics of its transaction group) and the time.
        """
        return CommittedRange(
            self.start, self.end, -1 if self.is_outside else self.latest_sequence, self.latest_ms
        )

    def is_torn(self, log_start: int) -> bool:
        """Return whether the transaction is torn: it began before the log start offset `log_start`, so retention has
        removed its beginning, and readers get no record of it. A run of batches outside transactions is never torn.
        """
        return not self.is_outside and self.first_offset < log_start

    @property
    def is_long(self) -> bool:
        """Whether the transaction has at least LONG_COUNT extents, byte ranges of its batches in the log files.

        The extents of such a transaction were written before the start position and the leader epoch of its commit were
        known. Their positions count from 0, and their leader epoch is 0. A reader therefore adds the entry's start
        position to them, and takes the leader epoch from the entry.
        """
        return self.extent_count >= LONG_COUNT


@dataclass(frozen=True, slots=True)
class CommitSummary:
    """The content of the `.commitsummary` file of a sealed commit index: the sizes and checksums of the index's files,
    the latest commit, and the transactions that are open at the end of the segment. `SUMMARY` describes the fields.

    Attributes:
        open: (producer id, first offset) of each transaction that is open at the segment's end.
    """

    base_offset: int
    end_offset: int
    log_crc: int
    view_end: int
    least_first_offset: int
    latest_sequence: int
    latest_ms: int
    entries_size: int
    entries_crc: int
    extents_size: int
    extents_crc: int
    open: tuple[tuple[int, int], ...]

    def encode(self) -> bytes:
        """Encode the content of a `.commitsummary` file, the sizes and checksums of a commit index's files."""
        content = SUMMARY.pack(
            VERSION,
            self.base_offset,
            self.end_offset,
            self.log_crc,
            self.view_end,
            self.least_first_offset,
            self.latest_sequence,
            self.latest_ms,
            self.entries_size,
            self.entries_crc,
            self.extents_size,
            self.extents_crc,
            len(self.open),
        ) + b"".join(OPEN.pack(*one) for one in self.open)
        return content + CRC.pack(crc32c(content))

    @classmethod
    def decode(cls, content: bytes) -> "CommitSummary":
        """Decode the content of a `.commitsummary` file, which has the sizes and checksums of a commit index's files.

        Raises:
            UnknownFormatError: this release does not read the version of the file.
            DamageError: the file is damaged.
        """
        if (
            len(content) < SUMMARY.size + CRC.size
            or crc32c(content[: -CRC.size]) != CRC.unpack(content[-CRC.size :])[0]
        ):
            raise DamageError("a commit summary is damaged: its CRC or its size is wrong")
        version, *fields, open_count = SUMMARY.unpack_from(content)
        refuse_unknown_version("a commit summary", version, VERSION, VERSION)
        if version != VERSION or len(content) != SUMMARY.size + open_count * OPEN.size + CRC.size:
            raise DamageError(
                f"a commit summary of version {version} has {len(content)} bytes, which is no possible size"
            )
        return cls(*[*fields, tuple(OPEN.iter_unpack(content[SUMMARY.size : -CRC.size]))])
