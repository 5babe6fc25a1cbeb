"""Which settings did Apache Kafka's controllers keep for its topics?

Kafka's directories say nothing of it: the settings stand in the controllers' log, `__cluster_metadata-0`, which a
KRaft node has beside its partitions. It is read once, when a directory that Kafka wrote is taken over.

Source: KIP-746 (the records), KIP-630 (the snapshots).
"""

import re
from collections.abc import Iterator
from pathlib import Path

from stablelog.batch.header import headers_in
from stablelog.batch.records import decode_records
from stablelog.env.disk import Disk
from stablelog.errors import Corrupt

METADATA_TOPIC = "__cluster_metadata"
TOPIC_RECORD = 2
CONFIG_RECORD = 4
TOPIC_RESOURCE = 2

_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


def read_topic_configs(disk: Disk, directory: Path) -> dict[str, dict[str, str]]:
    """The settings of each topic, by Kafka's names, in a data directory of Apache Kafka.

    A log that cannot be read to its end gives what was read: a torn end is what a crash leaves.

    Args:
        disk: where the directory lies.
        directory: the data directory.
    """
    metadata = directory / f"{METADATA_TOPIC}-0"
    configs: dict[str, dict[str, str]] = {}
    if not disk.is_dir(metadata):
        return configs
    names = disk.list_dir(metadata)
    snapshots = sorted(name for name in names if _SNAPSHOT.fullmatch(name))
    logs = sorted(name for name in names if name.endswith(".log"))
    next_offset = 0
    for name in snapshots[-1:] + logs:
        is_snapshot = name.endswith(".checkpoint")
        try:
            for offset, value in _values(disk.read_bytes(metadata / name)):
                if is_snapshot or offset >= next_offset:
                    _apply(configs, value)
        except Corrupt:
            continue
        if is_snapshot:
            next_offset = int(name[:20])
    return configs


def _values(content: bytes) -> Iterator[tuple[int, bytes]]:
    for position, header in headers_in(content):
        if not header.is_control:
            for record in decode_records(content, position):
                if record.value:
                    yield record.offset, record.value


def _apply(configs: dict[str, dict[str, str]], value: bytes) -> None:
    """Take in one record of the controllers: frame version, kind and version, and then its fields."""
    try:
        _, at = _unsigned(value, 0)
        kind, at = _unsigned(value, at)
        _, at = _unsigned(value, at)
        if kind == TOPIC_RECORD:
            name, _ = _text(value, at)
            configs[name or ""] = {}  # a topic of a name that was there before begins anew
        elif kind == CONFIG_RECORD and value[at] == TOPIC_RESOURCE:
            topic, at = _text(value, at + 1)
            setting, at = _text(value, at)
            text, _ = _text(value, at)
            of_topic = configs.setdefault(topic or "", {})
            if text is None:
                of_topic.pop(setting or "", None)
            else:
                of_topic[setting or ""] = text
    except IndexError:
        return  # of a later version, which has other fields


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
