"""Planning of a read: divide its ranges into tasks of about the same size. Pure functions.

A task costs Spark 20 to 50 ms even if it reads little. Small ranges therefore share a task. A large range is divided:
between record batches if the driver can read the segment files, otherwise at an estimated offset. The plan (the tasks
with their ranges) depends only on the given ranges and limits.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar
from uuid import UUID

from stablelog.tier.cut_points import CutPoint
from stablelog.tier.names import RemotePartition
from stablelog.tier.remote_segment import RemoteSegment

TARGET_SIZE_MAX = 128 << 20
# Minimum bytes of a task: to read them takes about as long as Spark's overhead for a task.
TARGET_SIZE_MIN = 16 << 20
Key = TypeVar("Key", bound=Hashable)
# A task counts as full if its free size is at most 1/8 of the target size. A range that exceeds the free size of a task
# by at most 1/8 of the target size is not divided.
SLIVER = 8


@dataclass(frozen=True, slots=True)
class FileExtent:
    """An extent of a log file: a range of bytes of the file that contains consecutive whole record batches. A task
    reads it directly from the file.

    Attributes:
        inode: inode of the log file when the read was planned. Compaction replaces a file by one with the same name and
            another inode.
        proof: the size of the whole log file in bytes and the CRC-32C over its batch headers, by which a task checks
            the file. They come from the segment's summary, a small file with its sizes and checksums; None if the
            segment has none.
    """

    path: str
    position: int
    size: int
    inode: int
    proof: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ObjectExtent:
    """A byte range of a segment's log file in an object store, which contains whole record batches. It begins and ends
    at cut points, positions at which the file can be divided.

    Attributes:
        key: the key of the log file.
        edges: the beginning of the range, the cut points inside it, and its end, from the first to the last.
    """

    key: str
    edges: tuple[CutPoint, ...]


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """What a task needs to read its range of offsets (its *piece*) from an object store.

    Attributes:
        partition: the partition in the store.
        cluster_id: the id of the cluster that has written it; empty if Apache Kafka has written it.
        log_start: the log start offset in the manifest, the list of the partition's segments in the store.
        extents: the byte ranges of log files that contain the piece; empty if the piece is read in commit order (in
            which readers get whole transactions in the order of their commits).
        segments: if the piece is read in commit order, the segments that contain its batches, or whose commit indexes
            list its transactions; otherwise empty.
        pins: the pins of the read, objects in the store that keep its segments from deletion; None if there are none.
        group: the transaction group of the topic (topics whose commits have one order); empty for the default group.
    """

    partition: RemotePartition
    cluster_id: str
    log_start: int
    extents: tuple[ObjectExtent, ...] = ()
    segments: tuple[RemoteSegment, ...] = ()
    pins: "ReadersPins | None" = None
    group: str = ""


@dataclass(frozen=True, slots=True)
class ReadersPins:
    """The pins of a read, in the form that tasks receive. A pin is an object in the store that keeps a partition's
    segments from deletion for some hours. Each task renews all pins of the read, because a partition may wait hours for
    its first task.

    Attributes:
        read_id: the id of the read. The keys of its pins follow from it.
        created_s: when the driver has created the pins, in seconds since 1970.
        topics: name and id of each topic, and number and first pinned offset of each of its partitions.
    """

    read_id: UUID
    created_s: float
    topics: tuple[tuple[str, UUID, tuple[tuple[int, int], ...]], ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of offsets of one partition, with everything that its task needs to read it. `end` is exclusive.

    Attributes:
        size: size of the record batches in bytes; an estimate if there are no extents.
        extents: the byte ranges of segment files that contain the range; empty if the task does not read files.
        aborted: (producer id, first offset, offset of the abort marker) of each aborted transaction in the extents, so
            that the task leaves out its records.
        topic_id: id of the topic at the time of planning; empty if unknown.
        stored: what the task needs to read the range from an object store; None if the task reads it from files or
            from the broker.
    """

    topic: str
    partition: int
    start: int
    end: int
    size: int
    extents: tuple[FileExtent, ...] = ()
    aborted: tuple[tuple[int, int, int], ...] = ()
    topic_id: str = ""
    stored: StoredPiece | None = None


class Span(Protocol):
    """A span: a range of offsets of one partition that `plan_tasks` can divide between tasks."""

    @property
    def start(self) -> int:
        """The first offset of the range."""

    @property
    def end(self) -> int:
        """The end of the range, exclusive."""

    @property
    def size(self) -> int:
        """The size of the range's record batches in bytes."""

    def cut_by_size(self, size: int) -> tuple[Self, Self] | None:
        """Cut the range in two, so that the first part has about `size` bytes. Return both parts in a pair; None if the
        range cannot be divided.
        """

    def cut_at(self, offset: int) -> tuple[Self, Self]:
        """Cut the range in two at an offset inside it, which becomes the start of the second part. Return both parts in
        a pair.
        """

    def piece(self) -> Piece:
        """Return the range as a `Piece`, which is sent to one task."""


@dataclass(frozen=True, slots=True)
class FetchSpan:
    """A range of offsets that tasks fetch from the broker. Its size in bytes is an estimate."""

    topic: str
    partition: int
    start: int
    end: int
    size: int
    topic_id: str = ""

    def cut_by_size(self, size: int) -> "tuple[FetchSpan, FetchSpan] | None":
        """Cut the range in two, so that the first part has about `size` bytes if all records are equally large. Return
        both parts in a pair; None if the range cannot be divided.
        """
        count = self.end - self.start
        at = self.start + max(1, count * size // max(self.size, 1))
        return self.cut_at(at) if at < self.end else None

    def cut_at(self, offset: int) -> "tuple[FetchSpan, FetchSpan]":
        """Cut the range in two at an offset inside it, and divide its estimated size in the same proportion. Return
        both parts in a pair.
        """
        assert self.start < offset < self.end
        size = self.size * (offset - self.start) // (self.end - self.start)
        return (
            FetchSpan(self.topic, self.partition, self.start, offset, size, self.topic_id),
            FetchSpan(self.topic, self.partition, offset, self.end, self.size - size, self.topic_id),
        )

    def piece(self) -> Piece:
        """Return the range as a `Piece`, which one task fetches from the broker."""
        return Piece(self.topic, self.partition, self.start, self.end, self.size, topic_id=self.topic_id)


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """The limits of a read's tasks.

    Attributes:
        target_size: bytes of a task; None for a size that gives each core a task, but at least 16 MiB and at most 128
            MiB.
        core_count: how many tasks can run at a time.
        count_min: minimum number of tasks.
        offsets_max: the maximum number of offsets of a task.
    """

    target_size: int | None = None
    core_count: int = 1
    count_min: int | None = None
    offsets_max: int | None = None


def plan_tasks(spans: Iterable[Span], limits: TaskLimits) -> list[tuple[Piece, ...]]:
    """Divide ranges of offsets (spans) into tasks of about equal size. Return the pieces of each task (ranges, with
    what it needs to read them), in the order of the spans.
    """
    spans = [span for span in spans if span.start < span.end]
    target = _target(sum(span.size for span in spans), limits)
    tasks = _fill(spans, target, limits.offsets_max)
    tasks = _spread(tasks, limits.count_min or 0)
    return [tuple(span.piece() for span in task) for task in tasks]


def shares(amounts: Mapping[Key, int], limit: int) -> dict[Key, int]:
    """Divide the number `limit` into shares that are proportional to the amounts, and return the share of each key.

    Each amount above 0 gets at least 1, unless there are more amounts than `limit`: then some shares are 0. The same
    amounts always give the same shares.
    """
    total = sum(amounts.values())
    if total <= limit:
        return dict(amounts)
    filled = [key for key, amount in amounts.items() if amount]
    found = dict.fromkeys(amounts, 0)
    if len(filled) >= limit:
        turn = total % len(filled)
        for key in (filled[turn:] + filled[:turn])[:limit]:
            found[key] = 1
        return found
    rest = limit - len(filled)
    for key in filled:
        found[key] = 1 + (amounts[key] - 1) * rest // (total - len(filled))
    for key in filled[: limit - sum(found.values())]:
        found[key] = min(found[key] + 1, amounts[key])
    return found


def _target(all_size: int, limits: TaskLimits) -> int:
    if limits.target_size is not None:
        target = limits.target_size
    else:
        target = min(max(-(-all_size // limits.core_count), TARGET_SIZE_MIN), TARGET_SIZE_MAX)
    if limits.count_min is not None:
        target = min(target, -(-all_size // limits.count_min))
    return max(target, 1)


def _shortened(spans: Iterable[Span], offsets_max: int | None) -> Iterable[Span]:
    for span in spans:
        rest = span
        while offsets_max is not None and rest.end - rest.start > offsets_max:
            head, rest = rest.cut_at(rest.start + offsets_max)
            yield head
        yield rest


def _fill(spans: Iterable[Span], target: int, offsets_max: int | None) -> list[list[Span]]:
    """Fill one task after another with the spans (ranges of offsets). A span that does not fit into the current task is
    divided. Return the spans of each task.

    Args:
        spans: the ranges of offsets that are read.
        target: the size of a task in bytes.
        offsets_max: the maximum number of offsets of a task; None for no maximum.
    """
    tasks: list[list[Span]] = []
    size = count = 0
    for span in _shortened(spans, offsets_max):
        rest: Span | None = span
        while rest is not None:
            full = size >= target - target // SLIVER or (
                offsets_max is not None and count + rest.end - rest.start > offsets_max
            )
            if not tasks or (tasks[-1] and full):
                tasks.append([])
                size = count = 0
            head, rest = rest, None
            if size + head.size > target + target // SLIVER:
                cut = head.cut_by_size(target - size)
                if cut is not None:
                    head, rest = cut
                elif tasks[-1]:
                    rest = head  # A single batch that is larger than the free size of the task gets its own task.
                    tasks.append([])
                    size = count = 0
                    continue
            tasks[-1].append(head)
            size += head.size
            count += head.end - head.start
    return tasks


def _spread(tasks: list[list[Span]], count_min: int) -> list[list[Span]]:
    """Spread the ranges over more tasks: halve the largest tasks until there are `count_min` tasks, or until none can
    be divided. Return the spans (ranges of offsets) of each task.
    """
    while len(tasks) < count_min:
        parted = [n for n, task in enumerate(tasks) if len(task) > 1 or task[0].end - task[0].start > 1]
        if not parted:
            break
        parted.sort(key=lambda n: sum(span.size for span in tasks[n]), reverse=True)
        largest = frozenset(parted[: count_min - len(tasks)])
        tasks = [part for n, task in enumerate(tasks) for part in (_halved(task) if n in largest else [task])]
    return tasks


def _halved(task: list[Span]) -> list[list[Span]]:
    if len(task) > 1:
        middle = len(task) // 2
        return [task[:middle], task[middle:]]
    head, tail = task[0].cut_at((task[0].start + task[0].end) // 2)
    return [[head], [tail]]
