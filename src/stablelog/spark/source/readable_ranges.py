"""Finds the readable parts of a read's ranges, and reports lost records.

Every range of a read passes through this module, and is compared with the log start, with the offsets whose records a
restore of the broker has lost, and with the segments that a store lacks (holes). Its result is the only measure of how
much there is to read (see `ranges`).
"""

from collections.abc import Iterable, Mapping, Sequence

from stablelog.client.responses import UnknownTopicOrPartitionError
from stablelog.spark.offsets import StreamOffsets
from stablelog.spark.options import ReadOptions
from stablelog.spark.source.ranges import Range, Readable, readable_parts
from stablelog.spark.source.resolve import Log, partition_name, partition_names, ranges_between, report_loss


def readable_ranges(log_: Log, ranges: Sequence[Range], topic_ids: Mapping[str, str]) -> list[Readable]:
    """Find the parts of each range that can be read, without the offsets whose records are removed or lost. Return a
    `Readable` for each range, in the given order. Offsets before the log start are left out.

    Raises:
        UnknownTopicOrPartitionError: a partition does not exist.
    """
    firsts = log_.earliest([wanted.place for wanted in ranges]) if ranges else {}
    begun: list[tuple[Range, list[str]]] = []
    for wanted in ranges:
        first, losses = firsts[wanted.place], []
        if wanted.start < first:
            losses.append(
                f"{partition_name(wanted.place)} begins at offset {first} now: offsets {wanted.start} to "
                f"{min(first, wanted.end) - 1} were removed before they were read"
            )
            wanted = wanted._replace(start=min(first, wanted.end))
        begun.append((wanted, losses))
    absences = log_.absences([wanted for wanted, _ in begun], topic_ids)
    return [
        readable_parts(wanted, firsts[wanted.place], absences.get(wanted, ()), losses)
        for wanted, losses in begun
    ]


def report_losses(options: ReadOptions, ranges: Iterable[Readable]) -> None:
    """Report the records that readers of these ranges miss: as an error or a warning, by the option failOnDataLoss.

    Raises:
        DataLossError: a reader misses records, and failOnDataLoss is true.
    """
    for one in ranges:
        for message in one.losses:
            report_loss(options, message)


def check_losses(options: ReadOptions, ranges: Iterable[Readable]) -> None:
    """Raise DataLossError if the reader misses records and failOnDataLoss is true. If it is false, do nothing, and log
    no warning. Use this for ranges that are only measured; the warning is logged later, when their tasks are planned.
    """
    if options.fail_on_data_loss:
        report_losses(options, ranges)


def parts_of(ranges: Iterable[Readable]) -> list[Range]:
    """Return the readable parts of all these ranges in one list, in the order of the ranges. Offsets that cannot be
    read, for example those whose records a restore of the broker has lost, are in none of the parts.
    """
    return [part for one in ranges for part in one.parts]


def batch_parts(
    options: ReadOptions, log_: Log, ranges: Sequence[Range], topic_ids: Mapping[str, str]
) -> list[Range]:
    """Return those parts of a batch's ranges that can be read, and report the records that the reader misses. Raises
    DataLossError if the reader misses records and failOnDataLoss is true.
    """
    found = readable_ranges(log_, ranges, topic_ids)
    report_losses(options, found)
    return parts_of(found)


def micro_batch_ranges(
    options: ReadOptions, log_: Log, start: StreamOffsets, end: StreamOffsets, *, is_planned: bool = True
) -> list[Readable]:
    """Return the ranges between two positions of a stream, one for each partition with records to read. Equal
    positions give equal ranges, as long as no records are lost.

    Args:
        options: the options of the read.
        log_: the log.
        start: the offsets at which the micro-batch begins.
        end: the offsets at which it ends.
        is_planned: whether the tasks of the micro-batch are planned, so that losses are reported. If False, the
            micro-batch is only measured.

    Raises:
        DataLossError: some of the records were removed, and failOnDataLoss is true.
    """
    replaced = start.replaced_topics(end.topic_ids)
    # A partition that was added later, or whose topic was created again, is read from its beginning.
    known = {place: offset for place, offset in start.next_offsets.items() if place[0] not in replaced}
    ranges = ranges_between(known, end.next_offsets)
    try:
        found = readable_ranges(log_, ranges, end.topic_ids)
    except UnknownTopicOrPartitionError:
        if options.fail_on_data_loss:
            raise
        there = log_.partitions(there_only=True)
        gone = [wanted.place for wanted in ranges if wanted.place not in there]
        if gone and is_planned:
            report_loss(
                options, f"{partition_names(gone)} does not exist any more, and was not read to its end"
            )
        found = readable_ranges(log_, [one for one in ranges if one.place in there], end.topic_ids)
    (report_losses if is_planned else check_losses)(options, found)
    return [one for one in found if one.whole.start < one.whole.end]
