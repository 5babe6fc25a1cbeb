"""What a sealed segment holds, in 118 bytes beside it.

It makes the segment's other files tamper-evident, saves recovery from reading the segment, and tells searches
where to stop. It is a cache of the log: damaged or missing, it is made anew by reading the segment.

Format: docs/formats.md, "Segment summary".
"""

import struct
from dataclasses import dataclass, fields, replace
from operator import attrgetter

from crc32c import crc32c

from stablelog.errors import Corrupt, refuse_newer

VERSION = 1
SUMMARY = struct.Struct(
    ">"
    "h"  # version: 1
    "I"  # crc: CRC-32C of everything after this field
    "q"  # base_offset
    "q"  # end_offset: exclusive
    "q"  # first_timestamp: of the first batch, ms; -1 if the segment is empty
    "q"  # max_timestamp: ms; -1 if the segment is empty
    "q"  # log_size: bytes of the log file
    "I"  # log_crc: CRC-32C over the headers of its batches, each of which holds the CRC of its body
    "q"  # index_size: bytes of the offset index
    "I"  # index_crc
    "q"  # timeindex_size
    "I"  # timeindex_crc
    "q"  # txnindex_size: 0 if no transaction was aborted here
    "I"  # txnindex_crc
    "q"  # record_count: data records in the segment
    "q"  # committed_count: records outside transactions here, and records of transactions whose commit marker is here
    "q"  # stable_offset: the first offset that was undecided at the segment's end; end_offset if none was
    "q"  # least_aborted_offset: least first offset of the transactions aborted here; -1 if none was
)
CRC_END = 6
NOTHING = -1


@dataclass(frozen=True, slots=True)
class Summary:
    """What a segment holds. Fields as in the format."""

    base_offset: int
    end_offset: int
    first_timestamp: int = NOTHING
    max_timestamp: int = NOTHING
    log_size: int = 0
    log_crc: int = 0
    index_size: int = 0
    index_crc: int = 0
    timeindex_size: int = 0
    timeindex_crc: int = 0
    txnindex_size: int = 0
    txnindex_crc: int = 0
    record_count: int = 0
    committed_count: int = 0
    stable_offset: int = 0
    least_aborted_offset: int = NOTHING

    @property
    def index_files(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """The sizes and the CRCs of the index files, in the order of INDEX_SUFFIXES."""
        sizes = self.index_size, self.timeindex_size, self.txnindex_size
        return sizes, (self.index_crc, self.timeindex_crc, self.txnindex_crc)

    def encode(self) -> bytes:
        """The bytes of the file."""
        content = SUMMARY.pack(VERSION, 0, *_values(self))
        return content[:2] + crc32c(content[CRC_END:]).to_bytes(4, "big") + content[CRC_END:]

    @classmethod
    def decode(cls, content: bytes) -> "Summary":
        """Read the bytes of the file.

        Raises:
            NewerFormat: a later release has written them.
            Corrupt: they are not a summary, or not whole.
        """
        refuse_newer("a segment summary", int.from_bytes(content[:2], "big"), VERSION)
        if len(content) != SUMMARY.size:
            raise Corrupt(f"a segment summary of {len(content)} bytes, not {SUMMARY.size}")
        version, crc, *fields = SUMMARY.unpack(content)
        if version != VERSION:
            raise Corrupt(f"a segment summary of version {version}; {VERSION} is known")
        if crc != crc32c(content[CRC_END:]):
            raise Corrupt("a segment summary whose CRC does not hold")
        return cls(*fields)

    def replaced(self, **changes: int) -> "Summary":
        """The summary with some fields changed."""
        return replace(self, **changes)


_values = attrgetter(*(field.name for field in fields(Summary)))
