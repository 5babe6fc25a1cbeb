"""The logs that are read from segment files: the log of a data directory, and the log of brokers whose directories this
process can read.

With a broker, the broker reports the partitions and the offsets that may be read, and the files only contain the
records. Without a broker, all information comes from the directory. This module never writes.
"""

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from stablelog.client.blocking.cluster import LATEST
from stablelog.client.responses import UnknownTopicOrPartitionError
from stablelog.data_directory.checkpoints import LOG_START_CHECKPOINT, read_offset_checkpoint
from stablelog.data_directory.meta_properties import node_id_of
from stablelog.data_directory.names import partition_directories, partition_named
from stablelog.env.local_disk import LocalDisk
from stablelog.env.lock import is_locked
from stablelog.errors import UnavailableError, UsageError
from stablelog.log.files.partition_metadata import topic_id_if_known, topic_id_in_hex
from stablelog.log.files.restored import Restored, read_restored
from stablelog.spark.options import ReadOptions
from stablelog.spark.planning import Span
from stablelog.spark.segments.partition_files import PartitionFiles
from stablelog.spark.segments.segment_file import BehindError, GoneError
from stablelog.spark.segments.times import first_in_files
from stablelog.spark.source.broker_log import BrokerLog
from stablelog.spark.source.counting import files_limited
from stablelog.spark.source.listed_topics import ListedTopics
from stablelog.spark.source.ranges import Absence, Range, Readable, gaps_for
from stablelog.spark.source.resolve import check_partitions, partition_name
from stablelog.tier.local_state import LocalState
from stablelog.types import TopicPartition

log = logging.getLogger(__name__)
PAUSE_S = 0.01
TRIES = 5  # Maximum number of attempts to plan a read if retention removes files meanwhile.
_DISK = LocalDisk(read_only=True)
_Found = TypeVar("_Found")


class _Files:
    """Cache of the lists of partitions' segment files (`PartitionFiles`), for as long as the reader exists."""

    def __init__(self) -> None:
        self._known: dict[TopicPartition, PartitionFiles] = {}

    def get(self, place: TopicPartition, directory: Path) -> PartitionFiles:
        found = self._known.get(place)
        if found is None or found.directory != directory:
            found = self._known[place] = PartitionFiles(directory, *place)
        return found


def retry_if_files_changed(files: PartitionFiles, attempt: Callable[[], _Found]) -> _Found:
    """Call `attempt`, and return its result. If a segment file was removed or replaced meanwhile, the directory is
    listed again, and the call is repeated.
    """
    for tried in range(1, TRIES):
        try:
            return attempt()
        except GoneError:
            # Compaction may be replacing the file, which takes no longer than this pause.
            time.sleep(tried * PAUSE_S)
            files.refresh(anew=True)
    try:
        return attempt()
    except BehindError as error:
        raise UnavailableError(str(error)) from error
    except GoneError as error:
        raise UnavailableError(f"a file was removed while the read was planned: {error}") from error


class DirectoryLog:
    """The log in a data directory, without a broker."""

    may_lag = False

    def __init__(self, options: ReadOptions) -> None:
        assert options.path is not None
        self._options = options
        self._data = Path(options.path)
        self._files = _Files()
        self._topics = ListedTopics()
        self._ends: dict[TopicPartition, tuple[int, int]] = {}
        # The partitions that were found not to be commit-ordered: readers get their records in the order of the files.
        self._offset_ordered: set[TopicPartition] = set()

    def partitions(self, *, there_only: bool = False) -> dict[TopicPartition, str]:
        """Return the partitions in the data directory that the options of the read select, each with the id of its
        topic. No broker may have the directory open.

        Args:
            there_only: whether topics and partitions that the options name but that do not exist are left out.
                Otherwise they are an error.

        Raises:
            UnknownFormatError, DamageError: the `partition.metadata` of a selected partition cannot be read.
        """
        _check_is_closed(self._data)
        found = self._list_partitions()
        options = self._options
        topics = {topic for topic, _ in found}
        missing = {*options.topics, *(topic for topic, _ in options.assigned)} - topics
        if missing and not there_only:
            raise UnknownTopicOrPartitionError(f"there is no topic {min(missing)!r} in {self._data}")
        if options.assigned:
            gone = set(options.assigned) - set(found)
            if gone and not there_only:
                raise UsageError(
                    f"the option assign names {partition_name(min(gone))}, but there is no such partition"
                )
            return {
                place: topic_id_in_hex(_DISK, found[place]) for place in options.assigned if place in found
            }
        pattern = re.compile(options.pattern) if options.pattern is not None else None

        def is_wanted(topic: str) -> bool:
            if options.topics:
                return topic in options.topics
            return not topic.startswith("__") and (pattern is None or pattern.fullmatch(topic) is not None)

        check_partitions(options, {index for topic, index in found if is_wanted(topic)})
        return {
            place: topic_id_in_hex(_DISK, directory)
            for place, directory in found.items()
            if is_wanted(place[0]) and (options.partitions is None or place[1] in options.partitions)
        }

    def _list_partitions(self) -> dict[TopicPartition, Path]:
        try:
            directories = partition_directories(_DISK, self._data)
        except FileNotFoundError as error:
            raise UnavailableError(f"{self._data} cannot be read: {error.strerror}") from error
        found = {place: one for one in directories if (place := partition_named(one.name)) is not None}
        if not found:
            raise UnavailableError(f"{self._data} is no data directory: it contains no partition")
        return dict(sorted(found.items()))

    def _partition_files(self, place: TopicPartition) -> PartitionFiles:
        directory = self._data / f"{place[0]}-{place[1]}"
        if self._options.isolation == "read_committed" and place not in self._offset_ordered:
            if self._topics.is_commit_ordered(directory):
                raise UsageError(
                    f"{place[0]!r} is in commit order, which only a broker can provide: give kafka.bootstrap.servers in place of "
                    "path, or read the order of the writes with isolation=read_uncommitted"
                )
            self._offset_ordered.add(place)
        return self._files.get(place, directory)

    def earliest(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition, from the files. The records there may be only in the object
        store of tiered storage; a read of them raises an error, because it needs a broker.
        """
        starts = read_offset_checkpoint(_DISK, self._data / LOG_START_CHECKPOINT)
        found = {}
        for place in places:
            files = self._partition_files(place)
            start = max(files.first_offset, files.log_start_offset(), starts.get(place, 0))
            found[place] = LocalState(_DISK, files.directory).log_start(start)
        return found

    def latest(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of each partition for a reader with the isolation level of the options, from the files."""
        stable = self._options.isolation == "read_committed"
        return {place: self._ends_of(place)[1 if stable else 0] for place in places}

    def log_ends(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log end offset of each partition, as its files show it."""
        return {place: self._ends_of(place)[0] for place in places}

    def _ends_of(self, place: TopicPartition) -> tuple[int, int]:
        """Return a pair: the log end offset and the last stable offset of a partition."""
        if place not in self._ends:
            files = self._partition_files(place)
            self._ends[place] = retry_if_files_changed(files, files.scan_end)
        return self._ends[place]

    def at_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return for each partition the offset of the first record with the given timestamp in ms or a later one; None
        if there is none.
        """
        starts, ends = self.earliest(times), self.log_ends(times)
        return {
            place: self._at_time(place, time_ms, starts[place], ends[place])
            for place, time_ms in times.items()
        }

    def _at_time(self, place: TopicPartition, time_ms: int, start: int, end: int) -> int | None:
        files = self._partition_files(place)
        _check_is_local(files, start)
        return retry_if_files_changed(files, lambda: first_in_files(files, time_ms, start, end))

    def absences(
        self, ranges: Sequence[Range], topic_ids: Mapping[str, str]
    ) -> dict[Range, Sequence[Absence]]:
        """Return, for each range, its absences: the offsets that a restore of the broker from an object store has left
        without records. The partition's files name them.
        """
        found: dict[Range, Sequence[Absence]] = {}
        for wanted in ranges:
            restored = read_restored(_DISK, self._partition_files(wanted.place).directory)
            found[wanted] = () if restored is None else _gaps_for(wanted, restored)
        return found

    def spans(self, ranges: Sequence[Range], topic_ids: Mapping[str, str]) -> Iterable[Span]:
        """Return a span for each range, in the given order. A span is a range that `spark.planning` can divide between
        tasks, with the parts of the segment files that contain its records.
        """
        for place, start, end in ranges:
            files = self._partition_files(place)
            yield _span(files, start, end, topic_ids.get(place[0], ""))

    def files_of(
        self, ranges: Sequence[Range], topic_ids: Mapping[str, str]
    ) -> dict[Range, PartitionFiles | None]:
        """Return, for each range, the segment files of its partition. `topic_ids` has the id of each topic, by name."""
        return {wanted: self._partition_files(wanted.place) for wanted in ranges}

    def limit_ranges(
        self,
        ranges: Sequence[Readable],
        topic_ids: Mapping[str, str],
        count_max: int | None,
        size_max: int | None,
    ) -> dict[TopicPartition, int]:
        """Raise UsageError, because a directory without a broker cannot be read as a stream, and only streams have
        these limits.
        """
        raise UsageError(
            "a stream requires a broker: give kafka.bootstrap.servers in place of path, or the URL of an object store as path"
        )

    def forget_listing(self) -> None:
        """Do nothing: only a log in an object store caches a listing."""

    def close(self) -> None:
        """Do nothing, because there is no connection to close."""

    def end_read(self) -> None:
        """Do nothing: the directory has nothing that a read must release at its end."""


def _gaps_for(wanted: Range, restored: Restored) -> list[Absence]:
    return gaps_for(wanted, restored.gaps, lambda offset: restored.lost_range(offset) is not None)


def _check_is_local(files: PartitionFiles, start: int) -> None:
    """Check that the local files have the records from `start` on. Raise UnavailableError if some of them are only in
    the object store of tiered storage, because this reader reads only local files.
    """
    local_start = max(files.first_offset, files.log_start_offset())
    if start < local_start and LocalState(_DISK, files.directory).read_manifest() is not None:
        raise UnavailableError(
            f"the records of {files.directory} from offset {start} to {local_start - 1} are only in the object store: "
            f"give kafka.bootstrap.servers, or the URL of the store, in place of path, or begin at offset {local_start} "
            "(startingOffsets)"
        )


def _span(files: PartitionFiles, start: int, end: int, topic_id: str) -> Span:
    def attempt() -> Span:
        _check_is_local(files, start)
        # This call raises an error if it is unknown which transactions in the range are aborted. Then the range is not
        # read from these files.
        files.aborted(start, end)
        return files.span(start, end, topic_id)

    return retry_if_files_changed(files, attempt)


def _check_is_closed(data: Path) -> None:
    """Check that no broker has a data directory open. While one has, some records may not be durable yet.

    Raises:
        UsageError: a broker has the directory open.
        UnavailableError: the lock cannot be read.
    """
    if is_locked(data):
        raise UsageError(
            f"{data} is in use by a running broker, and only that broker knows up to where its records are durable: "
            "give its address as kafka.bootstrap.servers in place of path, or stop it"
        )


def _is_directory_of(directory: Path | None, topic_id: str) -> bool:
    """Return whether a directory can be read and belongs to a partition of this topic. An empty `topic_id` stands for
    any topic.
    """
    if directory is None or not os.access(directory, os.R_OK | os.X_OK):
        return False
    if not topic_id:
        return True
    found = topic_id_if_known(_DISK, directory)
    return found is not None and found.hex == topic_id


def _node_id_of(data: Path) -> int | None:
    """Return the id of the broker of a data directory; None if no file contains it, or it cannot be read."""
    with contextlib.suppress(UnavailableError):
        return node_id_of(_DISK, data)
    return None


class SharedLog(BrokerLog):
    """The log of brokers. If this process can read the data directory of a partition's broker, it reads the partition's
    segment files. Otherwise it fetches the records from the broker.
    """

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._files = _Files()
        self._topics = ListedTopics()
        self._roots: dict[int, list[str]] = {}  # the brokers' data directories, by node id
        self._directories: dict[
            TopicPartition, tuple[int, Path | None]
        ] = {}  # (leader, the directory or None if this process cannot read it)
        # Partitions whose files this process can read, but whose readers need commit order, which only the broker
        # provides.
        self._commit_ordered: set[TopicPartition] = set()

    def spans(self, ranges: Sequence[Range], topic_ids: Mapping[str, str]) -> Iterable[Span]:
        """Return a span for each range, in the given order. A span is a range that `spark.planning` can divide between
        tasks, with what a task needs to read it from files or from the broker.

        The directory of a partition is listed after the broker has reported the end of the range, so that the files
        contain the range.
        """
        for wanted, files in self.files_of(ranges, topic_ids).items():
            if files is None:
                yield from super().spans([wanted], topic_ids)
            else:
                yield from self._spans_of(files, wanted, topic_ids)

    def _spans_of(self, files: PartitionFiles, wanted: Range, topic_ids: Mapping[str, str]) -> Iterable[Span]:
        try:
            return [_span(files, wanted.start, wanted.end, topic_ids.get(wanted.place[0], ""))]
        except UnavailableError as error:
            # Retention removed a file, or the files lack data. Fetch the range from the broker instead; the task
            # reports lost records.
            log.info(
                "%s is fetched from the broker, not read from its files: %s",
                partition_name(wanted.place),
                error,
            )
            return super().spans([wanted], topic_ids)

    def files_of(
        self, ranges: Sequence[Range], topic_ids: Mapping[str, str]
    ) -> dict[Range, PartitionFiles | None]:
        """Return the segment files that contain each range; None if this process cannot read them. For a read-committed
        reader, set `known_end` of the files to the partition's current high watermark: files that end before it may
        lack abort markers.
        """
        found = {
            wanted: self._visible_files(wanted.place, topic_ids.get(wanted.place[0], "")) for wanted in ranges
        }
        if self._options.isolation == "read_committed":
            places = [wanted.place for wanted, files in found.items() if files is not None]
            ends = (
                self.cluster.list_offsets(dict.fromkeys(places, LATEST), "read_uncommitted") if places else {}
            )
            for wanted, files in found.items():
                if files is not None:
                    files.known_end = ends[wanted.place].offset
        for seen in found.values():
            if seen is not None:
                seen.refresh()
        return found

    def _visible_files(self, place: TopicPartition, topic_id: str) -> PartitionFiles | None:
        """Return the segment files of a partition if they are visible to this process. Return None if this process
        cannot read the partition's directory, or if the directory belongs to another topic of the same name.
        """
        leader = self._leader(place)
        known = self._directories.get(place)
        if known is None or known[0] != leader or not _is_directory_of(known[1], topic_id):
            known = self._directories[place] = leader, self._find_directory(place, leader, topic_id)
        directory = known[1]
        if directory is not None:
            return self._files.get(place, directory)
        if place in self._commit_ordered:
            return None
        if self._options.scan == "files" or self._options.mount is not None:
            where = self._options.mount or "any directory that its broker names"
            raise UnavailableError(
                f"the files of {partition_name(place)} are not in {where}, or cannot be read: leave out mount and scan"
            )
        return None

    def _find_directory(self, place: TopicPartition, leader: int, topic_id: str) -> Path | None:
        """Return the directory of a partition on its leader; None if this process cannot read it."""
        if self._options.mount is not None:
            roots = [self._options.mount]
        else:
            if leader not in self._roots:
                self._roots = {leader: [], **self.cluster.log_directories([place])}
            roots = self._roots[leader]
        # Use only the leader's directory. All brokers of a cluster may use the same path on their machines, so this may
        # be a follower's directory. Its files may end before an abort marker, and a reader would get aborted records.
        directories = [
            Path(root) / partition_name(place) for root in roots if _node_id_of(Path(root)) in (leader, None)
        ]
        found = next((directory for directory in directories if _is_directory_of(directory, topic_id)), None)
        if found is None or self._options.isolation != "read_committed":
            return found
        if not self._topics.is_commit_ordered(found):
            return found
        if self._options.scan == "files":
            raise UsageError(
                f"{place[0]!r} is in commit order, which only a broker can provide: leave out scan=files"
            )
        self._commit_ordered.add(place)
        return None

    def _leader(self, place: TopicPartition) -> int:
        try:
            return self.cluster.retrying(
                f"looking for the leader of {partition_name(place)}", lambda: self.cluster.leader(*place)
            )
        except UnavailableError:
            return -1  # the partition has no leader now

    def limit_ranges(
        self,
        ranges: Sequence[Readable],
        topic_ids: Mapping[str, str],
        count_max: int | None,
        size_max: int | None,
    ) -> dict[TopicPartition, int]:
        """Return an end offset for each range of a micro-batch, by partition, so that all ranges together have at most
        `count_max` records and `size_max` bytes (None for no limit). The records are counted in the segment files if
        this process can read all of them, and otherwise estimated from the broker's responses.
        """
        found = self.files_of([one.whole for one in ranges], topic_ids)
        listed = ((one, found[one.whole]) for one in ranges)
        seen = {one: files for one, files in listed if files is not None}
        if len(seen) < len(ranges):
            return super().limit_ranges(ranges, topic_ids, count_max, size_max)
        committed = self._options.isolation == "read_committed"
        try:
            ends = files_limited(seen, count_max, size_max, committed=committed)
        except GoneError:  # Retention removed a file, or the files lack data.
            return super().limit_ranges(ranges, topic_ids, count_max, size_max)
        return {one.place: end for one, end in ends.items()}
