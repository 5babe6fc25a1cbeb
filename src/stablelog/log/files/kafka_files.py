"""The small text files that Apache Kafka keeps beside its logs: their content, read and written.

`partition.metadata` names the topic of a partition's directory, an offset checkpoint has an offset for each partition
of a data directory, and `meta.properties` names the cluster and the node.

Format: docs/formats.md, "partition.metadata", "offset checkpoints" and "meta.properties".
"""

import base64
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from stablelog.errors import Corrupt, in_words, naming, refuse_newer
from stablelog.types import TopicPartition

METADATA_FILE: Final = "partition.metadata"
METADATA_VERSION: Final = 0
META_FILE: Final = "meta.properties"
META_VERSION: Final = 1
OLD_META_VERSION: Final = 0  # of Kafka with ZooKeeper, which writes broker.id in place of node.id
LOG_START_CHECKPOINT: Final = "log-start-offset-checkpoint"
CHECKPOINT_VERSION: Final = 0

Offsets = dict[TopicPartition, int]


def decode_partition_metadata(content: bytes, path: Path) -> uuid.UUID:
    """The topic id in the `partition.metadata` at `path`.

    Raises:
        NewerFormat: a later release has written it.
        Corrupt: the file is not what Kafka writes.
    """
    try:
        lines = dict(line.split(": ", 1) for line in content.decode().splitlines() if line)
        with naming(path):
            refuse_newer("the partition's metadata", int(lines["version"]), METADATA_VERSION)
        return uuid.UUID(bytes=base64.b64decode(lines["topic_id"] + "==", altchars=b"-_", validate=True))
    except (ValueError, KeyError) as error:
        raise Corrupt(f"{path} names no topic id: {in_words(error)}") from error


def encode_partition_metadata(topic_id: uuid.UUID) -> bytes:
    """The content of `partition.metadata`."""
    text = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    return f"version: {METADATA_VERSION}\ntopic_id: {text}".encode()


def decode_offset_checkpoint(content: bytes, path: Path) -> Offsets:
    """Offsets by partition, of the checkpoint at `path`; none if Kafka has made the file and not written it yet.

    Raises:
        NewerFormat: a later release has written it.
        Corrupt: the file is not what Kafka writes, or not whole.
    """
    if not content:
        return {}
    lines = content.decode(errors="replace").split("\n")
    try:
        with naming(path):
            refuse_newer("a checkpoint of offsets", int(lines[0]), CHECKPOINT_VERSION)
        if lines[0] != "0" or lines[-1] or len(lines) != 3 + int(lines[1]):
            raise ValueError(f"{len(lines)} lines, version {lines[0]!r}")
        rows = [line.rsplit(" ", 2) for line in lines[2:-1]]
        return {(topic, int(index)): int(offset) for topic, index, offset in rows}
    except (ValueError, IndexError) as error:
        raise Corrupt(
            f"{path} is not a checkpoint of offsets ({error}). Restore it; or remove it, and what it says is not known"
        ) from error


def encode_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The content of an offset checkpoint."""
    rows = [f"{topic} {index} {offset}" for (topic, index), offset in sorted(offsets.items())]
    return "\n".join([str(CHECKPOINT_VERSION), str(len(rows)), *rows, ""]).encode()


def decode_meta(content: bytes) -> dict[str, str]:
    """The properties in `meta.properties`. Lines that are no property are passed over."""
    lines = content.decode(errors="replace").splitlines()
    return {
        name.strip(): value.strip()
        for name, found, value in (line.partition("=") for line in lines if not line.startswith("#"))
        if found
    }


def encode_meta(cluster_id: str, node_id: int, more: Sequence[str]) -> bytes:
    """The content of `meta.properties`, with more lines at its end."""
    lines = [f"version={META_VERSION}", f"cluster.id={cluster_id}", f"node.id={node_id}", *more]
    return "\n".join([*lines, ""]).encode()


def node_id_in(properties: Mapping[str, str]) -> int | None:
    """The node that `meta.properties` names; None if it names none, or what is no number."""
    return natural(properties.get("node.id", properties.get("broker.id", "")))


def natural(text: str) -> int | None:
    """A number of up to 31 bits, written with digits alone; None if it is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(1 << 31)) else None
