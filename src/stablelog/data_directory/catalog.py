"""The list of topics, `cluster.json`: the id, the settings and the partition count of each topic.

The broker replaces the file as a whole. So after a crash a topic exists with all its partitions or not at all. The file
cannot be rebuilt from other files, because only it records the settings of a topic, and whether readers get the topic's
records in offset order or in the order of the commits.

Format: docs/reference/formats.md, "cluster.json".
"""

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from stablelog.crc32c import crc32c
from stablelog.data_directory.topic_settings import order_of
from stablelog.env.disk import Disk
from stablelog.errors import DamageError, adding_path, in_words, refuse_unknown_version
from stablelog.json_text import parse_json

CATALOG_FILE = "cluster.json"
CATALOG = "the list of topics"
VERSION = 2


@dataclass(frozen=True)
class ListedTopic:
    """A topic in `cluster.json`. It caches its encoded entry, so that a list of thousands of topics is written again
    quickly.
    """

    name: str
    topic_id: uuid.UUID
    partition_count: int
    configs: dict[str, str]

    @cached_property
    def entry(self) -> str:
        """The topic's entry in `cluster.json`: indented JSON, with a line break before it."""
        first, *lines, last = json.dumps({self.name: self._fields()}, indent=1).splitlines()
        assert (first, last) == ("{", "}")
        return "".join(f"\n {line}" for line in lines)

    @cached_property
    def checked_entry(self) -> str:
        """The topic's entry in `cluster.json`, in the form from which the CRC of the file is computed: JSON without
        spaces.
        """
        return _compact({self.name: self._fields()})[1:-1]

    @property
    def is_commit_ordered(self) -> bool:
        """Whether the topic is commit-ordered: read-committed readers get its records in the order of the commits."""
        return order_of(self.configs) == "commit"

    def _fields(self) -> dict[str, Any]:
        return {"id": str(self.topic_id), "partitions": self.partition_count, "configs": self.configs}


class DeletedTopic(NamedTuple):
    """A deleted topic that may still have objects in the object store."""

    name: str
    topic_id: uuid.UUID
    partition_count: int


@dataclass(frozen=True, slots=True)
class Catalog:
    """The content of `cluster.json`, the list of topics.

    Attributes:
        cluster_id: id of the cluster that the data directory belongs to.
        leader_epoch: the leader epoch of the last start of the broker.
        established_epoch: the leader epoch of the first start at which every partition had all files of stablelog. In a
            log, no offset is missing between batches of this epoch or later ones, so a gap there is damage. None before
            that start, while a directory of Apache Kafka is being taken over.
        topics: the topics, in no particular order.
        deleted: the deleted topics that may still have objects in the object store.
    """

    cluster_id: str
    leader_epoch: int
    established_epoch: int | None
    topics: list[ListedTopic] = field(default_factory=list)
    deleted: list[DeletedTopic] = field(default_factory=list)


def encode_catalog(
    cluster_id: str,
    leader_epoch: int,
    established_epoch: int | None,
    topics: Iterable[ListedTopic],
    deleted: Iterable[DeletedTopic] = (),
) -> bytes:
    """Encode the list of topics as JSON. Its last member is a CRC over the other members.

    Args:
        cluster_id: the id of the cluster.
        leader_epoch: the leader epoch of the last start of the broker.
        established_epoch: the leader epoch of the first start at which every partition had all files of stablelog; None
            before that start: see `Catalog`.
        topics: the topics.
        deleted: the deleted topics that may still have objects in the object store.

    Returns:
        The content of `cluster.json`.
    """
    listed = list(topics)
    others: dict[str, Any] = {
        "cluster_id": cluster_id,
        "leader_epoch": leader_epoch,
        "established_epoch": established_epoch,
    }
    gone = {str(one.topic_id): {"name": one.name, "partitions": one.partition_count} for one in deleted}
    if gone:
        others["deleted_topics"] = gone
    # The CRC covers the members of the JSON object in sorted order. `topics` and `version` are the last two of these.
    checked_entries = [topic.checked_entry for topic in sorted(listed, key=attrgetter("name"))]
    checked = f'{_compact(others)[:-1]},"topics":{{{",".join(checked_entries)}}},"version":{VERSION}}}'
    head = json.dumps({"version": VERSION, **others}, indent=1).removesuffix("\n}")
    entries = ",".join([topic.entry for topic in listed])
    end = "\n }" if listed else "}"
    return f'{head},\n "topics": {{{entries}{end},\n "crc": "{_crc(checked)}"\n}}'.encode()


def _compact(content: dict[str, Any]) -> str:
    """Encode as JSON without spaces and with sorted names: the form over which the CRC of the list of topics is
    computed.
    """
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def _crc(checked: str) -> str:
    """Return the CRC of the list of topics in its checked form, as eight hex digits."""
    return f"{crc32c(checked.encode()):08x}"


def read_catalog(disk: Disk, directory: Path) -> Catalog | None:
    """Read the list of topics; None if `cluster.json` does not exist.

    Raises:
        UnknownFormatError: this release does not read the version of the file.
        DamageError: the file is damaged.
    """
    path = directory / CATALOG_FILE
    try:
        text = disk.read_bytes(path)
    except FileNotFoundError:
        return None
    try:
        content = parse_json(text)
        version = content["version"]
        with adding_path(path):
            refuse_unknown_version(CATALOG, version, VERSION, VERSION)
        if version != VERSION:
            raise ValueError(f"the file has version {version!r}, and this release reads version {VERSION}")
        if content.pop("crc") != _crc(_compact(content)):
            raise ValueError("the CRC in the file does not match its content")
        topics = [
            ListedTopic(name, uuid.UUID(entry["id"]), int(entry["partitions"]), dict(entry["configs"]))
            for name, entry in content["topics"].items()
        ]
        deleted = [
            DeletedTopic(str(entry["name"]), uuid.UUID(topic_id), int(entry["partitions"]))
            for topic_id, entry in content.get("deleted_topics", {}).items()
        ]
        established_epoch = content["established_epoch"]
        return Catalog(
            str(content["cluster_id"]),
            int(content["leader_epoch"]),
            None if established_epoch is None else int(established_epoch),
            topics,
            deleted,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamageError(
            f"{path} is not a list of topics: {in_words(error)}. Restore the file from a backup"
        ) from error
