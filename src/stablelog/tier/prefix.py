"""Reads what one cluster has in an object store, under the prefix of its keys: the cluster id, the partitions and their
manifests, which list a partition's segments.

This module only reads. `broker.tiering.remote_storage` is the part of a broker that also writes.
"""

import contextlib
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import (
    DamageError,
    ObjectExistsError,
    ObjectMissingError,
    UnknownFormatError,
    UsageError,
    refuse_unknown_version,
)
from stablelog.json_text import parse_json
from stablelog.tier.chain import Create, Delete, Get, List, Result, Steps, last_manifest
from stablelog.tier.manifest import PARTED_VERSION, Manifest, ManifestPart, decode_manifest, read_part
from stablelog.tier.names import (
    CLUSTER,
    DELETED,
    SETTINGS,
    TOPIC_PREFIX,
    RemotePartition,
    chain_name_of,
    id_of_text,
    partition_of,
)
from stablelog.tier.remote_segment import RemoteSegment

LAYOUT_VERSION: Final = 1


@dataclass(frozen=True)
class Prefix:
    """The objects of one cluster in an object store, for readers. Their keys have one prefix, which no other cluster
    uses. Every method blocks, and may be called in any thread.

    Attributes:
        store: the object store, whose URL ends with the prefix.
    """

    store: ObjectStore

    def cluster_id(self) -> str:
        """Return the id of the cluster whose objects are under the prefix.

        Raises:
            ObjectMissingError: no broker has used the prefix yet.
            UsageError: the object `cluster` under the prefix is not one of stablelog, so another program uses the
                prefix.
            UnknownFormatError: a later release has written the objects.
            StoreError: the store does not answer, or rejects the request.
        """
        content = self.store.get(CLUSTER)
        try:
            read = parse_json(content)
            version, cluster_id = int(read["version"]), read["cluster"]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"the object {self.store.url}/{CLUSTER} was not written by a cluster of stablelog: use "
                "another prefix"
            ) from error
        refuse_unknown_version(f"the layout of {self.store.url}", version, LAYOUT_VERSION)
        return str(cluster_id)

    def last_settings(self) -> tuple[str, bytes] | None:
        """Return the newest dynamic settings that a broker has published in the store.

        Those of the greatest broker epoch (a number that each start takes) are the newest: a broker with a lower epoch
        was replaced by a later one, and what it may still have written is ignored.

        Returns:
            A pair: the key and the content of the object with the settings. None if no broker has published any.

        Raises:
            StoreError: the store does not answer, or rejects a request.
        """
        keys = [one.key for one in self.store.list_after(SETTINGS) if chain_name_of(one.key) is not None]
        return (keys[-1], self.store.get(keys[-1])) if keys else None

    def topics(self) -> list[str]:
        """Return the names of the topics that have, or had, objects in the store. The names are sorted."""
        return sorted(
            name.removeprefix(TOPIC_PREFIX)
            for name in self.store.directories()
            if name.startswith(TOPIC_PREFIX)
        )

    def topic_ids(self, topic: str) -> list[uuid.UUID]:
        """Return the ids of all topics with this name that have, or had, objects in the store: a topic that is deleted
        and created again gets another id. Raises StoreError.
        """
        found: list[uuid.UUID] = []
        for name in self.store.directories(f"{TOPIC_PREFIX}{topic}"):
            with contextlib.suppress(ValueError):  # No broker has written the directory.
                found.append(id_of_text(name[1:]))
        return found

    def partitions(self, topic: str) -> list[RemotePartition]:
        """Return the partitions of all topics of this name that have, or had, objects in the store, sorted by topic id
        and number.

        Topics that were deleted and created again under one name have different topic ids. Topics of which the store
        says that they were deleted are left out.
        """
        return [one for one, deleted_ms in self.partitions_with_deleted(topic).items() if deleted_ms is None]

    def partitions_with_deleted(self, topic: str) -> dict[RemotePartition, int | None]:
        """Return the partitions of all topics of this name, also of deleted ones. The value for each partition is the
        time at which the topic was marked as deleted, by the clock of the store, in ms; None for a topic that was not
        deleted.
        """
        directory = f"{TOPIC_PREFIX}{topic}"
        found: dict[RemotePartition, int | None] = {}
        for topic_id in self.store.directories(directory):
            deleted_ms = self._deleted_ms(f"{directory}/{topic_id}")
            for number in self.store.directories(f"{directory}/{topic_id}"):
                partition = partition_of(f"{directory}/{topic_id}/{number}")
                if partition is not None:
                    found[partition] = deleted_ms
        return dict(sorted(found.items(), key=lambda one: (one[0].topic_id.bytes, one[0].partition)))

    def _deleted_ms(self, directory: str) -> int | None:
        key = f"{directory}/{DELETED}"
        # The names of partitions are digits, and so before this key.
        listed = self.store.list_after(directory, key[:-1])
        return next((one.modified_ms for one in listed if one.key == key), None)

    def last_manifest(self, partition: RemotePartition) -> Manifest | None:
        """Return the last manifest of a partition, the list of its segments in the store, with the segments of its
        parts; None if none was published.

        Raises:
            StoreError: the store does not answer, or rejects a request.
            UnknownFormatError: a later release has written the manifest.
            DamageError: the manifest or a part is damaged or missing. The message names the key of the object.
        """
        payload = self.last_payload(partition)
        return None if payload is None else self.read_manifest(partition, payload)[0]

    def last_payload(self, partition: RemotePartition, void: Collection[bytes] = ()) -> bytes | None:
        """Return the last manifest of a partition (the list of its segments in the store), still encoded; None if none
        was published. Manifests of interrupted restores are ignored: `void` has the nonces of these restores, bytes
        that each object of a writer contains. Raises StoreError or DamageError.
        """
        return self.run_steps(last_manifest(partition, void))

    def read_manifest(
        self, partition: RemotePartition, payload: bytes, known: Manifest | None = None
    ) -> tuple[Manifest, dict[uuid.UUID, bytes]]:
        """Decode a manifest, the list of a partition's segments in the store, and load its parts, objects that list
        older segments.

        Args:
            partition: the partition of the manifest.
            payload: the encoded manifest.
            known: an earlier manifest of the partition. Parts that it also has are taken from it and not loaded.

        Returns:
            A pair: the manifest with the segments of its parts, and the contents of the parts that were loaded, by the
            id of the part.

        Raises:
            StoreError: the store does not answer, or rejects a request.
            UnknownFormatError: this release does not read the form of the manifest.
            DamageError: the manifest or a part is damaged, a part is missing, or the manifest is that of another
                partition. The message names the part's key.
        """
        contents: dict[uuid.UUID, bytes] = {}

        def load(part: ManifestPart) -> Sequence[RemoteSegment]:
            if known is not None and part in known.parts:
                return known.segments_of(part)
            key = partition.part_key(part.base_offset, part.part_id)
            try:
                content = contents[part.part_id] = self.store.get(key)
                return read_part(part, content)
            except ObjectMissingError:
                raise DamageError(
                    f"the object {key} is missing, although the manifest (the list of remote segments) names "
                    "it"
                ) from None
            except DamageError as error:
                raise DamageError(f"{key}: {error}") from None

        manifest = decode_manifest(payload, load)
        if manifest.published is None:
            raise UnknownFormatError(
                f"the manifest of {partition.directory} without the state of its topic", None, PARTED_VERSION
            )
        manifest.published.check_partition(partition.topic_id, partition.partition)
        return manifest, contents

    def run_steps(self, steps: Steps[Result]) -> Result:
        """Run a generator of `tier.chain`, which reads or changes the chain of a partition's manifests, the lists of
        its segments: send each request that it yields to the store, and the answer into the generator. Return the
        generator's result.

        Raises:
            StoreError: a request failed. The generator ends at this request.
        """
        answer = None
        try:
            while True:
                answer = self._send_request(steps.send(answer))
        except StopIteration as end:
            result: Result = end.value
            return result

    def _send_request(
        self, request: List | Create | Get | Delete
    ) -> list[tuple[str, int]] | bool | bytes | None:
        match request:
            case List(directory):
                return [(one.key, one.size) for one in self.store.list_after(directory)]
            case Create(key, content):
                try:
                    self.store.create(key, content)
                except ObjectExistsError:
                    return False
                return True
            case Get(key):
                with contextlib.suppress(ObjectMissingError):
                    return self.store.get(key)
            case Delete(key):
                self.store.delete(key)
        return None
