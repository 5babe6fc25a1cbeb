"""The file `partition.metadata`, which records the topic that a partition's directory belongs to.

Format: docs/formats.md, "partition.metadata".
"""

import uuid
from pathlib import Path

from stablelog.env.disk import Disk
from stablelog.log.files.kafka_files import (
    METADATA_FILE,
    decode_partition_metadata,
    encode_partition_metadata,
)


def read_partition_metadata(disk: Disk, directory: Path) -> uuid.UUID | None:
    """Read the topic id of a partition's directory; None if the file is missing or contains no id.

    Raises:
        NewerFormatError: a later release has written the file.
        DamageError: the file is not in Kafka's format.
    """
    path = directory / METADATA_FILE
    try:
        return decode_partition_metadata(disk.read_bytes(path), path)
    except FileNotFoundError:
        return None


def write_partition_metadata(disk: Disk, directory: Path, topic_id: uuid.UUID) -> None:
    """Write the topic id of a partition's directory to the file. The file is durable on return."""
    disk.write_atomic(directory / METADATA_FILE, encode_partition_metadata(topic_id))
