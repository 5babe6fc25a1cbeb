"""Search for the first record at or after a time, in record batches and in a partition's segment files.

The search skips markers, which are not records. It also finds records of aborted transactions, as Kafka's ListOffsets
does.
"""

from stablelog.batch.header import Buffer, read_header
from stablelog.batch.records import decode_records
from stablelog.errors import DamageError
from stablelog.log.search.times import first_at_or_after, run_lookup
from stablelog.spark.segments.partition_files import PartitionFiles


def first_in_files(files: PartitionFiles, time_ms: int, start: int, end: int) -> int | None:
    """Find the first record from offset `start` to before `end` that has this time or a later one.

    Args:
        files: the segment files of the partition.
        time_ms: the minimum timestamp of the record, in ms.
        start: the first offset that may be read.
        end: the end of the range, exclusive.

    Returns:
        The offset of the record; None if there is none.

    Raises:
        GoneError: a file was removed since it was listed.
        DamageError: a file is damaged. The message names the file and the position.
    """
    lookup = first_at_or_after(lambda: files.segments, time_ms, lambda: start, end, first_in_batch)
    found = run_lookup(lookup)
    return None if found is None else found[0]


def first_in_batch(data: Buffer, time_ms: int, start: int) -> tuple[int, int] | None:
    """Find the first record of a batch with an offset of at least `start` and at least this timestamp.

    Returns:
        The offset of the record and its time; None if there is none. If the records of the batch cannot be decoded, the
        first offset of the batch and `time_ms`: a read that begins there decides what to do with them.
    """
    try:
        records = decode_records(data)
    except DamageError:
        return max(read_header(data).base_offset, start), time_ms
    found = (one for one in records if one.timestamp_ms >= time_ms and one.offset >= start)
    return next(((one.offset, one.timestamp_ms) for one in found), None)
