"""The object store of a cluster, and the broker epoch of this broker: a number that each start takes in the store, so
that a later start can exclude earlier ones.
"""

import contextlib
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection

from stablelog.broker.tiering.store_failures import StoreFailures
from stablelog.env.objects.check import require_conditions
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import (
    FencedError,
    ObjectExistsError,
    UsageError,
)
from stablelog.tier.chain import NONCE_SIZE, Chain, Get, Result, Steps, claim_epoch
from stablelog.tier.manifest import ManifestPart
from stablelog.tier.names import CLUSTER, SETTINGS, ChainName, RemotePartition
from stablelog.tier.prefix import LAYOUT_VERSION, Prefix

log = logging.getLogger(__name__)

# How long a check of the store counts. A start takes over thousands of chains, and checks the store once for all.
PROOF_S = 60.0


class RemoteStorage:
    """The object store of a cluster, for the broker that writes to it. Every method blocks, and may be called in any
    thread.

    Args:
        store: the object store.
        cluster_id: the id of the cluster. The keys of all its objects have one prefix, which no other cluster may use.
        now_s: returns the time in seconds, from a clock that is never set back.

    Attributes:
        store: the object store.
        prefix: reads the objects of the cluster: those whose keys begin with its prefix.
        cluster_id: the id of the cluster.
        nonce: the bytes that distinguish this start of the broker from all others. Each object that this start creates
            in a partition's chain of manifests, the lists of its segments, contains them.
        epoch: the broker epoch of this start, a number greater than that of each earlier start; None before
            `take_epoch` has returned.
        fenced: why this broker changes nothing in the store any more; None while it does.
        failures: remembers which failures of copies were logged, so that each is logged once.
    """

    def __init__(
        self, store: ObjectStore, cluster_id: str, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.store = store
        self._now_s = now_s
        self._proving = threading.Lock()
        self._proven_s: float | None = None  # When the store was last found to obey conditions.
        self.prefix = Prefix(store)
        self.cluster_id = cluster_id
        self.epoch: int | None = None
        self.fenced: FencedError | None = None
        self.failures = StoreFailures()
        self.nonce = secrets.token_bytes(NONCE_SIZE)
        self._beginning = threading.Lock()
        self._settings_number = 0  # The number of the last settings that this start has published.

    def take_epoch(self) -> None:
        """Check that the store refuses to create an object that exists. Then take a broker epoch there, a number
        greater than that of each earlier start of a broker. Later calls of this method do nothing.

        Raises:
            StoreError: the store does not answer, or rejects requests.
            UsageError: the store belongs to another cluster.
            StablelogError: the store does not pass this check.
        """
        with self._beginning:
            if self.epoch is not None:
                return
            self._check_conditions()
            self._check_cluster()
            self.epoch = self.prefix.run_steps(claim_epoch(self.nonce))
            self.failures.clear_logged()
            log.info(
                "the broker has taken broker epoch %d in the object store %s", self.epoch, self.store.url
            )

    def _check_conditions(self) -> None:
        """Check that the store obeys conditional puts (it must refuse to create an object that exists), unless that was
        checked in the last PROOF_S seconds. Raises the errors of `take_epoch`.
        """
        with self._proving:
            if self._proven_s is None or self._now_s() - self._proven_s > PROOF_S:
                self._proven_s = None
                require_conditions(self.store, self.nonce.hex())
                self._proven_s = self._now_s()

    def take_over(
        self, chain: Chain, check: Callable[[bytes | None], Result], void: Collection[bytes] = ()
    ) -> Result:
        """Take over the chain of a partition's manifests (lists of its segments in the store), so that only this broker
        can publish the next one. Return the result of `check` for the last manifest.

        The check that the store refuses to create an object that exists is repeated, because a setting of the store may
        have changed since the start. If versions of objects are enabled, for example, some stores report to two writers
        that each has created the same object.

        Args:
            chain: the chain to take over.
            check: looks at the last manifest, as in `Chain.take_over`.
            void: the nonces (random bytes in each object that one process writes) of interrupted restores, whose
                manifests are ignored.

        Raises:
            FencedError: a broker of a greater epoch has taken over.
            DamageError: an object of the chain is damaged, or `check` has refused the last manifest.
            StoreError: the store does not answer, or rejects requests.
            StablelogError: the store ignores the condition of a conditional put. Nothing was changed in the chain.
        """
        self._check_conditions()
        return self.prefix.run_steps(chain.take_over(check, void))

    def stop_changes(self, error: FencedError) -> None:
        """Stop all changes to the store for good, because another broker has taken over. The first call logs the error."""
        if self.fenced is None:
            self.fenced = error
            log.error(
                "another broker uses the object store %s: %s. This broker copies no more segments, and "
                "deletes none. If this broker is the right one, stop the other broker and restart this "
                "one",
                self.store.url,
                error,
            )

    def _check_cluster(self) -> None:
        """Create the object `cluster`, which names this cluster; if the object exists, check that it names this
        cluster, because each cluster needs a prefix of its own in the store.
        """
        try:
            self.store.create(CLUSTER, self._cluster_content())
        except ObjectExistsError:
            cluster_id = self.prefix.cluster_id()
            if cluster_id != self.cluster_id:
                raise UsageError(
                    f"{self.store.url} holds the objects of cluster {cluster_id}, and this broker has the cluster "
                    f"id {self.cluster_id}: use another bucket or prefix"
                ) from None

    def _cluster_content(self) -> bytes:
        return json.dumps({"version": LAYOUT_VERSION, "cluster": self.cluster_id}).encode()

    def create_part(self, partition: RemotePartition, part: ManifestPart, content: bytes) -> None:
        """Create the object of a part of a manifest: a list of older segments, which the manifest names instead of
        listing them itself. The object is durable when this method returns. Raises StoreError.
        """
        self.store.create(partition.part_key(part.base_offset, part.part_id), content)

    def is_deleted(self, partition: RemotePartition) -> bool:
        """Return whether the store has the object `deleted` of a partition's topic, which says that the topic was
        deleted. Raises StoreError.
        """
        return self.prefix.run_steps(_content(partition.deleted_key)) is not None

    def mark_deleted(self, partition: RemotePartition) -> None:
        """Create the object `deleted` of a partition's topic. Because of it, readers of the store and restores skip the
        topic. The object is durable when this method returns. Raises StoreError.
        """
        with contextlib.suppress(ObjectExistsError):
            self.store.create(partition.deleted_key, self._cluster_content())

    def publish_settings(self, content: bytes) -> None:
        """Store the dynamic settings of the broker in a new object, which replaces all earlier ones. The object is
        durable when this method returns.

        Each attempt has another key. So it does no harm if the store carries out an attempt late, after it has
        reported an error. Raises the errors of `take_epoch`.
        """
        self.take_epoch()
        assert self.epoch is not None
        self._settings_number += 1
        self.store.create(f"{SETTINGS}/{ChainName(self.epoch, self._settings_number)}", content)

    def chain(self, partition: RemotePartition) -> Chain:
        """Return an object that publishes manifests (lists of a partition's segments in the store) under this start's
        broker epoch. The caller first takes over the chain with `take_over`.
        """
        assert self.epoch is not None, "a chain needs a broker epoch: call take_epoch first"
        return Chain(partition, self.epoch, self.nonce)


def _content(key: str) -> Steps[bytes | None]:
    content: bytes | None = yield Get(key)
    return content
