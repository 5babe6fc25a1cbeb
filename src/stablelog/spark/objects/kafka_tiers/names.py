"""The names of the objects of Apache Kafka's storage plugins.

`LocalTieredStorage`, of Kafka's own tests. The directory of the setting `dir` has the directory `kafka-tiered-storage`:

    <topic>-<partition>-<topic id>/<base>-<segment id>.log         the log file
                                                      .index  .timeindex  .leader_epoch_checkpoint  .snapshot
                                                      .txnindex    if transactions were aborted in the segment

Aiven's plugin for object stores:

    <topic>-<topic id>/<partition>/<base>-<segment id>.log         the log file
                                                      .indexes     all indexes, one after another
                                                      .rsm-manifest  JSON: what the other two objects have

Ids are written in base 64, in 22 characters. They may contain `-`, and topics, too: a name is divided from its end. The
base offset has 20 digits; early releases of LocalTieredStorage wrote no leading zeros. Each attempt to copy a segment has
another segment id.
"""

import re
import uuid
from collections.abc import Mapping
from typing import Final, NamedTuple

from stablelog.env.objects.attempts import StoredObject
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.tier.names import RemotePartition, id_of_text, text_of_id

ROOT: Final = "kafka-tiered-storage"
_ID: Final = r"([A-Za-z0-9_-]{22})"
_LOCAL_PARTITION: Final = re.compile(rf"([A-Za-z0-9_-][A-Za-z0-9._-]*)-(\d+)-{_ID}")
_AIVEN_TOPIC: Final = re.compile(rf"([A-Za-z0-9_-][A-Za-z0-9._-]*)-{_ID}")
_SEGMENT_FILE: Final = re.compile(rf"(\d+)-{_ID}\.([a-z_-]+)")


class LocalPartition(RemotePartition):
    """A partition in the directory of LocalTieredStorage."""

    __slots__ = ()

    @property
    def directory(self) -> str:
        """The directory of the partition's objects, `<topic>-<partition>-<topic id>`."""
        return f"{self.topic}-{self.partition}-{text_of_id(self.topic_id)}"


class NestedLocalPartition(LocalPartition):
    """A partition of LocalTieredStorage in a store whose URL names the parent of the plugin's directory."""

    __slots__ = ()

    @property
    def directory(self) -> str:
        """The directory of the partition's objects, with the plugin's directory before it."""
        return f"{ROOT}/{self.topic}-{self.partition}-{text_of_id(self.topic_id)}"


class AivenPartition(RemotePartition):
    """A partition in a store of Aiven's plugin."""

    __slots__ = ()

    @property
    def directory(self) -> str:
        """The directory of the partition's objects, `<topic>-<topic id>/<partition>`."""
        return f"{self.topic}-{text_of_id(self.topic_id)}/{self.partition}"


class Upload(NamedTuple):
    """The objects of one attempt to copy a segment.

    Attributes:
        partition: the partition.
        base_offset: the base offset of the segment.
        segment_id: the id that Kafka has given to this attempt.
        files: the objects of the attempt, by the suffix of their keys, such as `.log`.
    """

    partition: RemotePartition
    base_offset: int
    segment_id: uuid.UUID
    files: Mapping[str, StoredObject]

    @property
    def key(self) -> str:
        """The common part of the keys of the objects of this attempt: a key without its suffix."""
        return next(iter(self.files.values())).key.rpartition(".")[0]


def local_partition_of(name: str, kind: type[LocalPartition]) -> LocalPartition | None:
    """Return the partition whose directory in LocalTieredStorage has this name; None if it is not the name of a
    partition's directory. `kind` is the class of the result.
    """
    found = _LOCAL_PARTITION.fullmatch(name)
    return None if found is None else kind(found[1], id_of_text(found[3]), int(found[2]))


def aiven_topic_of(name: str) -> tuple[str, uuid.UUID] | None:
    """Return a pair: the topic and the topic id in the name of a directory of Aiven's plugin. Return None if `name` is
    not the name of such a directory.
    """
    found = _AIVEN_TOPIC.fullmatch(name)
    return None if found is None else (found[1], id_of_text(found[2]))


def uploads_of(store: ObjectStore, partition: RemotePartition) -> list[Upload]:
    """List the objects of a partition, and return them grouped by the attempts to copy a segment. Raises StoreError."""
    found: dict[tuple[int, str], dict[str, StoredObject]] = {}
    for listed in store.list_after(partition.directory):
        parts = _SEGMENT_FILE.fullmatch(listed.key.removeprefix(f"{partition.directory}/"))
        if parts is not None:
            found.setdefault((int(parts[1]), parts[2]), {})[parts[3]] = listed
    return [Upload(partition, base, id_of_text(text), files) for (base, text), files in sorted(found.items())]
