"""The log by its segment files: finds the directory, lists its content and reads byte ranges.

With a broker, the broker reports the partitions and the offsets that may be read, and the files only provide the bytes.
Without a broker, all of this comes from the directory. Nothing is ever written.
"""

import fcntl
import logging
import mmap
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from stablelog.batch.header import headers_in
from stablelog.client.cluster import LATEST, Cluster, Missing
from stablelog.errors import Corrupt, InvalidConfig, NewerFormat, Unavailable
from stablelog.log.kafka_files import (
    LOG_START_CHECKPOINT,
    META_FILE,
    METADATA_FILE,
    decode_meta,
    decode_offset_checkpoint,
    decode_partition_metadata,
    node_id_in,
)
from stablelog.log.names import COMMIT_SUFFIXES, DELETED
from stablelog.spark.options import ReadOptions
from stablelog.spark.planning import Extent, Piece, Span
from stablelog.spark.segments.partition_files import PartitionFiles
from stablelog.spark.segments.segment_file import Behind, Gone, open_log_file
from stablelog.spark.segments.times import first_in_files
from stablelog.spark.source import broker_log
from stablelog.spark.source.counting import files_limited
from stablelog.spark.source.resolve import Range, lost, name
from stablelog.types import TopicPartition

log = logging.getLogger(__name__)
LOCK_FILE = ".lock"
PAUSE_S = 0.01
TRIES = 5  # How often a plan is retried because retention removed a file meanwhile.
# Files of a piece that are opened before the first is read, so that retention cannot remove their content.
OPEN_MAX = 256
_PARTITION_DIRECTORY = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<index>\d+)")
_Found = TypeVar("_Found")


def topic_id_of(directory: Path) -> str:
    """The id of the topic that a partition's directory belongs to; empty if no file contains it."""
    path = directory / METADATA_FILE
    try:
        return decode_partition_metadata(path.read_bytes(), path).hex
    except (OSError, Corrupt, NewerFormat):
        return ""


def _is_of(directory: Path | None, topic_id: str) -> bool:
    """Whether this is the directory of a partition of that topic, and can be read."""
    if directory is None or not os.access(directory, os.R_OK | os.X_OK):
        return False
    return not topic_id or topic_id_of(directory) == topic_id


def node_id_of(data: Path) -> int | None:
    """The id of the broker that a data directory belongs to; None if no file contains it."""
    try:
        return node_id_in(decode_meta((data / META_FILE).read_bytes()))
    except OSError:
        return None


def is_commit_ordered(directory: Path) -> bool:
    """Whether committed readers of a partition get its records in commit order instead of the order of its files."""
    return any(name.endswith(COMMIT_SUFFIXES) for name in os.listdir(directory))


def log_starts(data: Path) -> dict[TopicPartition, int]:
    """The log start offsets that the data directory records.

    Raises:
        NewerFormat: a later release has written the file.
        Corrupt: the file is not what it should be.
        Unavailable: the file cannot be read.
    """
    path = data / LOG_START_CHECKPOINT
    try:
        return decode_offset_checkpoint(path.read_bytes(), path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from error


def check_is_closed(data: Path) -> None:
    """Check that no broker has a data directory open: only the broker knows which records are durable.

    stablelog locks the file by `flock`, Apache Kafka by `lockf`. A lock that is held on another machine may not be seen.

    Raises:
        InvalidConfig: a broker has it open.
        Unavailable: the lock cannot be read.
    """
    path = data / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        return  # The directory is a copy of partitions.
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from error
    try:
        for lock in (fcntl.flock, fcntl.lockf):
            lock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InvalidConfig(
            f"{data} is open by a running broker, and only that knows up to where its records are durable: give its address, "
            "option kafka.bootstrap.servers; or stop it"
        ) from error
    except OSError as error:
        log.warning(
            "%s cannot be locked (%s): whether a broker has it open is not known", path, error.strerror
        )
    finally:
        os.close(descriptor)


class _Files:
    """The partitions of which files are read, each kept while the reader lives."""

    def __init__(self) -> None:
        self._known: dict[TopicPartition, PartitionFiles] = {}

    def get(self, place: TopicPartition, directory: Path) -> PartitionFiles:
        found = self._known.get(place)
        if found is None or found.directory != directory:
            found = self._known[place] = PartitionFiles(directory, *place)
        return found


def steadily(files: PartitionFiles, attempt: Callable[[], _Found]) -> _Found:
    """Call `attempt` on a partition's files; if a file was removed, refresh the listing and call it again."""
    for tried in range(1, TRIES):
        try:
            return attempt()
        except Gone:
            time.sleep(tried * PAUSE_S)  # A rename takes no longer than this pause.
            files.refresh(anew=True)
    try:
        return attempt()
    except Behind as error:
        raise Unavailable(str(error)) from error
    except Gone as error:
        raise Unavailable(f"{error} was removed while the read was planned") from error


class DirectoryLog:
    """The log in a data directory, without a broker."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.path is not None
        self._options = options
        self._data = Path(options.path)
        self._files = _Files()
        self._ends: dict[TopicPartition, tuple[int, int]] = {}
        self._offset_ordered: set[TopicPartition] = set()  # of those that were looked at

    def partitions(self, *, there_only: bool = False) -> dict[TopicPartition, str]:
        """As `Log`. No broker may have the directory open."""
        check_is_closed(self._data)
        found = self._listed()
        options = self._options
        topics = {topic for topic, _ in found}
        missing = {*options.topics, *(topic for topic, _ in options.assigned)} - topics
        if missing and not there_only:
            raise Missing(f"there is no topic {min(missing)!r} in {self._data}")
        if options.assigned:
            gone = set(options.assigned) - set(found)
            if gone and not there_only:
                raise InvalidConfig(f"assign names {name(min(gone))}, and there is no such partition")
            return {place: found[place] for place in options.assigned if place in found}
        pattern = re.compile(options.pattern) if options.pattern is not None else None

        def is_wanted(topic: str) -> bool:
            if options.topics:
                return topic in options.topics
            return not topic.startswith("__") and (pattern is None or pattern.fullmatch(topic) is not None)

        return {
            place: topic_id
            for place, topic_id in found.items()
            if is_wanted(place[0]) and (options.partitions is None or place[1] in options.partitions)
        }

    def _listed(self) -> dict[TopicPartition, str]:
        try:
            names = sorted(os.listdir(self._data))
        except OSError as error:
            raise Unavailable(f"{self._data} cannot be read: {error.strerror}") from error
        found = {}
        for entry in names:
            match = _PARTITION_DIRECTORY.fullmatch(entry)
            if match and (self._data / entry).is_dir():
                found[match["topic"], int(match["index"])] = topic_id_of(self._data / entry)
        if not found:
            raise Unavailable(f"{self._data} is no data directory: there is no partition in it")
        return dict(sorted(found.items()))

    def _of(self, place: TopicPartition) -> PartitionFiles:
        directory = self._data / f"{place[0]}-{place[1]}"
        if self._options.isolation == "read_committed" and place not in self._offset_ordered:
            if is_commit_ordered(directory):
                raise InvalidConfig(
                    f"{place[0]!r} is in commit order, which a broker serves: give kafka.bootstrap.servers, or with "
                    "isolation=read_uncommitted read the order of the writes"
                )
            self._offset_ordered.add(place)
        return self._files.get(place, directory)

    def earliest(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """As `Log`."""
        starts = log_starts(self._data)
        return {
            place: max(self._of(place).first_offset, self._of(place).log_start_offset(), starts.get(place, 0))
            for place in places
        }

    def latest(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """As `Log`."""
        stable = self._options.isolation == "read_committed"
        found = {}
        for place in places:
            if place not in self._ends:
                files = self._of(place)
                self._ends[place] = steadily(files, files.scan_end)
            found[place] = self._ends[place][1 if stable else 0]
        return found

    def at_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """As `Log`."""
        starts, ends = self.earliest(times), self.latest(times)
        return {
            place: self._at_time(place, time_ms, starts[place], ends[place])
            for place, time_ms in times.items()
        }

    def _at_time(self, place: TopicPartition, time_ms: int, start: int, end: int) -> int | None:
        files = self._of(place)
        return steadily(files, lambda: first_in_files(files, time_ms, start, end))

    def spans(self, ranges: Sequence[Range], topic_ids: Mapping[str, str]) -> Iterable[Span]:
        """As `Log`."""
        for place, start, end in ranges:
            files = self._of(place)
            yield _span(files, start, end, topic_ids.get(place[0], ""))

    def files_of(
        self, ranges: Sequence[Range], topic_ids: Mapping[str, str]
    ) -> dict[Range, PartitionFiles | None]:
        """As `Log`."""
        return {wanted: self._of(wanted.place) for wanted in ranges}

    def limited(
        self,
        ranges: Sequence[Range],
        topic_ids: Mapping[str, str],
        count_max: int | None,
        size_max: int | None,
    ) -> dict[TopicPartition, int]:
        """As `Log`, but raises InvalidConfig: only a stream has limits, and a stream needs a broker."""
        raise InvalidConfig("a stream needs a broker: option kafka.bootstrap.servers")

    def close(self) -> None:
        """As `Log`."""


def _span(files: PartitionFiles, start: int, end: int, topic_id: str) -> Span:
    def attempt() -> Span:
        files.aborted(start, end)  # they are known, or the range is not read from these files
        return files.span(start, end, topic_id)

    return steadily(files, attempt)


class SharedLog:
    """The log of brokers whose data directory, or some partitions of it, can be read from here."""

    def __init__(self, options: ReadOptions, broker: broker_log.BrokerLog) -> None:
        self._options = options
        self.broker = broker
        self._files = _Files()
        self._roots: dict[int, list[str]] = {}  # the brokers' data directories, by node id
        self._directories: dict[
            TopicPartition, tuple[int, Path | None]
        ] = {}  # (leader, None where the files are not seen)
        self._commit_ordered: set[TopicPartition] = set()  # of those, where they are and do not serve

    def partitions(self, *, there_only: bool = False) -> dict[TopicPartition, str]:
        """As `Log`."""
        return self.broker.partitions(there_only=there_only)

    def earliest(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """As `Log`."""
        return self.broker.earliest(places)

    def latest(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """As `Log`."""
        return self.broker.latest(places)

    def at_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """As `Log`."""
        return self.broker.at_times(times)

    def spans(self, ranges: Sequence[Range], topic_ids: Mapping[str, str]) -> Iterable[Span]:
        """As `Log`. The directory is listed after the broker has reported the ranges as stable."""
        for wanted, files in self.files_of(ranges, topic_ids).items():
            if files is None:
                yield from self.broker.spans([wanted], topic_ids)
            else:
                yield self._span(files, wanted, topic_ids)

    def _span(self, files: PartitionFiles, wanted: Range, topic_ids: Mapping[str, str]) -> Span:
        try:
            return _span(files, wanted.start, wanted.end, topic_ids.get(wanted.place[0], ""))
        except Unavailable as error:
            # Retention removed a file, or the files lack data. The range is fetched instead; its task reports any loss.
            log.info("%s is fetched: %s", name(wanted.place), error)
            return next(iter(self.broker.spans([wanted], topic_ids)))

    def files_of(
        self, ranges: Sequence[Range], topic_ids: Mapping[str, str]
    ) -> dict[Range, PartitionFiles | None]:
        """As `Log`. The files have to reach the high watermarks by now, or what was aborted is not known from them."""
        found = {wanted: self._seen(wanted.place, topic_ids.get(wanted.place[0], "")) for wanted in ranges}
        if self._options.isolation == "read_committed":
            places = [wanted.place for wanted, files in found.items() if files is not None]
            ends = (
                self.broker.cluster.list_offsets(dict.fromkeys(places, LATEST), "read_uncommitted")
                if places
                else {}
            )
            for wanted, files in found.items():
                if files is not None:
                    files.known_end = ends[wanted.place].offset
        for seen in found.values():
            if seen is not None:
                seen.refresh()
        return found

    def _seen(self, place: TopicPartition, topic_id: str) -> PartitionFiles | None:
        """The files of a partition, if this is their directory, and not one of the same name elsewhere."""
        leader = self._leader(place)
        known = self._directories.get(place)
        if known is None or known[0] != leader or not _is_of(known[1], topic_id):
            known = self._directories[place] = leader, self._look(place, leader, topic_id)
        directory = known[1]
        if directory is not None:
            return self._files.get(place, directory)
        if place in self._commit_ordered:
            return None
        if self._options.scan == "files" or self._options.path is not None:
            where = self._options.path or "any directory that its broker names"
            raise Unavailable(
                f"the files of {name(place)} are not to be seen in {where}: leave out path and scan, or scan=fetch"
            )
        return None

    def _look(self, place: TopicPartition, leader: int, topic_id: str) -> Path | None:
        """The directory of a partition. Only the leader's own files are sure to reach the stable offset."""
        if self._options.path is not None:
            roots = [self._options.path]
        else:
            if leader not in self._roots:
                self._roots = {leader: [], **self.broker.cluster.log_directories([place])}
            roots = self._roots[leader]
        # All brokers of a cluster may use the same paths on their machines. A follower's files may end before the
        # markers of aborted transactions, so a reader would get aborted records.
        directories = [Path(root) / name(place) for root in roots if node_id_of(Path(root)) in (leader, None)]
        found = next((directory for directory in directories if _is_of(directory, topic_id)), None)
        if found is None or self._options.isolation != "read_committed" or not is_commit_ordered(found):
            return found
        if self._options.scan == "files":
            raise InvalidConfig(
                f"{place[0]!r} is in commit order, which a broker serves: leave out scan=files"
            )
        self._commit_ordered.add(place)
        return None

    def _leader(self, place: TopicPartition) -> int:
        cluster = self.broker.cluster
        try:
            return cluster.retrying(
                f"looking for the leader of {name(place)}", lambda: cluster.leader(*place)
            )
        except Unavailable:
            return -1  # it has none now

    def limited(
        self,
        ranges: Sequence[Range],
        topic_ids: Mapping[str, str],
        count_max: int | None,
        size_max: int | None,
    ) -> dict[TopicPartition, int]:
        """As `Log`."""
        found = self.files_of(ranges, topic_ids)
        seen = {wanted: files for wanted, files in found.items() if files is not None}
        if len(seen) < len(ranges):
            return self.broker.limited(ranges, topic_ids, count_max, size_max)
        committed = self._options.isolation == "read_committed"
        try:
            ends = files_limited(seen, count_max, size_max, committed=committed)
        except Gone:  # Retention removed a file, or the files lack data.
            return self.broker.limited(ranges, topic_ids, count_max, size_max)
        return {wanted.place: end for wanted, end in ends.items()}

    def close(self) -> None:
        """As `Log`."""
        self.broker.close()


# -- in the tasks ----------------------------------------------------------------------------------------------


def read(options: ReadOptions, cluster: Cluster | None, piece: Piece, decoder: Any) -> Iterator[Any]:
    """The Arrow batches of a piece, decoded from the segment files, or from the broker if a file is not available.

    Args:
        options: the options of the read.
        cluster: the brokers, if there are any.
        piece: what to read.
        decoder: a decoder of this partition with the wanted columns.

    Raises:
        Unavailable: a file was removed meanwhile, and there is no broker that has what it held.
        Corrupt: a file is damaged; names the file and the offset. Where its summary shows it, nothing of the file was
            handed out.
    """
    opened: list[int] = []
    try:
        for extent in piece.extents[:OPEN_MAX]:
            opened.append(_open(extent))  # noqa: PERF401 - those that were opened are to be closed
        if piece.extents and piece.topic_id:
            directory = Path(piece.extents[0].path).parent
            if topic_id_of(directory) != piece.topic_id:
                raise Gone(str(directory))
        for place, extent in enumerate(piece.extents):
            if place >= len(opened):
                opened.append(_open(extent))
            yield from _read_extent(opened[place], extent, piece, decoder)
    except (Gone, Unavailable) as error:
        reached = max(decoder.next_offset, piece.start)
        if cluster is None:
            lost(
                options,
                f"{error} was removed while it was read: offsets {reached} to {piece.end - 1} of {piece.topic}-{piece.partition}",
            )
            return
        # This machine is not the one that planned, or retention removed the file: the range is fetched from the broker.
        yield from broker_log.read(options, cluster, replace(piece, start=reached), decoder)
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _open(extent: Extent) -> int:
    try:
        descriptor = open_log_file(extent.path)
    except Gone:
        # The broker keeps removed files under another name for a while, by default a minute.
        descriptor = open_log_file(extent.path + DELETED)
    if os.fstat(descriptor).st_ino != extent.inode:
        os.close(descriptor)
        raise Gone(extent.path)
    return descriptor


def _read_extent(descriptor: int, extent: Extent, piece: Piece, decoder: Any) -> Iterator[Any]:
    from stablelog.spark.segments.proof import prove_segment  # imports NumPy, which the driver does not need

    size = os.fstat(descriptor).st_size
    if size < extent.position + extent.size:
        raise Corrupt(
            f"{extent.path} has {size} bytes, and {extent.position + extent.size} when the read was planned: it was cut. "
            "Restore the file"
        )
    try:
        prove_segment(descriptor, extent)
    except Corrupt as error:
        raise Corrupt(f"{piece.topic}-{piece.partition} cannot be read: {error}") from error
    skipped = extent.position % mmap.ALLOCATIONGRANULARITY
    mapped = mmap.mmap(
        descriptor, extent.size + skipped, access=mmap.ACCESS_READ, offset=extent.position - skipped
    )
    mapped.madvise(mmap.MADV_SEQUENTIAL)
    view = memoryview(mapped)[skipped:]
    try:
        yield from decoder.feed(view, piece.start, piece.end, piece.aborted)
        if decoder.next_offset < piece.end:
            _check_whole(view, decoder.next_offset)
    except Corrupt as error:
        raise Corrupt(f"{extent.path}, from byte {extent.position}: {error}") from error


def _check_whole(view: memoryview, next_offset: int) -> None:
    """Check that the decoder has read an extent to its end; a truncated batch would be left over.

    Raises:
        Corrupt: the extent ends inside a batch.
    """
    end = 0
    for position, header in headers_in(view):
        end = position + header.size
    if end != len(view):
        raise Corrupt(f"the batch at byte {end} of it, behind offset {next_offset - 1}, is cut off")
