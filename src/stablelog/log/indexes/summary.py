"""The summary of a sealed segment: a file of 118 bytes with the segment's offsets, timestamps, counts, file sizes and
checksums.

Because of the summary, recovery need not read the segment, and a search can skip segments without matching records. The
checksums reveal damage of the other files. If the summary itself is damaged or missing, the next start of the broker
rebuilds it from the log file.

Format: docs/reference/formats.md, "Segment summary".
"""

import struct
from dataclasses import astuple, dataclass

from stablelog.crc32c import crc32c
from stablelog.errors import DamageError, refuse_unknown_version

VERSION = 1
SUMMARY = struct.Struct(
    ">"
    "h"  # version: 1
    "I"  # crc: CRC-32C of everything after this field
    "q"  # base_offset
    "q"  # end_offset: exclusive
    "q"  # first_timestamp: the timestamp of the first batch, ms; -1 if the segment is empty
    "q"  # max_timestamp: the greatest timestamp, ms; -1 if the segment is empty
    "q"  # log_size: the size of the log file in bytes
    "I"  # log_crc: CRC-32C over the headers of all batches; each header contains the CRC of its batch
    "q"  # index_size: the size of the offset index in bytes
    "I"  # index_crc
    "q"  # timeindex_size
    "I"  # timeindex_crc
    "q"  # txnindex_size: the size of the transaction index in bytes; 0 if no abort marker is in the segment
    "I"  # txnindex_crc
    "q"  # record_count: the number of data records in the segment
    "q"  # committed_count: records outside transactions, and records whose commit marker is in the segment
    "q"  # stable_offset: first offset of the oldest transaction open at the segment's end; else end_offset
    "q"  # least_aborted_offset: least first offset of the transactions aborted in this segment; -1 none
)
CRC_END = 6
NOTHING = -1


@dataclass(frozen=True, slots=True)
class Summary:
    """The content of a segment's `.summary` file: the segment's offsets, timestamps, counts, file sizes and checksums.
    The comments of `SUMMARY`, the format of the file, describe each field.
    """

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
        """The sizes of the segment's three index files, and their CRCs: two tuples, each with a number for the offset
        index, the time index and the transaction index.
        """
        return (
            (self.index_size, self.timeindex_size, self.txnindex_size),
            (self.index_crc, self.timeindex_crc, self.txnindex_crc),
        )

    def encode(self) -> bytes:
        """Encode the content of a `.summary` file, which has the fields of this object."""
        content = SUMMARY.pack(VERSION, 0, *astuple(self))
        return content[:2] + crc32c(content[CRC_END:]).to_bytes(4, "big") + content[CRC_END:]

    @classmethod
    def decode(cls, content: bytes) -> "Summary":
        """Decode the content of a `.summary` file.

        Raises:
            UnknownFormatError: a later release has written the file.
            DamageError: the bytes are no summary, or are incomplete.
        """
        refuse_unknown_version("a segment summary", int.from_bytes(content[:2], "big"), VERSION)
        if len(content) != SUMMARY.size:
            raise DamageError(f"a segment summary has {len(content)} bytes; it must have {SUMMARY.size}")
        version, crc, *fields = SUMMARY.unpack(content)
        if version != VERSION:
            raise DamageError(f"a segment summary has version {version}; only version {VERSION} is known")
        if crc != crc32c(content[CRC_END:]):
            raise DamageError("the CRC of a segment summary does not match its bytes")
        return cls(*fields)
