"""The file `partition.metadata`, which names the topic of a partition's directory.

Format: docs/reference/formats.md, "partition.metadata".
"""

import base64
import contextlib
import uuid
from pathlib import Path
from typing import Final

from stablelog.env.disk import Disk, read_if_there
from stablelog.errors import (
    DamageError,
    UnavailableError,
    UnknownFormatError,
    adding_path,
    in_words,
    refuse_unknown_version,
)

METADATA_FILE: Final = "partition.metadata"
METADATA_VERSION: Final = 0


def decode_partition_metadata(content: bytes, path: Path) -> uuid.UUID:
    """Return the topic id in the `partition.metadata` file at `path`.

    Raises:
        UnknownFormatError: a later release has written the file.
        DamageError: the content is not in Kafka's format.
    """
    try:
        lines = dict(line.split(": ", 1) for line in content.decode().splitlines() if line)
        with adding_path(path):
            refuse_unknown_version("the partition's metadata", int(lines["version"]), METADATA_VERSION)
        return uuid.UUID(bytes=base64.b64decode(lines["topic_id"] + "==", altchars=b"-_", validate=True))
    except (ValueError, KeyError) as error:
        raise DamageError(
            f"{path} contains no valid topic id: {in_words(error)}. Restore the file"
        ) from error


def encode_partition_metadata(topic_id: uuid.UUID) -> bytes:
    """Encode the content of a `partition.metadata` file."""
    text = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    return f"version: {METADATA_VERSION}\ntopic_id: {text}".encode()


def read_partition_metadata(disk: Disk, directory: Path) -> uuid.UUID | None:
    """Read the topic id of a partition from its directory; None if `partition.metadata` is missing.

    Raises:
        UnknownFormatError: a later release has written the file.
        DamageError: the file is not in Kafka's format.
    """
    path = directory / METADATA_FILE
    content = read_if_there(disk, path)
    return None if content is None else decode_partition_metadata(content, path)


def topic_id_in_hex(disk: Disk, directory: Path) -> str:
    """Read the topic id of a partition from its directory, as 32 hexadecimal digits; "" if `partition.metadata` is missing.

    Raises:
        UnknownFormatError: a later release has written the file.
        DamageError: the file is not in Kafka's format.
    """
    found = read_partition_metadata(disk, directory)
    return "" if found is None else found.hex


def topic_id_if_known(disk: Disk, directory: Path) -> uuid.UUID | None:
    """Read the topic id of a partition from its directory; None if the file is missing, damaged or unreadable."""
    with contextlib.suppress(UnavailableError, DamageError, UnknownFormatError):
        return read_partition_metadata(disk, directory)
    return None


def write_partition_metadata(disk: Disk, directory: Path, topic_id: uuid.UUID) -> None:
    """Write the topic id into the directory of a partition. The file is durable on return."""
    disk.write_atomic(directory / METADATA_FILE, encode_partition_metadata(topic_id))
