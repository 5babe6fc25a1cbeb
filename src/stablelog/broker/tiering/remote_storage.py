"""The object store of a cluster, as one start of the broker uses it."""

import json
import logging
import secrets
import threading
import uuid
from collections.abc import Sequence
from typing import Final

from stablelog.env.objects.check import require_conditions
from stablelog.env.objects.store import ObjectStore
from stablelog.errors import (
    Corrupt,
    Fenced,
    InvalidConfig,
    ObjectExists,
    ObjectMissing,
    StoreError,
    refuse_newer,
)
from stablelog.tier.chain import NONCE_SIZE, Chain, Create, Get, List, Result, Steps, claim_epoch
from stablelog.tier.manifest import Manifest, Part, RemoteSegment, decode_manifest, read_part
from stablelog.tier.names import CLUSTER, RemotePartition

log = logging.getLogger(__name__)

LAYOUT_VERSION: Final = 1


class RemoteStorage:
    """The object store of a cluster. Every method blocks, and may be called in any thread.

    Args:
        store: the object store.
        cluster_id: the id of the cluster. One prefix of a store belongs to one cluster.

    Attributes:
        store: the object store.
        cluster_id: the id of the cluster.
        epoch: the broker epoch of this start; None before `begin` has returned.
        fenced: why this broker changes nothing in the store any more; None while it does.
    """

    def __init__(self, store: ObjectStore, cluster_id: str) -> None:
        self.store = store
        self.cluster_id = cluster_id
        self.epoch: int | None = None
        self.fenced: Fenced | None = None
        self._nonce = secrets.token_bytes(NONCE_SIZE)
        self._beginning = threading.Lock()

    def begin(self) -> None:
        """Check the store, and take a broker epoch, unless that was done: a number that is greater than that of each
        earlier start.

        Raises:
            StoreError: the store does not answer, or rejects requests.
            InvalidConfig: the store belongs to another cluster.
            StablelogError: the store ignores the condition of a conditional put.
        """
        with self._beginning:
            if self.epoch is not None:
                return
            require_conditions(self.store)
            self._check_cluster()
            self.epoch = self.run(claim_epoch(self._nonce))
            log.info("%s: the broker has taken broker epoch %d", self.store.url, self.epoch)

    def _check_cluster(self) -> None:
        """Create the object that names this cluster. If it exists, check that it names this cluster."""
        content = json.dumps({"version": LAYOUT_VERSION, "cluster": self.cluster_id}).encode()
        try:
            self.store.create(CLUSTER, content)
        except ObjectExists:
            found = self.store.get(CLUSTER)
            try:
                read = json.loads(found)
                version, cluster_id = int(read["version"]), read["cluster"]
            except (ValueError, KeyError, TypeError) as error:
                raise InvalidConfig(
                    f"{self.store.url}/{CLUSTER} is not the object of a cluster of stablelog: use another prefix"
                ) from error
            refuse_newer(f"the layout of {self.store.url}", version, LAYOUT_VERSION)
            if cluster_id != self.cluster_id:
                raise InvalidConfig(
                    f"{self.store.url} holds the objects of cluster {cluster_id}, and this broker has the cluster "
                    f"id {self.cluster_id}: use another bucket or prefix"
                ) from None

    def create_part(self, partition: RemotePartition, part: Part, content: bytes) -> None:
        """Create the object of a part of a manifest. Durable on return. Raises StoreError."""
        self.store.create(partition.part_key(part.base_offset, part.part_id), content)

    def read_manifest(
        self, partition: RemotePartition, payload: bytes, known: Manifest | None = None
    ) -> tuple[Manifest, dict[uuid.UUID, bytes]]:
        """Decode the payload of a manifest, and load its parts.

        Args:
            partition: the partition of the manifest.
            payload: the payload.
            known: an earlier manifest of the partition. Parts that it has too are not loaded.

        Returns:
            The manifest, and the contents of the parts that were loaded, by the id of the part.

        Raises:
            StoreError: the store does not answer, or rejects a request.
            NewerFormat: a later release has written the manifest.
            Corrupt: the manifest or a part is damaged, or a part is missing. The message names the part's key.
        """
        contents: dict[uuid.UUID, bytes] = {}

        def load(part: Part) -> Sequence[RemoteSegment]:
            if known is not None and part in known.parts:
                return known.segments_of(part)
            key = partition.part_key(part.base_offset, part.part_id)
            try:
                content = contents[part.part_id] = self.store.get(key)
                return read_part(part, content)
            except ObjectMissing:
                raise Corrupt(f"{key} is missing, and the manifest names it") from None
            except Corrupt as error:
                raise Corrupt(f"{key}: {error}") from None

        return decode_manifest(payload, load), contents

    def chain(self, partition: RemotePartition) -> Chain:
        """Return the chain of a partition's manifests, for this broker epoch."""
        assert self.epoch is not None, "begin first"
        return Chain(partition, self.epoch, self._nonce)

    def run(self, steps: Steps[Result]) -> Result:
        """Send the requests of a generator of `stablelog.tier.chain` to the store, and return its result.

        Raises:
            StoreError: a request failed. The generator got this error, too.
        """
        try:
            request = next(steps)
            while True:
                try:
                    answer = self._answer(request)
                except StoreError as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(answer)
        except StopIteration as end:
            result: Result = end.value
            return result

    def _answer(self, request: List | Create | Get) -> list[tuple[str, int]] | bool | bytes | None:
        match request:
            case List(directory):
                return [(one.key, one.size) for one in self.store.list_after(directory)]
            case Create(key, content):
                try:
                    self.store.create(key, content)
                except ObjectExists:
                    return False
                return True
            case Get(key):
                try:
                    return self.store.get(key)
                except ObjectMissing:
                    return None
