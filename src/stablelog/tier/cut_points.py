"""Cut points of a remote segment: positions between two batches at which its log file can be divided.

A reader that needs no broker, such as a Spark task, reads a part of a log file from one cut point to another, without
an index. The CRC of a batch does not cover its base offset. For each cut point, the manifest therefore has the CRC-32C
over all batch headers before it, as the summary has it for the whole log file. With the CRC at the begin of its part, a
reader computes the one at the end, and compares it with the manifest (`HeaderProof`).

Format: docs/formats.md, "Records of remote log metadata".
"""

import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from stablelog.batch.header import HEADER, read_header
from stablelog.errors import DamageError
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.summary import Summary
from stablelog.log.segments.proof import raw_headers_in
from stablelog.tier.remote_segment import RemoteSegment

CUT_POINT: Final = struct.Struct(
    ">"
    "i"  # offset: the base offset of a batch, relative to the base offset of the segment
    "i"  # position: of this batch in the log file
)
HEADER_CRC: Final = struct.Struct(">I")  # CRC-32C over the headers of all batches before a cut point
COUNT_MAX: Final = 16
SIZE_MIN: Final = 8 << 20  # The least distance of two cut points, in bytes.
READ_SIZE: Final = 1 << 20


class CutPoint(NamedTuple):
    """A position at which a log file can be divided.

    Attributes:
        offset: the base offset of the batch at the position.
        position: the position in the log file.
        header_crc: CRC-32C over the headers of all batches before the position; None if it is unknown.
    """

    offset: int
    position: int
    header_crc: int | None


def encode_cut_points(
    summary: Summary, offset_index: bytes, read: Callable[[int, int], bytes]
) -> tuple[bytes, bytes]:
    """Choose up to COUNT_MAX cut points of a log file, about equally far from each other.

    Args:
        summary: the summary of the segment.
        offset_index: the content of the offset index.
        read: returns bytes of the log file, by position and size.

    Returns:
        The encoded cut points, and the encoded CRCs of the headers before them.

    Raises:
        DamageError: the batch headers of the log file are not those of the summary. They are also checked if the log
            file is too small for a cut point.
    """
    positions = cut_positions(OffsetIndex(summary.base_offset, offset_index), summary.log_size)
    crcs = _header_crcs(summary, positions, read)
    points = encode_points(
        summary.base_offset, positions, lambda position: read_header(read(position, HEADER.size)).base_offset
    )
    return points, b"".join(map(HEADER_CRC.pack, crcs))


def cut_positions(index: OffsetIndex, log_size: int) -> list[int]:
    """Choose up to COUNT_MAX positions of batches in a log file, about equally far from each other."""
    count = min(log_size // SIZE_MIN, COUNT_MAX + 1)
    wanted = (log_size * number // count for number in range(1, count))
    return sorted({index.position_at_or_before(position) for position in wanted} - {0})


def encode_points(base_offset: int, positions: Sequence[int], base_offset_at: Callable[[int], int]) -> bytes:
    """Encode cut points without their CRCs.

    Args:
        base_offset: the base offset of the segment.
        positions: their positions.
        base_offset_at: returns the base offset of the batch at a position.
    """
    return b"".join(
        CUT_POINT.pack(base_offset_at(position) - base_offset, position) for position in positions
    )


def cut_points(segment: RemoteSegment) -> list[CutPoint]:
    """Return the cut points of a segment, in the order of their positions.

    Raises:
        DamageError: the manifest describes impossible cut points.
    """
    crcs: Sequence[int | None] = [crc for (crc,) in HEADER_CRC.iter_unpack(segment.header_crcs)]
    points = CUT_POINT.iter_unpack(segment.cut_points)
    crcs = crcs or [None] * (len(segment.cut_points) // CUT_POINT.size)
    try:
        found = [
            CutPoint(segment.base_offset + offset, position, crc)
            for (offset, position), crc in zip(points, crcs, strict=True)
        ]
    except ValueError:
        raise DamageError(f"the remote segment {segment.segment_id} has cut points without CRCs") from None
    edges = [
        (segment.base_offset, 0),
        *((point.offset, point.position) for point in found),
        (segment.end_offset, segment.size),
    ]
    pairs = itertools.pairwise(edges) if found else ()
    if any(one[0] >= other[0] or one[1] >= other[1] for one, other in pairs):
        raise DamageError(
            f"the cut points of the remote segment {segment.segment_id} do not follow each other"
        )
    return found


def _header_crcs(summary: Summary, positions: Sequence[int], read: Callable[[int, int], bytes]) -> list[int]:
    """Return the CRC-32C over the batch headers before each position. The positions are those of batches."""
    crcs = []
    crc = position = 0
    for end in (*positions, summary.log_size):
        while position < end:
            chunk = read(position, min(READ_SIZE, end - position))
            try:
                headers, at = raw_headers_in(chunk)
            except DamageError:
                raise _is_other(summary) from None
            if not headers:
                raise _is_other(summary)
            crc = crc32c(b"".join(headers), crc)
            position += at
        if position != end:
            raise _is_other(summary)
        crcs.append(crc)
    if crcs.pop() != summary.log_crc:
        raise _is_other(summary)
    return crcs


def _is_other(summary: Summary) -> DamageError:
    return DamageError(
        f"the batch headers of the log file of segment {summary.base_offset} are not those that its summary describes. "
        "Restore the file"
    )
