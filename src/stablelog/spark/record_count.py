"""Exact count of the records that a batch read returns, without decoding them.

If the segment files or the object store are accessible, `source.counting` counts in them. Otherwise this module counts
by the headers of record batches that it fetches from the broker.
"""

from collections.abc import Mapping

from stablelog.batch.aborted import AbortedFilter
from stablelog.errors import UnavailableError
from stablelog.spark.option_table import BATCH
from stablelog.spark.options import ReadOptions, read_options, warn_without_effect
from stablelog.spark.segments.partition_files import PartitionFiles
from stablelog.spark.source.broker_log import BrokerLog, answers
from stablelog.spark.source.counting import files_count, records_inside
from stablelog.spark.source.cuts import batch_ranges
from stablelog.spark.source.directory_log import DirectoryLog, retry_if_files_changed
from stablelog.spark.source.listing_retry import retry_with_new_listing
from stablelog.spark.source.object_log import ObjectLog
from stablelog.spark.source.ranges import Range
from stablelog.spark.source.readable_ranges import batch_parts
from stablelog.spark.source.reader import open_log
from stablelog.spark.source.resolve import Log


def count(given: Mapping[str, str] | None = None, **more: str) -> int:
    """Return the exact number of records of a batch read with these options, without reading the records.

    From segment files and from an object store this takes milliseconds, because each segment has a summary with its
    counts. From a broker, it takes as long as fetching the record batches, and from segments that Apache Kafka tiered,
    as long as downloading them.

    Args:
        given: options of `spark.read.format("stablelog")`.
        more: further options whose names contain no dot, as keyword arguments.

    Raises:
        UsageError, RefusedError, UnavailableError, DamageError: the errors of a read with these options.
    """
    options = read_options({**(given or {}), **more}, BATCH)
    warn_without_effect({**(given or {}), **more})
    log = open_log(options)
    try:
        return retry_with_new_listing(log, lambda: _counted(options, log))
    finally:
        log.end_read()
        log.close()


def _counted(options: ReadOptions, log: Log) -> int:
    committed = options.isolation == "read_committed"
    bounds, topic_ids = batch_ranges(options, log)
    ranges = batch_parts(options, log, bounds, topic_ids)
    if isinstance(log, ObjectLog):
        return sum(log.count(wanted) for wanted in ranges)
    total = 0
    for wanted, files in log.files_of(ranges, topic_ids).items():
        counted = None if files is None else _by_files(log, files, wanted, committed=committed)
        if counted is None:
            assert isinstance(log, BrokerLog)
            counted = _fetched_count(log, wanted, options.isolation)
        total += counted
    return total


def _by_files(log: Log, files: PartitionFiles, wanted: Range, *, committed: bool) -> int | None:
    """Return the number of records of a range, counted in its segment files. If the files lack a part of the range,
    return None, so that the caller counts by the broker; raise UnavailableError if the read has no broker. `committed`
    is True for a read-committed reader, which does not get aborted records.
    """
    try:
        return retry_if_files_changed(
            files, lambda: files_count(files, wanted.start, wanted.end, committed=committed)
        )
    except UnavailableError:
        if isinstance(log, DirectoryLog):
            raise
        return None


def _fetched_count(broker: BrokerLog, wanted: Range, isolation: str) -> int:
    total = 0
    aborted = AbortedFilter()
    for fetched, headers in answers(broker.cluster, wanted, isolation):
        aborted.add(fetched.aborted, wanted.start)
        for position, header in headers:
            if header.is_control:
                aborted.process_control(fetched.records, position, header.producer_id, header.last_offset)
            elif not (
                header.is_transactional and aborted.drops_batch(header.producer_id, header.last_offset)
            ):
                batch = fetched.records[position : position + header.size]
                total += records_inside(header, batch, wanted.start, wanted.end)
    return total
