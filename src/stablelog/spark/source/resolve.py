"""Ranges of a read: convert options and the state of the log into ranges of offsets, and report lost records.

Records count as lost if their offsets are before the log start or past the log end, if their partition does not exist
any more, or if their topic was deleted and created again, so that its id differs. Gaps between offsets are not a loss:
there were markers, aborted records, or records that compaction has removed.

Offsets between the visible end (the end for a reader with the isolation level of the read) and the log end are not a
loss either. An open transaction stands before them, or they are not in the object store yet: a stream waits for them,
and a batch ends at the visible end.
"""

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from stablelog.errors import DataLossError, UnavailableError, UsageError
from stablelog.spark.offsets import EARLIEST, LATEST, Bound, StreamOffsets
from stablelog.spark.options import ReadOptions
from stablelog.spark.planning import Span
from stablelog.spark.segments.partition_files import PartitionFiles
from stablelog.spark.source.ranges import Absence, OffsetState, Range, Readable, offset_state
from stablelog.types import TopicPartition

log = logging.getLogger(__name__)
SHOWN_MAX = 5  # maximum of partitions that a message names


class Log(Protocol):
    """The log that a read reads: the log of brokers, or the log in a data directory or in an object store.

    Attributes:
        may_lag: whether the log may still get records that exist elsewhere already: an object store gets those of the
            broker's disk. Offsets after the end of such a log are therefore not lost.
    """

    may_lag: bool

    def partitions(self, *, there_only: bool = False) -> dict[TopicPartition, str]:
        """Return every partition that the options of the read select, each with the id of its topic. The id is empty
        if it is unknown.

        Args:
            there_only: whether topics and partitions that the options name but that do not exist are left out.
                Otherwise they are an error.

        Raises:
            RefusedError: a named topic or partition does not exist.
        """

    def earliest(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition, its log start offset."""

    def latest(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the visible end of each partition: the end for a reader with the isolation level of the options."""

    def log_ends(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log end of each partition, below which offsets are assigned.

        In a commit-ordered topic, whose readers get transactions in the order of their commits, it is the visible end
        if the reader is read-committed: a record gets its offset for such readers only with its commit.
        """

    def at_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return for each partition the offset of the first record with this timestamp in ms or a later one; None if
        there is none. The record may be one that the reader does not get yet, because a transaction before it is open.
        """

    def absences(
        self, ranges: Sequence[Range], topic_ids: Mapping[str, str]
    ) -> Mapping[Range, Sequence[Absence]]:
        """Return for each range its absences, in the order of the offsets: offsets that cannot be read, because a
        restore of the broker has lost their records, or because a store lacks a segment. They may reach beyond the
        range. The caller has called `earliest` for the partitions before.
        """

    def spans(self, ranges: Sequence[Range], topic_ids: Mapping[str, str]) -> Iterable[Span]:
        """Return a span for each range, in the given order. A span is a range with its size in bytes that can be
        divided between tasks. All offsets of the ranges must be readable.
        """

    def files_of(
        self, ranges: Sequence[Range], topic_ids: Mapping[str, str]
    ) -> Mapping[Range, PartitionFiles | None]:
        """Return, for each range, the segment files that contain it now; None if this process cannot read them."""

    def limit_ranges(
        self,
        ranges: Sequence[Readable],
        topic_ids: Mapping[str, str],
        count_max: int | None,
        size_max: int | None,
    ) -> dict[TopicPartition, int]:
        """Return an end offset for each range, by partition, so that all ranges together stay within a limit of records
        and of stored bytes. A range without a readable part is not limited.

        Args:
            ranges: the ranges that a micro-batch could read.
            topic_ids: the id of each topic, by name.
            count_max: the limit of records; None for no limit.
            size_max: the limit of bytes; None for no limit.
        """

    def forget_listing(self) -> None:
        """Drop the cached listing of an object store, so that the next call lists the store again. A log without a
        store does nothing.
        """

    def close(self) -> None:
        """Close connections. The tasks of the read may still run."""

    def end_read(self) -> None:
        """Release what the log keeps for the tasks of the read, such as pins (objects that keep segments from being
        deleted). Called after the last task, if it is known when that has ended.
        """


def partition_name(place: TopicPartition) -> str:
    """Return the name of a partition for messages: `topic-0`."""
    return f"{place[0]}-{place[1]}"


def partition_names(places: Iterable[TopicPartition]) -> str:
    """Return the names of some partitions for messages."""
    shown = [partition_name(place) for place in sorted(places)]
    more = len(shown) - SHOWN_MAX
    return ", ".join(shown[:SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


def check_partitions(options: ReadOptions, indexes: Collection[int]) -> None:
    """Check that each number in the option partitions is that of a partition of a topic of the read.

    Raises:
        UsageError: no topic has a partition with a number.
    """
    missing = (options.partitions or frozenset()) - set(indexes)
    if missing and indexes:
        raise UsageError(
            f"the option partitions names {min(missing)}, but the topics of the read have the partitions 0 to {max(indexes)}"
        )


def _is_selected(options: ReadOptions, place: TopicPartition) -> bool:
    """Return whether the options of a read select a partition."""
    topic, index = place
    if options.assigned:
        return place in options.assigned
    if options.pattern is not None:
        is_named = re.fullmatch(options.pattern, topic) is not None
    else:
        is_named = not options.topics or topic in options.topics
    return is_named and (options.partitions is None or index in options.partitions)


def topic_ids_of(partitions: Mapping[TopicPartition, str]) -> dict[str, str]:
    """Return the id of each topic, by name. Topics whose id is unknown are left out."""
    return {topic: topic_id for (topic, _), topic_id in partitions.items() if topic_id}


def ranges_between(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> list[Range]:
    """Return the range between the start and the end of each partition, sorted by partition and without empty ranges. A
    partition without a start is read from its beginning.
    """
    return [
        Range(place, starts.get(place, 0), end)
        for place, end in sorted(ends.items())
        if starts.get(place, 0) < end
    ]


def report_loss(options: ReadOptions, message: str) -> None:
    """Report that records are lost.

    Raises:
        DataLossError: always, unless failOnDataLoss is false. Then the loss is logged as a warning.
    """
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{message}. Set failOnDataLoss to false to continue without them, or give other offsets; a stream then needs a "
            "new checkpoint"
        )
    log.warning("%s; the read continues without them, because failOnDataLoss is false", message)


def batch_ranges(options: ReadOptions, log_: Log) -> tuple[list[Range], dict[str, str]]:
    """Return a pair: the ranges of offsets that a batch reads, and the id of each of its topics, by name.

    Raises:
        UsageError: the offsets of an option do not match the partitions.
        UnavailableError: requested offsets are not in the log.
    """
    partitions = log_.partitions()
    places = sorted(partitions)
    # Request the end before the start: if retention removes records in between, the read reports them as lost.
    latest = log_.latest(places)
    earliest = log_.earliest(places)
    ends = resolve_bound(options, log_, options.ending, "endingOffsets", earliest, latest)
    starts = resolve_bound(options, log_, options.starting, "startingOffsets", earliest, latest)
    ranges = []
    for place in places:
        start, end = starts[place], ends[place]
        if start > end and options.starting.kind == "offsets" and options.ending.kind == "offsets":
            raise UsageError(f"{partition_name(place)}: startingOffsets={start} is after endingOffsets={end}")
        if max(start, end) > latest[place]:
            log.warning(
                "partition %s: %s, so the batch reads no later records. Its options name the later offset %s",
                partition_name(place),
                _held(log_, latest[place]),
                max(start, end),
            )
        end = min(end, latest[place])
        if start < end:
            ranges.append(Range(place, start, end))
    return ranges, topic_ids_of(partitions)


def _held(log_: Log, visible: int) -> str:
    """Return in words, for a message, what holds a reader back at the offset `visible`, the visible end: why it does
    not get later records.
    """
    if log_.may_lag:
        return f"the store has records up to offset {visible} only"
    return f"an open transaction holds read-committed readers at offset {visible}"


def resolve_bound(
    options: ReadOptions,
    log_: Log,
    bound: Bound,
    option: str,
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Convert the start or the end of a read, as an option gives it, into an offset of each partition. Check that the
    offsets are in the log.

    The offset may be after the visible end, the end for a reader with the isolation level of the read. A stream then
    waits there, and a batch reads up to the visible end.

    Raises:
        UsageError: the bound names other partitions than the read has.
        UnavailableError: an offset is not in the log, or no record has the time or a later one.
    """
    if bound.kind == "earliest":
        return dict(earliest)
    if bound.kind == "latest":
        return dict(latest)
    if bound.kind == "timestamp":
        return _at_times(options, log_, dict.fromkeys(earliest, bound.timestamp_ms), option, latest)
    _check_places(f"{option}ByTimestamp" if bound.kind == "timestamps" else option, bound, set(earliest))
    if bound.kind == "timestamps":
        return _at_times(options, log_, bound.by_partition, option, latest)
    past = [place for place in earliest if bound.by_partition[place] > latest[place]]
    log_ends = _ends_past(options, log_, latest, option, past)
    found = {}
    for place, first in earliest.items():
        wanted = bound.by_partition[place]
        if wanted == EARLIEST:
            wanted = first
        elif wanted == LATEST:
            wanted = latest[place]
        else:
            end = log_ends.get(place, latest[place])
            state = offset_state(wanted, first, latest[place], end, may_lag=log_.may_lag)
            if state is OffsetState.REMOVED:
                report_loss(
                    options, f"{partition_name(place)} begins at offset {first}, but {option} is {wanted}"
                )
                wanted = first
            elif state is OffsetState.PAST_END:
                report_loss(
                    options, f"{partition_name(place)} ends at offset {end}, but {option} is {wanted}"
                )
                wanted = end
        found[place] = wanted
    return found


def _ends_past(
    options: ReadOptions,
    log_: Log,
    latest: Mapping[TopicPartition, int],
    option: str,
    past: Collection[TopicPartition],
) -> dict[TopicPartition, int]:
    """Return the log end of each partition in `past`: the partitions in which the bound of the read (its start or its
    end) is after the visible end, the end for a reader with its isolation level. If the option cut is set, the offset
    at the last cut (the last position between two commits, in all partitions) takes the place of the log end.

    Raises:
        UsageError: the last cut of the store is before the bound, so it is unknown whether the bound is a cut.
    """
    if not options.cut:
        return log_.log_ends(past) if past else {}
    if past and log_.may_lag:
        place = min(past)
        raise UsageError(
            f"{option} names an offset after the last cut of the store, which is at offset {latest[place]} of "
            f"{partition_name(place)}. Run the query when the store has it, or give kafka.bootstrap.servers"
        )
    return {place: latest[place] for place in past}


def _check_places(option: str, bound: Bound, places: set[TopicPartition]) -> None:
    named = set(bound.by_partition)
    if named - places:
        raise UsageError(f"{option} names {partition_names(named - places)}, which the read does not include")
    if places - named:
        advice = (
            "each with a time" if bound.kind == "timestamps" else "with -2 for earliest and -1 for latest"
        )
        raise UsageError(
            f"{option} does not name {partition_names(places - named)}: name every partition, {advice}"
        )


def _at_times(
    options: ReadOptions,
    log_: Log,
    times: Mapping[TopicPartition, int],
    option: str,
    latest: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    if option == "endingOffsets":
        return {
            place: latest[place] if offset is None else min(offset, latest[place])
            for place, offset in log_.at_times(times).items()
        }
    # Request the log ends before the lookup: all records before them are then older if the lookup finds none.
    log_ends = log_.log_ends(times) if options.latest_if_late else {}
    found = {}
    for place, offset in log_.at_times(times).items():
        if offset is None and not options.latest_if_late:
            raise UnavailableError(
                f"{partition_name(place)} has no record of time {times[place]} or later; "
                "startingOffsetsByTimestampStrategy=latest begins at the end of the partition"
            )
        found[place] = log_ends[place] if offset is None else offset
    return found


class Waiting:
    """The partitions in which a stream waits, because the end that is visible to it is before its position. A warning
    is logged when a partition begins to wait.
    """

    def __init__(self) -> None:
        self._told: set[TopicPartition] = set()

    def warn_of_waits(self, log_: Log, positions: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Log a warning about those partitions that wait now and did not wait at the last call.

        Args:
            log_: the log.
            positions: for each partition that waits, the stream's position and the end that is visible to it.
        """
        for place in sorted(positions.keys() - self._told):
            position, visible = positions[place]
            log.warning(
                "partition %s: %s, so the stream waits at its offset %s",
                partition_name(place),
                _held(log_, visible),
                position,
            )
        self._told = set(positions)


def stream_end(
    options: ReadOptions,
    log_: Log,
    start: StreamOffsets,
    partitions: Mapping[TopicPartition, str],
    latest: Mapping[TopicPartition, int],
    waiting: Waiting,
) -> StreamOffsets:
    """Return the offsets up to which a stream can read now. Check that the log still contains the stream's position.

    A position between the visible end (the end for a reader with the isolation level of the read) and the log end
    stays: the stream waits. With failOnDataLoss=false, a position past the log end moves back to the log end.

    Args:
        options: the options of the read.
        log_: the log.
        start: the position of the stream: the next offset that it reads in each partition.
        partitions: the existing partitions, with their topics' ids.
        latest: the visible end of each partition; with the option cut, its offset at the last cut (the last position
            between two commits, in all partitions).
        waiting: the partitions that waited at the last call.

    Raises:
        DataLossError: a partition was deleted, replaced or truncated, and failOnDataLoss is true.
    """
    ids = topic_ids_of(partitions)
    gone = set(start.next_offsets) - set(partitions)
    left_out = {place for place in gone if not _is_selected(options, place)}
    if left_out:
        report_loss(
            options,
            f"{partition_names(left_out)} was read before, but the options of the query leave it out now",
        )
    if gone - left_out:
        report_loss(
            options, f"{partition_names(gone - left_out)} does not exist any more, but was read before"
        )
    replaced = start.replaced_topics(ids)
    if replaced:
        report_loss(options, f"{', '.join(sorted(replaced))} was deleted and created again after it was read")
    found = dict(latest)
    past = {
        place: start.next_offsets[place]
        for place, offset in latest.items()
        if place[0] not in replaced and start.next_offsets.get(place, 0) > offset
    }
    log_ends = (latest if options.cut else log_.log_ends(past)) if past else {}
    for place, before in past.items():
        found[place], end = before, log_ends[place]
        if offset_state(before, 0, latest[place], end, may_lag=log_.may_lag) is OffsetState.PAST_END:
            report_loss(
                options, f"{partition_name(place)} ends at offset {end}, but was read up to {before} before"
            )
            found[place] = end
    waiting.warn_of_waits(
        log_, {place: (at, latest[place]) for place, at in past.items() if found[place] == at}
    )
    return StreamOffsets(found, ids)
