"""Kafka's `partition.metadata`: which topic a partition's directory belongs to.

Format: docs/formats.md, "partition.metadata".
"""

import base64
import uuid
from pathlib import Path

from stablelog.env.disk import Disk
from stablelog.errors import Corrupt, in_words, naming, refuse_newer

METADATA_FILE = "partition.metadata"
METADATA_VERSION = 0


def read_partition_metadata(disk: Disk, directory: Path) -> uuid.UUID | None:
    """The topic id that a partition's directory was made for; None if it does not say.

    Raises:
        NewerFormat: a later release has written it.
        Corrupt: the file is not what Kafka writes.
    """
    path = directory / METADATA_FILE
    try:
        return decode_partition_metadata(disk.read_bytes(path), path)
    except FileNotFoundError:
        return None


def decode_partition_metadata(content: bytes, path: Path) -> uuid.UUID:
    """The topic id in the content of the file at `path`. Raises as `read_partition_metadata`."""
    try:
        text = content.decode()
    except ValueError as error:
        raise Corrupt(f"{path} names no topic id: {in_words(error)}") from error
    try:
        lines = dict(line.split(": ", 1) for line in text.splitlines() if line)
        with naming(path):
            refuse_newer("the partition's metadata", int(lines["version"]), METADATA_VERSION)
        return uuid.UUID(bytes=base64.b64decode(lines["topic_id"] + "==", altchars=b"-_", validate=True))
    except (ValueError, KeyError) as error:
        raise Corrupt(f"{path} names no topic id: {in_words(error)}") from error


def write_partition_metadata(disk: Disk, directory: Path, topic_id: uuid.UUID) -> None:
    """Say which topic a partition's directory belongs to. Durable on return, hence before the first record."""
    text = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    disk.write_atomic(directory / METADATA_FILE, f"version: 0\ntopic_id: {text}".encode())
