"""Codec for the small text files that Apache Kafka keeps beside its logs.

`partition.metadata` names the topic of a partition's directory, an offset checkpoint has an offset for each partition
of a data directory, and `meta.properties` names the cluster and the node.

Format: docs/formats.md, "partition.metadata", "offset checkpoints" and "meta.properties".
"""

import base64
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from stablelog.errors import DamageError, in_words, naming, refuse_newer
from stablelog.types import TopicPartition

METADATA_FILE: Final = "partition.metadata"
METADATA_VERSION: Final = 0
META_FILE: Final = "meta.properties"
META_VERSION: Final = 1
OLD_META_VERSION: Final = 0  # written by Kafka with ZooKeeper, with broker.id in place of node.id
LOG_START_CHECKPOINT: Final = "log-start-offset-checkpoint"
CHECKPOINT_VERSION: Final = 0

Offsets = dict[TopicPartition, int]


def decode_partition_metadata(content: bytes, path: Path) -> uuid.UUID:
    """Return the topic id in the `partition.metadata` file at `path`.

    Raises:
        NewerFormatError: a later release has written the file.
        DamageError: the content is not in Kafka's format.
    """
    try:
        lines = dict(line.split(": ", 1) for line in content.decode().splitlines() if line)
        with naming(path):
            refuse_newer("the partition's metadata", int(lines["version"]), METADATA_VERSION)
        return uuid.UUID(bytes=base64.b64decode(lines["topic_id"] + "==", altchars=b"-_", validate=True))
    except (ValueError, KeyError) as error:
        raise DamageError(
            f"{path} contains no valid topic id: {in_words(error)}. Restore the file"
        ) from error


def encode_partition_metadata(topic_id: uuid.UUID) -> bytes:
    """Encode the content of a `partition.metadata` file."""
    text = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    return f"version: {METADATA_VERSION}\ntopic_id: {text}".encode()


def decode_offset_checkpoint(content: bytes, path: Path) -> Offsets:
    """Return the offset of each partition in the checkpoint at `path`. An empty file has none: Kafka creates the file
    before it writes it.

    Raises:
        NewerFormatError: a later release has written the file.
        DamageError: the content is not in Kafka's format, or is incomplete.
    """
    if not content:
        return {}
    lines = content.decode(errors="replace").split("\n")
    try:
        with naming(path):
            refuse_newer("a checkpoint of offsets", int(lines[0]), CHECKPOINT_VERSION)
        if lines[0] != "0" or lines[-1] or len(lines) != 3 + int(lines[1]):
            raise ValueError(f"it has {len(lines)} lines and version {lines[0]!r}")
        rows = [line.rsplit(" ", 2) for line in lines[2:-1]]
        return {(topic, int(index)): int(offset) for topic, index, offset in rows}
    except (ValueError, IndexError) as error:
        raise DamageError(
            f"{path} is not a checkpoint of offsets ({error}). Restore it; or remove it, and the broker starts without these offsets"
        ) from error


def encode_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Encode the content of an offset checkpoint."""
    rows = [f"{topic} {index} {offset}" for (topic, index), offset in sorted(offsets.items())]
    return "\n".join([str(CHECKPOINT_VERSION), str(len(rows)), *rows, ""]).encode()


def decode_meta(content: bytes) -> dict[str, str]:
    """Return the properties in a `meta.properties` file. Lines that are no properties are ignored."""
    lines = content.decode(errors="replace").splitlines()
    return {
        name.strip(): value.strip()
        for name, found, value in (line.partition("=") for line in lines if not line.startswith("#"))
        if found
    }


def encode_meta(cluster_id: str, node_id: int, more: Sequence[str]) -> bytes:
    """Encode the content of a `meta.properties` file, with the lines `more` at its end."""
    lines = [f"version={META_VERSION}", f"cluster.id={cluster_id}", f"node.id={node_id}", *more]
    return "\n".join([*lines, ""]).encode()


def node_id_in(properties: Mapping[str, str]) -> int | None:
    """Return the node id in the properties of `meta.properties`; None if there is none, or if it is no number."""
    return natural(properties.get("node.id", properties.get("broker.id", "")))


def natural(text: str) -> int | None:
    """Parse a number of 1 to 10 ASCII digits; return None for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(1 << 31)) else None
