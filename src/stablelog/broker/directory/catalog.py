"""The list of topics, `cluster.json`: the id, the settings and the partition count of each topic.

The broker replaces the file as a whole: after a crash a topic exists with all its partitions or not at all. The file
cannot be rebuilt: a topic's order (offset or commit) and its settings are recorded nowhere else.
Format: docs/formats.md, "cluster.json".
"""

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crc32c import crc32c

from stablelog.env.disk import Disk
from stablelog.errors import Corrupt, in_words, naming, refuse_newer

CATALOG_FILE = "cluster.json"
VERSION = 2


@dataclass(frozen=True, slots=True)
class ListedTopic:
    """One topic of the list in `cluster.json`."""

    name: str
    topic_id: uuid.UUID
    partition_count: int
    configs: dict[str, str]


@dataclass(frozen=True, slots=True)
class Catalog:
    """The content of the list of topics, `cluster.json`.

    Attributes:
        cluster_id: id of the cluster that the data directory belongs to. Empty if the file has version 1: then only
            `meta.properties` has the id.
        leader_epoch: the leader epoch of the last start.
        established_epoch: the leader epoch of the first start at which every partition had all files of this release.
            Between batches of this or a later epoch there is no gap in the offsets. None before that start: if the file
            has version 1, and while a directory of Apache Kafka or of version 1 is being taken over.
        topics: the topics, in no particular order.
    """

    cluster_id: str
    leader_epoch: int
    established_epoch: int | None
    topics: list[ListedTopic] = field(default_factory=list)


def encode_catalog(
    cluster_id: str, leader_epoch: int, established_epoch: int | None, topics: Iterable[ListedTopic]
) -> bytes:
    """Encode the list of topics as JSON. The last member is a CRC over the other members."""
    content: dict[str, Any] = {
        "version": VERSION,
        "cluster_id": cluster_id,
        "leader_epoch": leader_epoch,
        "established_epoch": established_epoch,
        "topics": {
            topic.name: {
                "id": str(topic.topic_id),
                "partitions": topic.partition_count,
                "configs": topic.configs,
            }
            for topic in topics
        },
    }
    return json.dumps({**content, "crc": _crc(content)}, indent=1).encode()


def _crc(content: dict[str, Any]) -> str:
    """Return the CRC of the list of topics, as eight hex digits.

    The CRC covers `content`, encoded as JSON without spaces and with sorted names.
    """
    return f"{crc32c(json.dumps(content, sort_keys=True, separators=(',', ':')).encode()):08x}"


def read_catalog(disk: Disk, directory: Path) -> Catalog | None:
    """Read the list of topics; None if `cluster.json` does not exist.

    Raises:
        NewerFormat: a later release has written the file.
        Corrupt: the file is damaged.
    """
    path = directory / CATALOG_FILE
    try:
        text = disk.read_bytes(path)
    except FileNotFoundError:
        return None
    try:
        content = json.loads(text)
        version = content["version"]
        with naming(path):
            refuse_newer("the list of topics", version, VERSION)
        if version not in (1, VERSION):
            raise ValueError(f"it has version {version!r}, and this release reads version {VERSION}")
        if version == VERSION and content.pop("crc") != _crc(content):
            raise ValueError("its CRC does not match its content")
        topics = [
            ListedTopic(name, uuid.UUID(entry["id"]), int(entry["partitions"]), dict(entry["configs"]))
            for name, entry in content["topics"].items()
        ]
        established_epoch = content["established_epoch"] if version == VERSION else None
        return Catalog(
            str(content["cluster_id"]) if version == VERSION else "",
            int(content["leader_epoch"]),
            None if established_epoch is None else int(established_epoch),
            topics,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(
            f"{path} is not a list of topics: {in_words(error)}. Restore it from a backup"
        ) from error
