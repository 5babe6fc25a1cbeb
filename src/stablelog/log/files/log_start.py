"""The file that says where a log begins, or where a view does.

It is written when the partition is made, and again before the first file goes of what lies before a new start: so
recovery tells a segment that was being deleted from one that was lost. It is never rebuilt: without it, or with
another offset in it, records that were deleted would be read again, or segments that are lost would not be missed.

Format: docs/formats.md, "log-start-offset".
"""

from pathlib import Path

from crc32c import crc32c

from stablelog.env.disk import Disk
from stablelog.errors import Corrupt, naming, refuse_newer
from stablelog.log.files.names import is_log, is_summary, offset_of

LOG_START_FILE = "log-start-offset"
VERSION = 1


def encode_log_start(start_offset: int) -> bytes:
    """The text of the file."""
    text = f"{VERSION}\n{start_offset}\n".encode()
    return text + f"{crc32c(text):08x}\n".encode()


def read_log_start(disk: Disk, path: Path) -> int | None:
    """Where the log begins; None if the file is missing.

    Raises:
        Corrupt: the file is damaged.
    """
    try:
        return decode_log_start(disk.read_bytes(path), path)
    except FileNotFoundError:
        return None


def decode_log_start(content: bytes, path: Path) -> int:
    """Read the text of the file.

    Raises:
        NewerFormat: a later release has written it.
        Corrupt: it is damaged; names the path.
    """
    lines = content.decode(errors="replace").split("\n")
    if lines[0].isdigit():
        with naming(path):
            refuse_newer("where the log begins, in a file", int(lines[0]), VERSION)
    if len(lines) == 3 and lines[0] == "0" and lines[1].isdigit():
        return int(lines[1])  # version 0 has no checksum
    if len(lines) != 4 or not lines[1].isdigit() or content != encode_log_start(int(lines[1])):
        raise Corrupt(
            f"{path} is damaged: three lines are expected, version {VERSION}, the offset where the log begins, and "
            "their CRC. Restore the file"
        )
    return int(lines[1])


def write_missing_log_start(
    disk: Disk, directory: Path, known_start: int, name: str = LOG_START_FILE
) -> None:
    """Write the file for a partition of Apache Kafka or of a release that wrote it only once something was deleted.

    Args:
        disk: where the partition lies.
        directory: the partition's own.
        known_start: what a checkpoint of the data directory says of it; 0 if nothing.
        name: of the file.

    Raises:
        Corrupt: the file is damaged.
    """
    path = directory / name
    there: bytes | None = None
    try:
        there = disk.read_bytes(path)
        start = decode_log_start(there, path)
    except FileNotFoundError:
        # A summary without its log file is that of a lost segment: the log begins there, and the loss is found.
        bases = (offset_of(name) for name in disk.list_dir(directory) if is_log(name) or is_summary(name))
        start = max(known_start, min(bases, default=0))
    content = encode_log_start(start)
    if content != there:
        disk.write_atomic(path, content)
