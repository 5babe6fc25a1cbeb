"""The log of brokers with tiered storage. Records that are only in the object store are read from the store; all other
records are read from segment files or fetched from the brokers.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from stablelog.client.responses import UnknownTopicOrPartitionError
from stablelog.client.topics import EARLIEST_LOCAL
from stablelog.errors import (
    DamageError,
    NothingStoredError,
    ObjectMissingError,
    RefusedError,
    UnavailableError,
    UnknownFormatError,
    UsageError,
)
from stablelog.spark.objects.stored_topics import OwnTopics, StoredTopics, stored_topics
from stablelog.spark.objects.tiered_partition import TieredPartition, missing_between
from stablelog.spark.options import ReadOptions
from stablelog.spark.planning import Span
from stablelog.spark.source.directory_log import SharedLog
from stablelog.spark.source.ranges import Absence, Range, readable_parts
from stablelog.spark.source.resolve import partition_name
from stablelog.spark.source.stored_ranges import holes_in
from stablelog.tier.names import RemotePartition
from stablelog.types import TopicPartition

log = logging.getLogger(__name__)
REFRESH_S: Final = 30.0  # A manifest that does not have a range is read again after this time.


class TieredLog(SharedLog):
    """The log of brokers with tiered storage.

    The brokers report the end offset of each partition, and the first offset that they have on their local disks.
    Earlier offsets are read from the store. A micro-batch at the end of the log therefore sends no request to the
    store. As long as the store has no object, the brokers serve all records.
    """

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(replace(options, path=None, scan="auto"))
        self._given = options
        self._stored = self._open_store()
        self._known: dict[TopicPartition, tuple[float, TieredPartition]] = {}
        self._needed: dict[TopicPartition, int] = {}

    def _open_store(self) -> StoredTopics | None:
        """Open the object store, and return its topics; None if the store has no object yet."""
        try:
            return stored_topics(self._given, self._first_needed)
        except NothingStoredError:
            return None

    def spans(self, ranges: Sequence[Range], topic_ids: Mapping[str, str]) -> Iterable[Span]:
        """Return the spans of the ranges, in the order of their offsets: those of the parts that are only in the
        object store, and those of the rest. A span is a range that `spark.planning` can divide between tasks.
        """
        in_store = self._in_store(ranges, topic_ids)
        for wanted in ranges:
            start = wanted.start
            stored, parts = in_store.get(wanted, (None, ()))
            for part in parts:
                assert stored is not None
                span = self._stored_span(stored, part)
                if span is None:
                    break
                if start < part.start:
                    yield from super().spans([wanted._replace(start=start, end=part.start)], topic_ids)
                yield span
                start = part.end
            if start < wanted.end:
                yield from super().spans([wanted._replace(start=start)], topic_ids)

    def absences(
        self, ranges: Sequence[Range], topic_ids: Mapping[str, str]
    ) -> dict[Range, Sequence[Absence]]:
        """Return, for each range, its absences: the offsets that were left without records when the broker was
        restored, and, in the part of a range that only the store has, those of missing segments.
        """
        in_store = self._in_store(ranges, topic_ids)
        found = super().absences(ranges, topic_ids)
        for wanted, (stored, parts) in in_store.items():
            gaps = found[wanted]
            holes = [
                hole
                for part in parts
                for one in readable_parts(part, 0, gaps).parts
                for hole in holes_in(stored, one)
            ]
            found[wanted] = sorted([*gaps, *holes], key=lambda one: one.start)
        return found

    def _in_store(
        self, ranges: Sequence[Range], topic_ids: Mapping[str, str]
    ) -> dict[Range, tuple[TieredPartition, list[Range]]]:
        """Return, for each range that begins in the object store, a pair: the partition in the store, and the parts of
        the range that are read there, because the broker's disk lacks them.
        """
        local = self._local_starts(ranges)
        firsts: dict[TopicPartition, int] = {}
        for place, start, _ in ranges:
            firsts[place] = min(start, firsts.get(place, start))
        self._needed |= firsts
        remote = {
            wanted: topic_ids[wanted.place[0]]
            for wanted in ranges
            if wanted.start < local[wanted.place] and topic_ids.get(wanted.place[0])
        }
        stored = {one.place: one for one in self._read_stored(remote)}
        found = {}
        for wanted in ranges:
            known = stored.get(wanted.place)
            if known is not None:
                end = min(wanted.end, local[wanted.place], known.end_offset)
                if known.start_offset <= wanted.start < end:
                    kept = missing_between(known.parts_for_brokers(wanted.start, end), wanted.start, end)
                    found[wanted] = known, [wanted._replace(start=first, end=last) for first, last in kept]
        return found

    def _stored_span(self, stored: TieredPartition, part: Range) -> Span | None:
        """Return a part of a range as a span, which is read from the store and can be divided between tasks. Return
        None if the store cannot serve this part, so that the broker has to.
        """
        topic_id = stored.partition.topic_id.hex
        try:
            # What a span loads when it becomes a piece is loaded here, where an error has this way out.
            stored.aborted(part.start, part.end)
            return stored.span(part.start, part.end, topic_id)
        except (DamageError, UnavailableError, ObjectMissingError, UnknownFormatError) as error:
            log.warning(
                "%s is read through its broker, and not directly from the store: %s",
                partition_name(part.place),
                error,
            )
            return None

    def _read_stored(self, wanted: Mapping[Range, str]) -> Iterator[TieredPartition]:
        """Yield the partitions of these ranges as the store has them. A cached manifest (the list of a partition's
        segments) is read again if it ends before the range and is older than REFRESH_S. If the store fails, nothing is
        yielded, and the brokers serve the ranges.

        Args:
            wanted: the ranges, each with the id of its topic.
        """
        now_s = time.monotonic()
        unknown = {
            one.place: topic_id
            for one, topic_id in wanted.items()
            if not self._is_known(one, topic_id, now_s - REFRESH_S)
        }
        try:
            for stored in self._load_stored(unknown) if unknown else ():
                self._known[stored.place] = now_s, stored
        except (DamageError, UnavailableError, UnknownFormatError, UsageError) as error:
            log.warning("the store is not read, and the brokers serve all records: %s", error)
        for one, topic_id in wanted.items():
            known = self._known.get(one.place)
            if known is not None and known[1].partition.topic_id.hex == topic_id:
                yield known[1]

    def _is_known(self, wanted: Range, topic_id: str, after_s: float) -> bool:
        read_s, stored = self._known.get(wanted.place, (0.0, None))
        if stored is None or stored.partition.topic_id.hex != topic_id:
            return False
        return stored.end_offset >= wanted.end or read_s >= after_s

    def _load_stored(self, wanted: Mapping[TopicPartition, str]) -> Iterable[TieredPartition]:
        if self._stored is None:  # It may have objects now.
            self._stored = stored_topics(self._given, self._first_needed)
        if isinstance(self._stored, OwnTopics):
            return self._stored.read_manifests(
                RemotePartition(topic, UUID(hex=topic_id), number)
                for (topic, number), topic_id in wanted.items()
            )
        return self._stored.read_partitions({topic for topic, _ in wanted}, wanted.__contains__).values()

    def _first_needed(self, partition: RemotePartition) -> int:
        place = partition.topic, partition.partition
        known = self._known.get(place)
        start = self._needed.get(place, 0)
        return 0 if known is None else known[1].first_needed(start)

    def _local_starts(self, ranges: Sequence[Range]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition on the broker's local disk; 0 for a broker without tiered storage."""
        places = [wanted.place for wanted in ranges]
        try:
            found = self.cluster.list_offsets(dict.fromkeys(places, EARLIEST_LOCAL), "read_uncommitted")
        except UnknownTopicOrPartitionError:
            raise
        except RefusedError:
            return dict.fromkeys(places, 0)  # A broker without tiered storage.
        return {place: found[place].offset for place in places}

    def forget_listing(self) -> None:
        """Drop what was listed in the store (the partitions and their segments), so that the next call lists it
        again.
        """
        self._known.clear()

    def end_read(self) -> None:
        """Delete the pins of the read: the objects that keep its segments from being deleted."""
        if self._stored is not None:
            self._stored.remove_pins()
