"""The first record of a time or later, found in the segment files of a partition.

Markers are no records and are passed over, whatever their time is. Records of aborted transactions count, as in Kafka's
ListOffsets.
"""

from collections.abc import Iterator

from stablelog.batch.header import BatchHeader
from stablelog.batch.records import Record, decode_records
from stablelog.errors import Corrupt
from stablelog.spark.segments import PartitionFiles, SegmentFile


def first_in_files(files: PartitionFiles, time_ms: int, start: int, end: int) -> int | None:
    """Find the first record in [start, end) that has this time or a later one.

    Args:
        files: of the partition.
        time_ms: the record's timestamp at least, in ms.
        start: the first offset that may be read.
        end: the first offset that the reader does not see.

    Returns:
        Its offset; None if there is no such record.

    Raises:
        Gone: a file was removed since it was listed.
        Corrupt: a file is damaged; names it and the position.
    """
    for segment, position, header in _batches(files, time_ms, start):
        if header.base_offset >= end:
            return None
        if header.is_control or header.max_timestamp < time_ms:
            continue
        for record in _records(segment, position, header):
            if record.timestamp_ms >= time_ms and record.offset >= start:
                return record.offset if record.offset < end else None
    return None


def _batches(
    files: PartitionFiles, time_ms: int, start: int
) -> Iterator[tuple[SegmentFile, int, BatchHeader]]:
    """The batches that end past `start`, without those of segments whose summary says that nothing is that late."""
    for segment in files.segments:
        summary = segment.summary
        if summary is not None and (summary.max_timestamp < time_ms or summary.end_offset <= start):
            continue
        begin = 0
        if segment.base_offset < start:
            located = segment.locate(start)
            if located is None:
                continue
            begin = located.position
        for position, header in segment.headers(begin):
            yield segment, position, header


def _records(segment: SegmentFile, position: int, header: BatchHeader) -> list[Record]:
    try:
        return decode_records(segment.read(position, header.size))
    except Corrupt as error:
        raise Corrupt(f"{segment.path}, at byte {position}: {error}") from error
