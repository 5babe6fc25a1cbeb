"""Count of the records of a read, without reading them.

Segment files are counted by `source.counting`; for a broker, the headers of fetched record batches are counted.
"""

from collections.abc import Mapping

from stablelog.batch.aborted import AbortedFilter
from stablelog.errors import Unavailable
from stablelog.spark.option_table import BATCH
from stablelog.spark.options import read_options
from stablelog.spark.segments.partition_files import PartitionFiles
from stablelog.spark.source.broker_log import BrokerLog, answers
from stablelog.spark.source.counting import files_count, records_inside
from stablelog.spark.source.cuts import batch_ranges, broker_of
from stablelog.spark.source.directory_log import DirectoryLog, steadily
from stablelog.spark.source.reader import open_log
from stablelog.spark.source.resolve import Log, Range


def count(given: Mapping[str, str] | None = None, **more: str) -> int:
    """How many records a batch read with these options has: exact, and far cheaper than reading them.

    From segment files by their summaries, in milliseconds; by the protocol from the headers of record batches.

    Args:
        given: options as of `spark.read.format("stablelog")`.
        more: the same, for names without a dot.

    Raises:
        InvalidConfig, Refused, Unavailable, Corrupt: as the read.
    """
    options = read_options({**(given or {}), **more}, BATCH)
    log = open_log(options)
    committed = options.isolation == "read_committed"
    try:
        ranges, topic_ids = batch_ranges(options, log)
        total = 0
        for wanted, files in log.files_of(ranges, topic_ids).items():
            counted = None if files is None else _by_files(log, files, wanted, committed=committed)
            if counted is None:
                counted = _fetched_count(broker_of(log), wanted, options.isolation)
            total += counted
        return total
    finally:
        log.close()


def _by_files(log: Log, files: PartitionFiles, wanted: Range, *, committed: bool) -> int | None:
    """The count of a range by its files; None where they do not have it any more, or not yet, and there is a broker."""
    try:
        return steadily(files, lambda: files_count(files, wanted.start, wanted.end, committed=committed))
    except Unavailable:
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
                aborted.pass_control(fetched.records, position, header.producer_id, header.last_offset)
            elif not (header.is_transactional and aborted.drops(header.producer_id, header.last_offset)):
                batch = fetched.records[position : position + header.size]
                total += records_inside(header, batch, wanted.start, wanted.end)
    return total
