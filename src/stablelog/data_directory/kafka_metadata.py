"""The topics, partitions and settings that Apache Kafka's controllers have recorded.

These records are in the controllers' log, the directory `__cluster_metadata-0`, which a KRaft node has beside the
directories of its partitions. The broker reads it once, when it takes over a directory of Kafka.

Source: KIP-746 (the records), KIP-630 (the snapshots).
"""

import re
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stablelog.batch.header import headers_in
from stablelog.batch.records import decode_records
from stablelog.env.disk import Disk
from stablelog.errors import DamageError
from stablelog.log.files.names import is_log
from stablelog.varint import read_uvarint

METADATA_TOPIC = "__cluster_metadata"
TOPIC_RECORD = 2
PARTITION_RECORD = 3
CONFIG_RECORD = 4
REMOVE_TOPIC_RECORD = 9
TOPIC_RESOURCE = 2
INT32_SIZE, UUID_SIZE = 4, 16

_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


@dataclass(slots=True)
class ControllerTopic:
    """A topic, as the controllers' log describes it.

    Attributes:
        topic_id: the id; None if only settings of the topic were found.
        configs: its settings, by Kafka's names.
        partitions: the numbers of its partitions.
        nodes: the ids of the brokers that have a replica of one of its partitions.
    """

    topic_id: uuid.UUID | None = None
    configs: dict[str, str] = field(default_factory=dict)
    partitions: set[int] = field(default_factory=set)
    nodes: set[int] = field(default_factory=set)


def read_topics(disk: Disk, directory: Path) -> dict[str, ControllerTopic]:
    """Read the topics from the controllers' log in a data directory of Apache Kafka, by name.

    Each file of the log is read up to its first damaged batch, because a crash may leave an incomplete batch at the
    end.
    """
    metadata = directory / f"{METADATA_TOPIC}-0"
    topics: dict[str, ControllerTopic] = {}
    names_by_id: dict[uuid.UUID, str] = {}
    if not disk.is_dir(metadata):
        return topics
    names = disk.list_dir(metadata)
    snapshots = sorted(name for name in names if _SNAPSHOT.fullmatch(name))
    logs = sorted(name for name in names if is_log(name))
    next_offset = 0
    for name in snapshots[-1:] + logs:
        is_snapshot = name.endswith(".checkpoint")
        try:
            for offset, value in _values(disk.read_bytes(metadata / name)):
                if is_snapshot or offset >= next_offset:
                    _apply(topics, names_by_id, value)
        except DamageError:
            continue
        if is_snapshot:
            next_offset = int(name[:20])
    return topics


def _values(content: bytes) -> Iterator[tuple[int, bytes]]:
    for position, header in headers_in(content):
        if not header.is_control:
            for record in decode_records(content, position):
                if record.value:
                    yield record.offset, record.value


def _apply(topics: dict[str, ControllerTopic], names_by_id: dict[uuid.UUID, str], value: bytes) -> None:
    """Apply one record of the controllers' log to the topics that were read so far. The value of a record consists of a
    frame version, a kind, a version, and the fields of this kind.

    Args:
        topics: the topics by name, which the record may change.
        names_by_id: the names of the topics by id, because some kinds of record name only the id.
        value: the value of the record.
    """
    try:
        _, at = read_uvarint(value, 0)
        kind, at = read_uvarint(value, at)
        _, at = read_uvarint(value, at)
        if kind == TOPIC_RECORD:
            text, at = _text(value, at)
            name, topic_id = text or "", _uuid(value, at)
            topics[name] = ControllerTopic(topic_id)  # This topic replaces a deleted topic of the same name.
            names_by_id[topic_id] = name
        elif kind == PARTITION_RECORD:
            index, topic_id = struct.unpack_from(">i16s", value, at)
            topic = topics.get(names_by_id.get(uuid.UUID(bytes=topic_id), ""))
            if topic is not None:
                topic.partitions.add(index)
                topic.nodes.update(_int32s(value, at + INT32_SIZE + UUID_SIZE))
        elif kind == REMOVE_TOPIC_RECORD:
            topic_id = _uuid(value, at)
            removed = names_by_id.pop(topic_id, "")
            if removed in topics and topics[removed].topic_id == topic_id:
                del topics[removed]
        elif kind == CONFIG_RECORD and value[at] == TOPIC_RESOURCE:
            of_topic, at = _text(value, at + 1)
            setting, at = _text(value, at)
            text, _ = _text(value, at)
            configs = topics.setdefault(of_topic or "", ControllerTopic()).configs
            if text is None:
                configs.pop(setting or "", None)
            else:
                configs[setting or ""] = text
    except (IndexError, ValueError, struct.error):
        return  # A later version of this record has fields that this code does not know; ignore the record.


def _uuid(data: bytes, at: int) -> uuid.UUID:
    return uuid.UUID(bytes=struct.unpack_from(">16s", data, at)[0])


def _int32s(data: bytes, at: int) -> tuple[int, ...]:
    """Return the numbers of the compact array of int32 that begins at `at`. In the bytes, a varint with the length plus
    one stands before the elements.
    """
    size, at = read_uvarint(data, at)
    return struct.unpack_from(f">{max(size - 1, 0)}i", data, at)


def _text(data: bytes, at: int) -> tuple[str | None, int]:
    """Read the compact string that begins at `at`: its length plus one, or 0 for null, and then its bytes.

    Returns:
        Two values: the text, or None for null; and the position after it.
    """
    size, at = read_uvarint(data, at)
    if size == 0:
        return None, at
    end = at + size - 1
    return data[at:end].decode(errors="replace"), end
