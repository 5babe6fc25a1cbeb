"""Which segments are to go, and how their files go.

Segments go from the oldest on, whole, and only when what is in them is durable. Before the first file is touched, a
file of ours says where the log begins: so whatever a crash leaves of the deleted ones is told apart from a segment
that was lost.

Format: docs/formats.md, "log-start-offset".  Source: Kafka's retention by time and size.
"""

from collections import deque
from pathlib import Path

from stablelog.env.disk import Disk
from stablelog.errors import Corrupt, DiskError
from stablelog.log.model import LogConfig
from stablelog.log.segment import LOG, SEGMENT_SUFFIXES, Segment
from stablelog.log.segments import Segments

LOG_START_FILE = "log-start-offset"
DELETED = ".deleted"
NO_LIMIT = -1


def count_too_old(segments: Segments, config: LogConfig, now_ms: int) -> int:
    """How many of the first segments hold nothing that is younger than `retention.ms`. The last one may be among them."""
    if config.retention_ms == NO_LIMIT:
        return 0
    count = 0
    for segment in segments:
        # Records without a time are as old as their segment.
        newest_ms = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
        emptied = segment.sealed and newest_ms < 0 and not segment.record_count  # by compaction
        if segment.size and not emptied and (newest_ms < 0 or newest_ms >= now_ms - config.retention_ms):
            break
        if segment.size or segment.sealed:
            count += 1
    return count


def count_too_much(segments: Segments, config: LogConfig) -> int:
    """How many of the first segments can go so that at least `retention.bytes` stay."""
    if config.retention_bytes == NO_LIMIT:
        return 0
    excess = segments.size - config.retention_bytes
    count = 0
    for segment in segments:
        excess -= segment.size
        if excess < 0 or not segment.sealed:
            break
        count += 1
    return count


def count_durable(segments: Segments, high_watermark: int) -> int:
    """How many of the first segments can be deleted at all: sealed, and durable as a whole."""
    count = 0
    while (
        count < len(segments) - 1 and segments[count].durable and segments[count].end_offset <= high_watermark
    ):
        count += 1
    return count


class Bin:
    """Files of deleted segments that are kept for a while, because somebody may still be reading them."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._thrown: deque[tuple[int, list[Path]]] = deque()  # when they are due, oldest first

    def throw(self, segments: list[Segment], before_offset: int, due_ms: int) -> None:
        """Rename the files of deleted segments, and have them removed at `due_ms`.

        Args:
            segments: they are closed.
            before_offset: snapshots of offsets before this one go with them.
            due_ms: by the broker's clock.
        """
        stems = {f"{segment.base_offset:020d}" for segment in segments}
        marked = []
        for name in self._disk.list_dir(self._directory):
            of_segment = name.partition(".")[0] in stems and name.endswith(SEGMENT_SUFFIXES)
            if of_segment or (is_snapshot(name) and offset_of(name) < before_offset):
                marked.append(self._marked(self._directory / name))
        self._thrown.append((due_ms, marked))

    def _marked(self, path: Path) -> Path:
        """Rename a file, and return its name then: the old one if the disk has no room for the new one."""
        marked = path.with_name(f"{path.name}{DELETED}")
        try:
            self._disk.rename(path, marked)
        except DiskError:
            return path  # it is removed as late, and a start takes it for what it is: before the log's start
        return marked

    def empty(self, now_ms: int) -> None:
        """Remove what is due.

        Raises:
            DiskError: some of it is there still, and is removed next time.
        """
        while self._thrown and self._thrown[0][0] <= now_ms:
            paths = self._thrown[0][1]
            while paths:
                self._disk.remove(paths[-1])
                paths.pop()
            self._thrown.popleft()


def encode_log_start(start_offset: int) -> bytes:
    """The text of the file that says where the log begins."""
    return f"0\n{start_offset}\n".encode()


def read_log_start(disk: Disk, directory: Path, name: str = LOG_START_FILE) -> int:
    """Where the log begins; 0 if nothing was deleted from it.

    Raises:
        Corrupt: the file does not say.
    """
    path = directory / name
    try:
        lines = disk.read_bytes(path).decode(errors="replace").split("\n")
    except FileNotFoundError:
        return 0
    if len(lines) != 3 or lines[0] != "0" or not lines[1].isdigit():
        raise Corrupt(f"{path} does not say where the log begins: two lines, 0 and the offset")
    return int(lines[1])


def is_snapshot(name: str) -> bool:
    """Whether a file of this name holds producer state."""
    stem, _, suffix = name.partition(".")
    return suffix in ("snapshot", "producers") and stem.isdigit()


def is_log(name: str) -> bool:
    """Whether a file of this name is a segment's log."""
    return name.endswith(LOG) and name[: -len(LOG)].isdigit()


def offset_of(name: str) -> int:
    """The offset that a file is named by."""
    return int(name.partition(".")[0])
