"""The file that records the log start offset. A second file in the same format records where the view of a
commit-ordered partition begins, which has the committed batches in the order of their commits.

The file is written when the partition is created, and before each deletion of segments. By this file, recovery
distinguishes a segment whose deletion a crash has interrupted from a lost segment. The file cannot be rebuilt from the
log: with a wrong offset, deleted records could be read again, or a lost segment could stay unnoticed.

Format: docs/reference/formats.md, "log-start-offset".
"""

from pathlib import Path

from stablelog.crc32c import crc32c
from stablelog.env.disk import Disk, read_if_there
from stablelog.errors import DamageError, adding_path, refuse_unknown_version
from stablelog.log.files.names import is_log, is_summary, offset_of

LOG_START_FILE = "log-start-offset"
VERSION = 1


def encode_log_start(start_offset: int) -> bytes:
    """Encode the content of a file that records the log start offset."""
    text = f"{VERSION}\n{start_offset}\n".encode()
    return text + f"{crc32c(text):08x}\n".encode()


def read_log_start(disk: Disk, path: Path) -> int | None:
    """Read the log start offset from the file at `path`; return None if the file is missing.

    Raises:
        DamageError: the file is damaged.
    """
    content = read_if_there(disk, path)
    return None if content is None else decode_log_start(content, path)


def decode_log_start(content: bytes, path: Path) -> int:
    """Decode the content of a file that records the log start offset.

    Raises:
        UnknownFormatError: another release has written the file, in a format that this one does not read.
        DamageError: the file is damaged. The message names its path.
    """
    lines = content.decode(errors="replace").split("\n")
    if lines[0].isdigit():
        with adding_path(path):
            refuse_unknown_version("where the log begins, in a file", int(lines[0]), VERSION, VERSION)
    if len(lines) != 4 or not lines[1].isdigit() or content != encode_log_start(int(lines[1])):
        raise DamageError(
            f"{path} is damaged: it must have three lines: version {VERSION}, the log start offset, and "
            "the CRC of both. Restore the file"
        )
    return int(lines[1])


def write_missing_log_start(
    disk: Disk, directory: Path, known_start: int, name: str = LOG_START_FILE
) -> None:
    """Write the file that records the log start offset, if the file is missing. A directory that Apache Kafka has
    written does not have it.

    Args:
        disk: the disk of the partition.
        directory: the partition's directory.
        known_start: the log start offset that the data directory records for the partition (in its file
            `log-start-offset-checkpoint`); 0 if it records none.
        name: the name of the file. A second file of this kind records where the view of a commit-ordered partition
            begins, in which readers get transactions in the order of their commits.

    Raises:
        DamageError: the file exists and is damaged.
    """
    path = directory / name
    if read_log_start(disk, path) is not None:
        return
    # A summary without its log file belongs to a lost segment. The log start offset must not be past this segment, so
    # that recovery reports the loss.
    bases = (offset_of(name) for name in disk.list_dir(directory) if is_log(name) or is_summary(name))
    disk.write_atomic(path, encode_log_start(max(known_start, min(bases, default=0))))
