"""Cut points of a remote segment: positions between two batches at which its log file can be divided.

The bytes between two neighbouring cut points are a *chunk*. The broker loads a log file in chunks. A reader that needs
no broker, such as a Spark task, reads from one cut point to another, without an index.

The CRC of a batch does not cover its base offset, and says nothing about the log to which the batch belongs. For each
cut point, the manifest (the list of a partition's segments in the store) therefore has the CRC-32C over all batch
headers before it. The segment's summary, a small file with its sizes and checksums, has this CRC for the whole log
file. From the CRC at the beginning of a chunk, a reader computes the one at its end, and compares it with that in the
manifest. This proves that the bytes are those of this log file at this position. A header contains the CRC of its
batch, so the bodies are proven, too.

Format: docs/reference/formats.md, "Records of remote log metadata".
"""

import itertools
import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from stablelog.batch.header import LENGTH_AND_OFFSET_SIZE
from stablelog.crc32c import crc32c
from stablelog.errors import DamageError
from stablelog.log.indexes.summary import Summary
from stablelog.log.segments.proof import LENGTH, raw_headers_in
from stablelog.tier.remote_segment import RemoteSegment
from stablelog.types import RangeProof

CUT_POINT: Final = struct.Struct(
    ">"
    "i"  # offset: the base offset of a batch, relative to the base offset of the segment
    "i"  # position: of this batch in the log file
)
HEADER_CRC: Final = struct.Struct(">I")  # CRC-32C over the headers of all batches before a cut point
COUNT_MAX: Final = 512  # The greatest number of cut points of a segment.
READ_SIZE: Final = 1 << 20
BASE_OFFSET: Final = struct.Struct(">q")  # the first field of a batch


class CutPoint(NamedTuple):
    """A position in a segment's log file between two batches, at which a reader may begin or end.

    Attributes:
        offset: the base offset of the batch at the position.
        position: the position in the log file.
        header_crc: CRC-32C over the headers of all batches before the position; None if it is unknown.
    """

    offset: int
    position: int
    header_crc: int | None


def encode_cut_points(
    summary: Summary, read: Callable[[int, int], bytes], chunk_size: int
) -> tuple[bytes, bytes]:
    """Choose the cut points of a log file, positions between batches at which readers may divide it. Encode them for
    the manifest, the list of a partition's segments in the store.

    Args:
        summary: the summary of the segment, with the CRC-32C over all batch headers of the log file.
        read: returns bytes of the log file, by position and size.
        chunk_size: the least distance of two cut points, and so the size of the parts that a reader loads, in bytes. It
            is increased if there would be more than COUNT_MAX cut points.

    Returns:
        A pair: the encoded cut points, and the encoded CRCs, one for each cut point, over all batch headers before it.

    Raises:
        DamageError: the batch headers of the log file do not match this CRC. This is checked even if the log file is
            too small to have a cut point.
    """
    distance = max(chunk_size, summary.log_size // (COUNT_MAX + 1) + 1)
    points, crcs = bytearray(), bytearray()
    crc = position = last = 0
    while position < summary.log_size:
        chunk = read(position, min(READ_SIZE, summary.log_size - position))
        try:
            headers, size = raw_headers_in(chunk)
        except DamageError:
            raise _is_other(summary) from None
        if not headers:
            raise _is_other(summary)
        begin, at = 0, position
        position += size
        for number, header in enumerate(headers if position - last > distance else ()):
            if at - last >= distance:
                crc, begin, last = crc32c(b"".join(headers[begin:number]), crc), number, at
                (base_offset,) = BASE_OFFSET.unpack_from(header)
                if not summary.base_offset < base_offset < summary.end_offset:
                    raise _is_other(summary)
                points += CUT_POINT.pack(base_offset - summary.base_offset, at)
                crcs += HEADER_CRC.pack(crc)
            at += LENGTH_AND_OFFSET_SIZE + LENGTH.unpack_from(header)[0]
        crc = crc32c(b"".join(headers[begin:]), crc)
    if position != summary.log_size or crc != summary.log_crc:
        raise _is_other(summary)
    return bytes(points), bytes(crcs)


def cut_points(segment: RemoteSegment) -> list[CutPoint]:
    """Decode the cut points of a segment, positions in its log file at which readers may divide it, from the segment's
    description in the manifest (the list of the partition's segments in the store). Return them in the order of their
    positions.

    Raises:
        DamageError: the cut points are not in ascending order, or have no CRCs.
    """
    crcs: Sequence[int | None] = [crc for (crc,) in HEADER_CRC.iter_unpack(segment.header_crcs)]
    crcs = crcs or [None] * (len(segment.cut_points) // CUT_POINT.size)
    try:
        found = [
            CutPoint(segment.base_offset + offset, position, crc)
            for (offset, position), crc in zip(CUT_POINT.iter_unpack(segment.cut_points), crcs, strict=True)
        ]
    except ValueError:
        raise DamageError(
            f"a manifest is damaged: its entry for the remote segment {segment.segment_id} does not "
            "have a CRC for each cut point (a position at which reads can begin)"
        ) from None
    edges = [
        (segment.base_offset, 0),
        *((point.offset, point.position) for point in found),
        (segment.end_offset, segment.size),
    ]
    if found and any(one[0] >= other[0] or one[1] >= other[1] for one, other in itertools.pairwise(edges)):
        raise DamageError(
            f"a manifest is damaged: in its entry for the remote segment {segment.segment_id}, the "
            "cut points (positions at which reads can begin) are not in the order of their positions "
            "and offsets"
        )
    return found


def chunk_at(segment: RemoteSegment, position: int, chunk_size: int) -> tuple[int, int, RangeProof | None]:
    """Return the chunk of a log file (the bytes between two neighbouring cut points) that contains the byte at a
    position.

    Args:
        segment: the segment, with its cut points.
        position: the position of the byte in the log file.
        chunk_size: the size of a chunk, in bytes, in a segment that Apache Kafka has copied. The manifest, the list of
            the partition's segments in the store, has no cut points of such a segment.

    Returns:
        A tuple: the positions at which the chunk begins and ends, and the CRCs against which its batch headers are
        checked; None in place of the CRCs if the manifest has none.

    Raises:
        DamageError: the cut points are not in ascending order, or have no CRCs.
    """
    if segment.summary is None:
        begin = position // chunk_size * chunk_size
        return begin, min(begin + chunk_size, segment.size), None

    def point(number: int) -> int:
        found: int = CUT_POINT.unpack_from(segment.cut_points, number * CUT_POINT.size)[1]
        return found

    def crc(number: int) -> int:
        found: int = HEADER_CRC.unpack_from(segment.header_crcs, number * HEADER_CRC.size)[0]
        return found

    count = len(segment.cut_points) // CUT_POINT.size
    after = bisect_right(range(count), position, key=point)
    begin, crc_before = (point(after - 1), crc(after - 1)) if after else (0, 0)
    end, crc_after = (point(after), crc(after)) if after < count else (segment.size, segment.summary.log_crc)
    if not 0 <= begin <= position < end <= segment.size:
        raise DamageError(
            f"a manifest is damaged: in its entry for the remote segment {segment.segment_id}, the "
            "cut points (positions at which reads can begin) are not in the order of their positions "
            "and offsets"
        )
    return begin, end, RangeProof(crc_after, crc_before)


def _is_other(summary: Summary) -> DamageError:
    return DamageError(
        f"the batch headers of the log file of segment {summary.base_offset} are not those that its summary describes. "
        "Restore the file"
    )
