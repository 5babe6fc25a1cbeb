"""The log in an object store, without a broker."""

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from stablelog.client.responses import Missing
from stablelog.env.objects.store import ObjectStore
from stablelog.errors import Corrupt, InvalidConfig, ObjectMissing
from stablelog.spark.objects.opening import opened_store
from stablelog.spark.objects.readers_pins import create_pin, is_old, remove_pin
from stablelog.spark.objects.stored_files import StoredFiles
from stablelog.spark.objects.stored_partition import StoredPartition
from stablelog.spark.options import ReadOptions
from stablelog.spark.planning import ReadersPin, Span
from stablelog.spark.segments.partition_files import PartitionFiles
from stablelog.spark.source.broker_log import limited_by_offsets
from stablelog.spark.source.counting import files_count
from stablelog.spark.source.lost_offsets import LostRange, report
from stablelog.spark.source.resolve import Range, name
from stablelog.tier.manifest import Manifest
from stablelog.tier.names import RemotePartition
from stablelog.tier.prefix import Prefix
from stablelog.types import TopicPartition

log = logging.getLogger(__name__)
REQUESTS_AT_ONCE = 16
REFRESH_S = 30.0  # A stream reads the manifests again after this time.
_Given = TypeVar("_Given")
_Found = TypeVar("_Found")


def opened_prefix(options: ReadOptions) -> Prefix:
    """Open the store of a read.

    Raises:
        InvalidConfig: the URL has no cluster's objects, or they belong to another program.
    """
    assert options.store_url is not None
    prefix = Prefix(opened_store(options.store_url, options.store))
    try:
        prefix.cluster_id()
    except ObjectMissing:
        raise InvalidConfig(
            f"{prefix.store.url} holds no tiered storage of stablelog: give the URL that the broker has in "
            "stablelog.remote.url. A data directory is given as a path without file://"
        ) from None
    return prefix


class StoredPartitions:
    """The partitions in a store, and the pins of one read or of one stream.

    Args:
        prefix: the prefix of the store.
        committed: whether the reader is read-committed.
        pin_from: returns the first offset that the read may need of a partition.
    """

    def __init__(
        self, prefix: Prefix, *, committed: bool, pin_from: Callable[[RemotePartition], int] = lambda _: 0
    ) -> None:
        self._prefix = prefix
        self._committed = committed
        self._pin_from = pin_from
        self._pins: dict[RemotePartition, ReadersPin | None] = {}
        self._known: dict[RemotePartition, Manifest] = {}

    @property
    def store(self) -> ObjectStore:
        """The object store."""
        return self._prefix.store

    def of_topics(self, topics: Iterable[str]) -> dict[TopicPartition, StoredPartition]:
        """Read the last manifests of all partitions of these topics. If a name was used by several topics, the topic
        whose manifest is the latest counts.
        """
        listed = self._at_once(self._prefix.partitions, topics)
        read = self.read_all([partition for found in listed for partition in found])
        latest: dict[str, tuple[int, RemotePartition]] = {}
        for one in read:
            published = one.manifest.published
            age = -1 if published is None else published.time_ms, one.partition
            latest[one.partition.topic] = max(latest.get(one.partition.topic, age), age)
        found: dict[TopicPartition, StoredPartition] = {}
        for one in read:
            if one.partition.topic_id == latest[one.partition.topic][1].topic_id:
                found[one.place] = one
        return found | self._empty(found)

    def _empty(
        self, found: Mapping[TopicPartition, StoredPartition]
    ) -> dict[TopicPartition, StoredPartition]:
        """Return the partitions that the topics have, but of which nothing is in the store yet."""
        empty = {}
        for stored in found.values():
            published = stored.manifest.published
            for number in range(0 if published is None else published.partition_count):
                partition = stored.partition._replace(partition=number)
                if (partition.topic, number) not in found:
                    manifest = Manifest(stored.manifest.cluster_id, published=published)
                    empty[partition.topic, number] = StoredPartition(
                        self.store, partition, manifest, committed=self._committed
                    )
        return empty

    def read_all(self, partitions: Iterable[RemotePartition]) -> list[StoredPartition]:
        """Read the last manifests of partitions, several at a time."""
        return self._at_once(self.read, partitions)

    def read(self, partition: RemotePartition) -> StoredPartition:
        """Create a pin in a partition, unless it has one that is not old, and read its last manifest."""
        before = self._pins.get(partition)
        if partition not in self._pins or (before is not None and is_old(before)):
            self._pins[partition] = create_pin(self.store, partition, self._pin_from(partition))
            if before is not None:
                remove_pin(self.store, partition, before)
        payload = self._prefix.last_payload(partition)
        manifest = Manifest("")
        if payload is not None:
            manifest, _ = self._prefix.read_manifest(partition, payload, self._known.get(partition))
        self._known[partition] = manifest
        pin = self._pins[partition]
        return StoredPartition(self.store, partition, manifest, committed=self._committed, pin=pin)

    def remove_pins(self) -> None:
        """Delete the pins. Call this when the read has ended."""
        for partition, pin in self._pins.items():
            if pin is not None:
                remove_pin(self.store, partition, pin)
        self._pins.clear()

    def _at_once(self, call: Callable[[_Given], _Found], given: Iterable[_Given]) -> list[_Found]:
        with ThreadPoolExecutor(REQUESTS_AT_ONCE, "stablelog-plan") as threads:
            return list(threads.map(call, given))


class ObjectLog:
    """The log in an object store, without a broker. It ends where the store ends: later records are only on the disk of
    the broker.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._prefix = opened_prefix(options)
        self._stored = StoredPartitions(
            self._prefix, committed=options.isolation == "read_committed", pin_from=self._first_needed
        )
        self._found: dict[TopicPartition, StoredPartition] = {}
        self._read_s = float("-inf")  # when the manifests were read last
        # The first offset of each partition that the read may still need, as far as it is known.
        self._needed = dict(options.starting.by_partition) if options.starting.kind == "offsets" else {}

    def _first_needed(self, partition: RemotePartition) -> int:
        return max(self._needed.get((partition.topic, partition.partition), 0), 0)

    def partitions(self, *, there_only: bool = False) -> dict[TopicPartition, str]:
        """Return the partitions in the store that the options name, with topic ids. Read their manifests, unless they
        were read within REFRESH_S seconds.
        """
        if time.monotonic() - self._read_s < REFRESH_S:
            return self._chosen()
        options = self._options
        wanted = {*options.topics, *(topic for topic, _ in options.assigned)}
        if not wanted:
            pattern = None if options.pattern is None else re.compile(options.pattern)
            wanted = {
                topic
                for topic in self._prefix.topics()
                if not topic.startswith("__") and (pattern is None or pattern.fullmatch(topic))
            }
        self._found = self._stored.of_topics(sorted(wanted))
        missing = wanted - {topic for topic, _ in self._found}
        if not there_only and missing & {*options.topics, *(topic for topic, _ in options.assigned)}:
            raise Missing(
                f"there is no topic {min(missing)!r} in {self._prefix.store.url}: either it is not tiered, or no segment "
                "of it was copied yet"
            )
        if options.assigned:
            gone = set(options.assigned) - set(self._found)
            if gone and not there_only:
                raise InvalidConfig(
                    f"the option assign names {name(min(gone))}, but there is no such partition"
                )
            self._found = {place: self._found[place] for place in options.assigned if place in self._found}
        self._read_s = time.monotonic()
        return self._chosen()

    def _chosen(self) -> dict[TopicPartition, str]:
        return {
            place: self._found[place].partition.topic_id.hex
            for place in sorted(self._found)
            if self._options.partitions is None or place[1] in self._options.partitions
        }

    def stored_partitions(self) -> list[StoredPartition]:
        """Return the partitions that `partitions` has listed."""
        return [self._found[place] for place in self._chosen()]

    def _of(self, place: TopicPartition) -> StoredPartition:
        if (
            place not in self._found
        ):  # A stream that was started again asks for offsets before it lists partitions.
            self._found |= self._stored.of_topics([place[0]])
        if place not in self._found:
            raise Missing(f"there is no partition {name(place)} in {self._prefix.store.url}")
        return self._found[place]

    def earliest(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition."""
        return {place: self._of(place).start_offset for place in places}

    def latest(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of what a reader with the isolation level of the options can read from the store."""
        return {place: self._of(place).end_offset for place in places}

    def at_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the offset of the first record of a time or later, by partition; None if there is none."""
        return {place: self._of(place).at_time(time_ms) for place, time_ms in times.items()}

    def spans(self, ranges: Sequence[Range], topic_ids: Mapping[str, str]) -> Iterable[Span]:
        """Return a span for each range: the range, and the parts of the objects with its records."""
        for wanted in ranges:
            self._needed[wanted.place] = wanted.start
            yield from self._spans_of(wanted, topic_ids.get(wanted.place[0], ""))

    def _spans_of(self, wanted: Range, topic_id: str) -> Iterable[Span]:
        stored = self._of(wanted.place)
        for part in self._readable(stored, wanted):
            yield stored.span(part.start, part.end, topic_id)

    def _readable(self, stored: StoredPartition, wanted: Range) -> list[Range]:
        """Return a range without the offsets that restores have left without records.

        Raises:
            Unavailable: the range begins among such offsets, and failOnDataLoss is true.
        """
        published = stored.manifest.published
        restored = None if published is None else published.restored
        found, start = [], wanted.start
        for lost_start, lost_end in () if restored is None else restored.ranges:
            if lost_start < start < lost_end:
                report(self._options, wanted.place, start, LostRange(lost_start, lost_end))
            elif start <= lost_start < wanted.end:
                found.append(wanted._replace(start=start, end=lost_start))
            else:
                continue
            start = lost_end
        found.append(wanted._replace(start=start))
        return [one for one in found if one.start < one.end]

    def count(self, wanted: Range) -> int:
        """Count the records of a range that the reader gets: by the manifest, where no transaction was aborted.

        Raises:
            Unavailable: the store does not answer.
            Corrupt: an object is damaged or missing.
        """
        stored = self._of(wanted.place)
        try:
            return sum(self._counted(stored, part) for part in self._readable(stored, wanted))
        except ObjectMissing as missing:
            raise Corrupt(f"{missing}, and the last manifest names it: restore the object") from missing

    def _counted(self, stored: StoredPartition, part: Range) -> int:
        if stored.is_in_commit_order:
            return stored.count_in_commit_order(part.start, part.end)
        committed = self._options.isolation == "read_committed"
        files = StoredFiles(self._prefix.store, stored)
        return files_count(files, part.start, part.end, committed=committed)

    def files_of(
        self, ranges: Sequence[Range], topic_ids: Mapping[str, str]
    ) -> dict[Range, PartitionFiles | None]:
        """Return None for each range, because there are no files."""
        return dict.fromkeys(ranges)

    def limited(
        self,
        ranges: Sequence[Range],
        topic_ids: Mapping[str, str],
        count_max: int | None,
        size_max: int | None,
    ) -> dict[TopicPartition, int]:
        """Return an end offset for each range of a micro-batch. Each offset counts as one record, of the average size in
        its segments.
        """
        parts = {
            wanted.place: self._readable(self._of(wanted.place), wanted) or [wanted] for wanted in ranges
        }
        return limited_by_offsets(
            parts, lambda one: self._of(one.place).span(one.start, one.end).size, count_max, size_max
        )

    def close(self) -> None:
        """Do nothing: the tasks of the read need its pins."""

    def end_read(self) -> None:
        """Delete the pins of the read."""
        self._stored.remove_pins()
