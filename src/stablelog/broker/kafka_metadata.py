"""Topics, partitions and settings, as Apache Kafka's controllers kept them.

They stand in the controllers' log, `__cluster_metadata-0`, which a KRaft node has beside its partitions. It is read
once, when a directory that Kafka wrote is taken over.

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
from stablelog.errors import Corrupt
from stablelog.log.names import is_log

METADATA_TOPIC = "__cluster_metadata"
TOPIC_RECORD = 2
PARTITION_RECORD = 3
CONFIG_RECORD = 4
REMOVE_TOPIC_RECORD = 9
TOPIC_RESOURCE = 2
INT32_SIZE, UUID_SIZE = 4, 16

_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


@dataclass(slots=True)
class KnownTopic:
    """A topic as the controllers knew it.

    Attributes:
        topic_id: None if only settings of it were found.
        configs: its settings, by Kafka's names.
        partitions: the indexes of its partitions.
        nodes: the ids of the brokers that have one of its partitions.
    """

    topic_id: uuid.UUID | None = None
    configs: dict[str, str] = field(default_factory=dict)
    partitions: set[int] = field(default_factory=set)
    nodes: set[int] = field(default_factory=set)


def read_topics(disk: Disk, directory: Path) -> dict[str, KnownTopic]:
    """The topics by name that the controllers knew, from a data directory of Apache Kafka.

    A log that cannot be read to its end gives what was read: a torn end is what a crash leaves.

    Args:
        disk: where the directory lies.
        directory: the data directory.
    """
    metadata = directory / f"{METADATA_TOPIC}-0"
    topics: dict[str, KnownTopic] = {}
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
        except Corrupt:
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


def _apply(topics: dict[str, KnownTopic], names_by_id: dict[uuid.UUID, str], value: bytes) -> None:
    """Take in one record of the controllers: frame version, kind and version, and then its fields."""
    try:
        _, at = _unsigned(value, 0)
        kind, at = _unsigned(value, at)
        _, at = _unsigned(value, at)
        if kind == TOPIC_RECORD:
            text, at = _text(value, at)
            name, topic_id = text or "", _uuid(value, at)
            topics[name] = KnownTopic(topic_id)  # in place of a topic that had the name before
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
            configs = topics.setdefault(of_topic or "", KnownTopic()).configs
            if text is None:
                configs.pop(setting or "", None)
            else:
                configs[setting or ""] = text
    except (IndexError, struct.error):
        return  # of a later version, which has other fields


def _uuid(data: bytes, at: int) -> uuid.UUID:
    return uuid.UUID(bytes=struct.unpack_from(">16s", data, at)[0])


def _int32s(data: bytes, at: int) -> tuple[int, ...]:
    """A compact array of int32 at `at`: its length and one more, and then each."""
    size, at = _unsigned(data, at)
    return struct.unpack_from(f">{max(size - 1, 0)}i", data, at)


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    """Read an unsigned varint at `at`. Returns (value, where the next thing begins)."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _text(data: bytes, at: int) -> tuple[str | None, int]:
    """Read a compact string at `at`: its length and one more, 0 for none. Returns (text, where the next thing begins)."""
    size, at = _unsigned(data, at)
    if size == 0:
        return None, at
    end = at + size - 1
    return data[at:end].decode(errors="replace"), end
