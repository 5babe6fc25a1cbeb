"""The log in an object store, without a broker."""

import logging
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from stablelog.client.blocking.commits import Commits
from stablelog.client.blocking.cuts import Cut
from stablelog.client.responses import UnknownTopicOrPartitionError
from stablelog.errors import DamageError, ObjectMissingError, UsageError
from stablelog.spark.objects.parallel_requests import map_parallel
from stablelog.spark.objects.stored_commits import StoredCuts, commits_between
from stablelog.spark.objects.stored_topics import stored_topics
from stablelog.spark.objects.tiered_partition import TieredPartition
from stablelog.spark.options import ReadOptions
from stablelog.spark.planning import Span
from stablelog.spark.source.counting import files_count
from stablelog.spark.source.estimated_log import EstimatedLog
from stablelog.spark.source.ranges import Absence, Range
from stablelog.spark.source.resolve import partition_name
from stablelog.spark.source.stored_ranges import absences_in
from stablelog.tier.names import RemotePartition
from stablelog.types import TopicPartition
from stablelog.wire.extension.commits import COUNT_MAX

log = logging.getLogger(__name__)
REFRESH_S = 30.0  # A stream reads the manifests again after this time.


class ObjectLog(EstimatedLog):
    """The log in an object store, without a broker. It ends where the store ends: later records are only on the disk of
    the broker.
    """

    may_lag = True

    def __init__(self, options: ReadOptions, *, with_pins: bool = True) -> None:
        self._options = options
        self._stored = stored_topics(options, self._first_needed if with_pins else None)
        self._found: dict[TopicPartition, TieredPartition] = {}
        self._read_s = float("-inf")  # when the manifests were read last
        # The first offset that a stream still needs of a partition.
        self._needed: dict[TopicPartition, int] = {}
        self._cuts = StoredCuts(self._stored.store.url)

    def _first_needed(self, partition: RemotePartition) -> int:
        return self._needed.get((partition.topic, partition.partition), 0)

    def partitions(self, *, there_only: bool = False) -> dict[TopicPartition, str]:
        """Return the partitions in the store that the options of the read select, each with the id of its topic. Their
        manifests (lists of a partition's segments) are read for this, unless they were read in the last REFRESH_S
        seconds.

        Args:
            there_only: whether topics and partitions that the options name but that do not exist are left out.
                Otherwise they are an error.
        """
        if time.monotonic() - self._read_s < REFRESH_S:
            return self._chosen_ids()
        options = self._options
        wanted = {*options.topics, *(topic for topic, _ in options.assigned)}
        if not wanted:
            pattern = None if options.pattern is None else re.compile(options.pattern)
            wanted = {
                topic
                for topic in self._stored.topics()
                if not topic.startswith("__") and (pattern is None or pattern.fullmatch(topic))
            }
        self._found = self._stored.read_partitions(sorted(wanted), self._is_wanted)
        if options.assigned:
            gone = set(options.assigned) - set(self._found)
            if gone and not there_only:
                raise UsageError(
                    f"the option assign names {partition_name(min(gone))}, but there is no such partition in {self._stored.store.url}"
                )
        missing = set(options.topics) - {topic for topic, _ in self._found}
        if missing and options.partitions is not None:
            # They may have other partitions than those that are wanted.
            missing -= set(self._stored.topics())
        if missing and not there_only:
            raise UnknownTopicOrPartitionError(
                f"there is no topic {min(missing)!r} in {self._stored.store.url}: either it is not tiered, or no segment "
                "of it was copied yet"
            )
        absent = (options.partitions or frozenset()) - {index for _, index in self._found}
        if absent and self._found:
            log.warning(
                "the option partitions names %s, and %s has no such partition, or no segment of it was copied yet",
                min(absent),
                self._stored.store.url,
            )
        self._read_s = time.monotonic()
        return self._chosen_ids()

    def _is_wanted(self, place: TopicPartition) -> bool:
        options = self._options
        if options.assigned:
            return place in options.assigned
        return options.partitions is None or place[1] in options.partitions

    def _chosen_ids(self) -> dict[TopicPartition, str]:
        return {
            place: stored.partition.topic_id.hex
            for place, stored in sorted(self._found.items())
            if self._is_wanted(place)
        }

    def stored_partitions(self) -> list[TieredPartition]:
        """Return the partitions in the store that `partitions` has listed, as objects that can be read."""
        return [self._found[place] for place in self._chosen_ids()]

    def _stored_partition(self, place: TopicPartition) -> TieredPartition:
        return self._stored_partitions([place])[place]

    def _stored_partitions(self, places: Collection[TopicPartition]) -> dict[TopicPartition, TieredPartition]:
        # A stream that was started again asks for offsets before it lists partitions.
        unread = set(places) - set(self._found)
        if unread:
            self._found |= self._stored.read_partitions(
                sorted({topic for topic, _ in unread}), unread.__contains__
            )
        absent = unread - set(self._found)
        if absent:
            raise UnknownTopicOrPartitionError(
                f"there is no partition {partition_name(min(absent))} in {self._stored.store.url}"
            )
        return {place: self._found[place] for place in places}

    def earliest(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition that can be read, according to the store."""
        return {place: stored.start_offset for place, stored in self._stored_partitions(places).items()}

    def latest(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offset of each partition in the store for a reader with the isolation level of the options."""
        return {place: stored.end_offset for place, stored in self._stored_partitions(places).items()}

    def log_ends(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offset of the last segment of each partition in the store. The broker may have more records."""
        return {
            place: stored.end_offset if stored.is_in_commit_order else stored.log_end
            for place, stored in self._stored_partitions(places).items()
        }

    def at_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return for each partition the offset of the first record with the given timestamp in ms or a later one; None
        if there is none.
        """
        stored = self._stored_partitions(times)
        found = map_parallel(lambda one: one.at_time(times[one.place]), list(stored.values()))
        return dict(zip(stored, found, strict=True))

    def cut(self, topics: Collection[str], commit_sequence: int) -> Cut:
        """Return the cut of some commit-ordered topics, whose readers get transactions in the order of their commits,
        in the partitions that the read selects: for each partition, the offset that divides the commits up to a commit
        sequence (the number of a commit) from the later ones.
        """
        return self._cuts.cut(self._partitions_of_topics(topics), commit_sequence)

    def group(self, topic: str) -> str:
        """Return the name of the transaction group of a topic: the topics whose commits have one order."""
        return self._cuts.group(self._partitions_of_topics([topic]).values())

    def _partitions_of_topics(self, topics: Collection[str]) -> dict[TopicPartition, TieredPartition]:
        if self._read_s == float("-inf"):
            self.partitions(there_only=True)
        there = {place: self._found[place] for place in self._chosen_ids() if place[0] in topics}
        missing = set(topics) - {topic for topic, _ in there}
        if missing or not there:
            raise UnknownTopicOrPartitionError(
                f"there is no topic {min(missing, default='')!r} in {self._stored.store.url}"
            )
        return there

    def commits(
        self, place: TopicPartition, offset: int, count_max: int = COUNT_MAX, *, with_outside: bool = False
    ) -> Commits:
        """Return the next transactions of a partition that end after an offset, at most `count_max`. `with_outside`
        says whether records outside transactions are listed, too.
        """
        stored = self._stored_partition(place)
        bounds = stored.start_offset, stored.end_offset
        return commits_between(stored.order, *bounds, offset, count_max, with_outside=with_outside)

    def record_size(self, wanted: Range, isolation: str) -> float:
        """Return the average size of a record in the segments of a range, in bytes. Each offset counts as a record."""
        assert isolation == "read_committed"
        return self._estimated_size(wanted) / max(wanted.end - wanted.start, 1)

    def spans(self, ranges: Sequence[Range], topic_ids: Mapping[str, str]) -> Iterable[Span]:
        """Return a span for each range, in the given order. A span is a range that `spark.planning` can divide between
        tasks, with the parts of the objects that contain its records.
        """
        found = self._stored_partitions({wanted.place for wanted in ranges})
        firsts: dict[TopicPartition, int] = {}
        for place, start, _ in ranges:
            firsts[place] = min(start, firsts.get(place, start))
        self._needed |= {place: found[place].first_needed(start) for place, start in firsts.items()}
        for place, start, end in ranges:
            yield found[place].span(start, end, topic_ids.get(place[0], ""))

    def absences(
        self, ranges: Sequence[Range], topic_ids: Mapping[str, str]
    ) -> dict[Range, Sequence[Absence]]:
        """Return, for each range, its absences, the offsets that cannot be read: those that were left without records
        when the broker was restored, and those of segments that the store lacks (holes).

        Raises:
            UsageError: only brokers can read some of the offsets.
        """
        found = self._stored_partitions({wanted.place for wanted in ranges})
        for wanted in ranges:
            found[wanted.place].check_without_brokers(wanted.start, wanted.end)
        return {
            wanted: absences_in(found[wanted.place], wanted, topic_ids.get(wanted.place[0], ""))
            for wanted in ranges
        }

    def count(self, wanted: Range) -> int:
        """Return the number of records of a range that the reader gets. Where no transaction was aborted, the manifest
        (the list of the partition's segments) has this number; elsewhere, the headers of batches are read. All offsets
        of the range must be readable.

        Raises:
            UnavailableError: the store does not answer.
            DamageError: an object is damaged or missing.
        """
        stored = self._stored_partition(wanted.place)
        try:
            return self._count_records(stored, wanted)
        except ObjectMissingError as missing:
            raise DamageError(f"{missing}, and {stored.listed_by}: restore the object") from missing

    def _count_records(self, stored: TieredPartition, part: Range) -> int:
        if stored.is_in_commit_order:
            return stored.count_in_commit_order(part.start, part.end)
        committed = self._options.isolation == "read_committed"
        return files_count(stored, part.start, part.end, committed=committed)

    def _estimated_size(self, wanted: Range) -> int:
        return self._stored_partition(wanted.place).span(wanted.start, wanted.end).size

    def forget_listing(self) -> None:
        """Drop what was listed in the store (the partitions and their segments), so that the next call lists it
        again.
        """
        self._found, self._read_s = {}, float("-inf")

    def close(self) -> None:
        """Do nothing: there is no connection to close. The pins, objects that keep the segments of the read from being
        deleted, stay for the tasks until `end_read`.
        """

    def end_read(self) -> None:
        """Delete the pins of the read: the objects that keep its segments from being deleted."""
        self._stored.remove_pins()
