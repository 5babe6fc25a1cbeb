"""Reading of a log by the Kafka protocol, from any broker: partitions, offsets and record batches.

A read ends when its position has reached the end of the range. It may return fewer records than the range has offsets,
because markers and aborted records have offsets, too.
"""

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from stablelog.batch.header import BatchHeader, headers_in
from stablelog.client.blocking import joint
from stablelog.client.blocking.cluster import EARLIEST, LATEST, BlockingCluster
from stablelog.client.blocking.commits import Commits, describe_commits
from stablelog.client.blocking.cuts import Cut, describe_cut
from stablelog.client.responses import UnknownTopicOrPartitionError
from stablelog.errors import DamageError, OffsetOutOfRangeError, RefusedError, UnavailableError, UsageError
from stablelog.spark.options import ReadOptions
from stablelog.spark.planning import FetchSpan, Piece, Span
from stablelog.spark.segments.times import first_in_batch
from stablelog.spark.source.estimated_log import EstimatedLog
from stablelog.spark.source.lost_offsets import LostOffsets, is_lost, lost_range, lost_ranges
from stablelog.spark.source.ranges import Absence, Range, gap_message, gaps_for
from stablelog.spark.source.resolve import check_partitions, partition_name, report_loss
from stablelog.tier.restored_files import LEADER_EPOCH_STEP
from stablelog.types import TopicPartition
from stablelog.wire.extension.commits import COUNT_MAX
from stablelog.wire.extension.cut import RESOLVED
from stablelog.wire.fetch import Fetched

FETCH_SIZE = 8 << 20
SAMPLE_SIZE = 64 << 10
LOOK_SIZE = 1 << 10  # Fetch size, in bytes, if only the first batch's header is used.
# The record size of a range with fewer offsets is not measured by a fetch, but guessed. A wrong guess for a small range
# hardly changes how the read is divided into tasks.
SAMPLED_COUNT_MIN = 50_000
RECORD_SIZE_GUESS = 200
TIMEOUT_S = 10.0


def connect(options: ReadOptions) -> BlockingCluster:
    """Return a client of the brokers that the options name. It opens connections at the first request."""
    assert options.bootstrap is not None
    return BlockingCluster(
        options.bootstrap,
        client_id=options.client_id,
        timeout_s=max(TIMEOUT_S, options.timeout_ms / 1000),
        deadline_s=options.timeout_ms / 1000,
        security=options.security,
    )


class BrokerLog(EstimatedLog):
    """The partitions of the brokers that the options name, read by the Kafka protocol."""

    may_lag = False

    def __init__(self, options: ReadOptions, cluster: BlockingCluster | None = None) -> None:
        self._options = options
        self.cluster = cluster or connect(options)
        self._record_sizes: dict[tuple[TopicPartition, str], float] = {}
        self._may_hold: dict[str, bool] = {}  # the answers of `_may_be_held`, by topic
        # Leader epoch and log start offset of each partition at the last call of `earliest`.
        self._started: dict[TopicPartition, tuple[int, int]] = {}
        # The offsets that restores left without records, with the topic's id and the leader epoch to which they belong.
        self._gaps: dict[TopicPartition, tuple[str, int, Sequence[LostOffsets]]] = {}

    def partitions(self, *, there_only: bool = False) -> dict[TopicPartition, str]:
        """Return the partitions that the options of the read select, as the broker's metadata lists them, each with the
        id of its topic.

        Args:
            there_only: whether topics and partitions that the options name but that do not exist are left out.
                Otherwise they are an error.
        """
        options = self._options
        if options.pattern is not None:
            wanted: Any = re.compile(options.pattern)
        else:
            wanted = options.topics or sorted({topic for topic, _ in options.assigned})
            if there_only:
                wanted = re.compile("|".join(map(re.escape, wanted)))
        topics = self.cluster.metadata(wanted)
        found = {}
        for topic in topics.values():
            topic_id = topic.topic_id.hex if topic.topic_id is not None and topic.topic_id.int else ""
            for index in topic.partitions:
                if options.partitions is None or index in options.partitions:
                    found[topic.name, index] = topic_id
        if not there_only:
            check_partitions(options, {index for topic in topics.values() for index in topic.partitions})
        if options.assigned:
            missing = set(options.assigned) - set(found)
            if missing and not there_only:
                raise UsageError(
                    f"the option assign names {partition_name(min(missing))}, but there is no such partition"
                )
            found = {place: found[place] for place in options.assigned if place in found}
        return found

    def earliest(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition, from the broker."""
        if not places:
            return {}
        found = self.cluster.list_offsets(dict.fromkeys(places, EARLIEST), self._options.isolation)
        self._started |= {place: (found[place].leader_epoch, found[place].offset) for place in places}
        return {place: found[place].offset for place in places}

    def latest(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the visible end of each partition, as the broker reports it: the end for a reader with the isolation
        level of the options.
        """
        return self._list_offsets(dict.fromkeys(places, LATEST))

    def log_ends(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log end of each partition, as the broker reports it. In a commit-ordered topic, whose readers get
        transactions in the order of their commits, it is the end for readers.
        """
        held = [place for place in places if self._may_be_held(place[0])]
        rest = set(places).difference(held)
        return self._list_offsets(dict.fromkeys(held, LATEST), "read_uncommitted") | self.latest(rest)

    def at_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return for each partition the offset of the first record with the given timestamp in ms or a later one; None
        if there is none. An open transaction may be before the record, so that a read-committed reader does not get it
        yet.

        Apache Kafka may return the offset of a marker. This method then searches for the first record after the marker.
        """
        found = self._at_times(times, self._options.isolation)
        late = {
            place: times[place]
            for place, offset in found.items()
            if offset is None and self._may_be_held(place[0])
        }
        return found | self._at_times(late, "read_uncommitted")

    def _at_times(
        self, times: Mapping[TopicPartition, int], isolation: str
    ) -> dict[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = {}
        for place, offset in self._list_offsets(times, isolation).items():
            if offset < 0:
                found[place] = None
            elif joint.supported(self.cluster):
                found[place] = offset  # A stablelog broker never returns the offset of a marker.
            else:
                found[place] = first_record(self.cluster, place, times[place], offset, isolation)
        return found

    def _may_be_held(self, topic: str) -> bool:
        """Return whether an open transaction in a topic may hold the reader back from later records. This cannot happen
        in a commit-ordered topic, whose readers get transactions in the order of their commits: there, a record gets
        its offset for readers only when its transaction is committed.
        """
        if self._options.isolation == "read_uncommitted":
            return False
        if not joint.supported(self.cluster):
            return True
        if topic not in self._may_hold:
            try:
                self.group(topic)
            except RefusedError as refused:
                if refused.code is not ErrorCode.invalid_request:
                    raise
                self._may_hold[topic] = True
            else:
                self._may_hold[topic] = False
        return self._may_hold[topic]

    def _list_offsets(
        self, specs: Mapping[TopicPartition, int], isolation: str | None = None
    ) -> dict[TopicPartition, int]:
        if not specs:
            return {}
        found = self.cluster.list_offsets(specs, isolation or self._options.isolation)
        return {place: found[place].offset for place in specs}

    def spans(self, ranges: Sequence[Range], topic_ids: Mapping[str, str]) -> Iterable[Span]:
        """Return a span for each range, in the given order. A span is a range with its size in bytes, which
        `spark.planning` can divide between tasks. The size is estimated from the first batches of the range.
        """
        for wanted in ranges:
            topic_id = topic_ids.get(wanted.place[0], "")
            yield FetchSpan(*wanted.place, wanted.start, wanted.end, self._estimated_size(wanted), topic_id)

    def absences(
        self, ranges: Sequence[Range], topic_ids: Mapping[str, str]
    ) -> dict[Range, Sequence[Absence]]:
        """Return, for each range, its absences: the offsets that were left without records when the broker was restored
        from an object store.
        """
        return {
            wanted: gaps_for(
                wanted,
                self._gaps_of(wanted.place, topic_ids.get(wanted.place[0], "")),
                partial(is_lost, self.cluster, wanted.place),
            )
            for wanted in ranges
        }

    def _gaps_of(self, place: TopicPartition, topic_id: str) -> Sequence[LostOffsets]:
        epoch, log_start = self._started.get(place, (-1, 0))
        if epoch < LEADER_EPOCH_STEP or not joint.supported(self.cluster):
            return ()
        known = self._gaps.get(place)
        if known is None or known[:2] != (topic_id, epoch):
            gaps = lost_ranges(self.cluster, place, epoch, log_start)
            known = self._gaps[place] = topic_id, epoch, gaps
        return known[2]

    def cut(self, topics: Collection[str], commit_sequence: int) -> Cut:
        """Return a cut of commit-ordered topics, whose readers get transactions in the order of their commits: for each
        partition the offset that divides the commits up to a commit sequence (the number of a commit) from the later
        ones.
        """
        return describe_cut(self.cluster, sorted(topics), commit_sequence)

    def group(self, topic: str) -> str:
        """Return the name of the transaction group of a topic: the topics whose commits have one order."""
        return self.cut([topic], RESOLVED).group

    def commits(
        self, place: TopicPartition, offset: int, count_max: int = COUNT_MAX, *, with_outside: bool = False
    ) -> Commits:
        """Return the next transactions of a partition that end after an offset, in the order of their commits. At most
        `count_max` are returned. `with_outside` says whether records outside transactions are listed, too.
        """
        return describe_commits(
            self.cluster, *place, offset=offset, count_max=count_max, with_outside=with_outside
        )

    def record_size(self, wanted: Range, isolation: str) -> float:
        """Return the average size of a record, in bytes, in the first batches of a range. If the beginning of the range
        was removed from the log, return a fixed estimate.

        For a read-uncommitted reader, every offset counts as a record, also those of markers and gaps.
        """
        key = wanted.place, isolation
        if key not in self._record_sizes:
            try:
                fetched = self.cluster.fetch(*wanted.place, wanted.start, SAMPLE_SIZE, isolation)
            except OffsetOutOfRangeError:
                return (
                    RECORD_SIZE_GUESS  # Use a guess: the task that later reads the range reports the error.
                )
            # Batches after the range are left out: the batch that fills the gap of a restore takes all offsets of the gap.
            headers = [header for _, header in headers_in(fetched.records) if header.base_offset < wanted.end]
            count = sum(header.last_offset_delta + 1 for header in headers)
            size = sum(header.size for header in headers)
            self._record_sizes[key] = size / count if count else RECORD_SIZE_GUESS
        return self._record_sizes[key]

    def _estimated_size(self, wanted: Range) -> int:
        """Return the estimated size of the records of a range, in bytes."""
        count = wanted.end - wanted.start
        is_small = count < SAMPLED_COUNT_MIN
        return int(count * (RECORD_SIZE_GUESS if is_small else self.record_size(wanted, "read_uncommitted")))

    def forget_listing(self) -> None:
        """Do nothing: each call asks the brokers again."""

    def close(self) -> None:
        """Close the connections to the brokers."""
        self.cluster.close()

    def end_read(self) -> None:
        """Do nothing: a broker keeps nothing for a read that has to be released at its end."""


def answers(
    cluster: BlockingCluster, wanted: Range, isolation: str
) -> Iterator[tuple[Fetched, list[tuple[int, BatchHeader]]]]:
    """Fetch a range of offsets from the broker, with as many requests as are needed, and yield the broker's answers,
    the responses.

    Args:
        cluster: the brokers.
        wanted: the range. The first batch may begin before it, and the last one may end after it.
        isolation: the isolation level of the reader.

    Yields:
        A pair: a response, and a list with the position and the header of each whole batch in it.

    Raises:
        OffsetOutOfRangeError: the range was removed.
        UnavailableError: the broker does not respond, or the log ends before the end of the range.
        DamageError: the response does not reach the requested offset.
    """
    offset = wanted.start
    while offset < wanted.end:
        fetched = cluster.fetch(*wanted.place, offset, FETCH_SIZE, isolation)
        headers = list(headers_in(fetched.records))
        reached = headers[-1][1].next_offset if headers else offset
        if reached > offset:
            yield fetched, headers
        else:
            reached = after_nothing(fetched, wanted, offset, isolation)
        offset = reached


def after_nothing(fetched: Fetched, wanted: Range, offset: int, isolation: str) -> int:
    """Return the next offset to fetch after a response that brought nothing: `fetched` has no record at `offset` or
    later, for example because all its records were aborted. `wanted` is the range that is read, and `isolation` the
    isolation level of the reader.

    Raises:
        UnavailableError: the log ends at or before `offset`.
        DamageError: the response contains only records before `offset`.
    """
    visible = fetched.high_watermark if isolation == "read_uncommitted" else fetched.last_stable_offset
    if visible <= offset:
        raise UnavailableError(
            f"{partition_name(wanted.place)} ends at offset {visible} now, but the read was planned up to offset {wanted.end}"
        )
    if len(fetched.records):  # Do not retry, because a retry would return the same records.
        raise DamageError(
            f"{partition_name(wanted.place)}: a fetch from offset {offset} returned only records before this offset"
        )
    # The log continues after `offset`. Compaction has removed all records from `offset` to the end that the reader can
    # see.
    return min(visible, wanted.end)


def first_record(
    cluster: BlockingCluster, place: TopicPartition, time_ms: int, start: int, isolation: str
) -> int | None:
    """Find the first record from an offset on that has this time or a later one and is visible to the reader.

    Args:
        cluster: the brokers.
        place: the partition.
        time_ms: the minimum timestamp of the record.
        start: the broker's response to ListOffsets for that time: the offset of such a record, or of a marker before
            it.
        isolation: the isolation level of the reader.

    Returns:
        The offset of the record; None if there is none.

    Raises:
        OffsetOutOfRangeError: the offset was removed.
        UnavailableError: the broker does not respond, or the log ends before the offset.
        DamageError: the response does not reach the requested offset.
    """
    for _, header in headers_in(cluster.fetch(*place, start, LOOK_SIZE, isolation).records):
        if not header.is_control and header.base_offset <= start:
            return start
        break
    end = cluster.list_offsets({place: LATEST}, isolation)[place].offset
    for fetched, headers in answers(cluster, Range(place, start, end), isolation):
        for position, header in headers:
            if not header.is_control and header.max_timestamp >= time_ms and header.next_offset > start:
                found = first_in_batch(memoryview(fetched.records)[position:], time_ms, start)
                if found is not None:
                    return found[0] if found[0] < end else None
    return None


def read(options: ReadOptions, cluster: BlockingCluster, piece: Piece, decoder: Any) -> Iterator[Any]:
    """Fetch the record batches of a piece (a range of offsets of one partition), decode them, and yield the rows as
    Arrow batches. The last rows, which do not fill a batch, stay in the column builder of the decoder; the caller takes
    them from there.

    Args:
        options: the options of the read.
        cluster: the brokers.
        piece: what to read.
        decoder: a decoder for this partition and the columns to read.

    Raises:
        UnavailableError: the broker does not respond, or a part of the piece was removed meanwhile.
        DamageError: a record batch is damaged. The message names the offset.
    """
    if _is_another_topic(cluster, piece):
        report_loss(options, f"{piece.topic} was deleted and created again after the read was planned")
        return
    wanted = Range((piece.topic, piece.partition), piece.start, piece.end)
    offset = piece.start
    while offset < piece.end:
        try:
            fetched = cluster.fetch(piece.topic, piece.partition, offset, FETCH_SIZE, options.isolation)
        except OffsetOutOfRangeError:
            offset = _after_loss(options, cluster, piece, offset)
            continue
        yield from decoder.feed(fetched.records, offset, piece.end, fetched.aborted)
        reached = max(decoder.next_offset, offset)
        if reached == offset:
            reached = after_nothing(fetched, wanted, offset, options.isolation)
        offset = reached


def check_topics(cluster: BlockingCluster, pieces: Iterable[Piece]) -> None:
    """Check after a read that no topic was deleted and created again meanwhile. A fetch names a topic by its name and
    would return the records of the new topic.

    Raises:
        UnavailableError: a topic was deleted and created again meanwhile, and the records may be those of the new
            topic.
    """
    cluster.forget_metadata()
    for piece in {piece.topic: piece for piece in pieces}.values():
        with contextlib.suppress(
            UnknownTopicOrPartitionError
        ):  # The topic was deleted after the read, which does not matter.
            if _is_another_topic(cluster, piece):
                raise UnavailableError(f"{piece.topic} was deleted and created again while it was read")


def _is_another_topic(cluster: BlockingCluster, piece: Piece) -> bool:
    """Return whether the topic of a piece (a range that a task reads) was deleted after the read was planned, and
    created again with the same name.
    """
    topic = cluster.retrying(f"looking for {piece.topic}", lambda: cluster.topic(piece.topic))
    return bool(piece.topic_id and topic.topic_id is not None and topic.topic_id.hex != piece.topic_id)


def _after_loss(options: ReadOptions, cluster: BlockingCluster, piece: Piece, offset: int) -> int:
    """Report the loss of the records at `offset`, and return the next offset to read. The log start is now after this
    offset, or the broker was restored from an object store and has no record at this offset.
    """
    place = (piece.topic, piece.partition)
    first = cluster.list_offsets({place: EARLIEST}, options.isolation)[place].offset
    if first <= offset:
        gone = lost_range(cluster, place, offset)
        if gone is None:
            raise UnavailableError(
                f"{partition_name(place)} ends before offset {offset}, which existed when the read was planned"
            )
        report_loss(options, gap_message(place, offset, *gone))
        return gone.end
    report_loss(
        options,
        f"{partition_name(place)} begins at offset {first} now: offsets {offset} to {min(first, piece.end) - 1} were removed "
        "while they were read",
    )
    return first
