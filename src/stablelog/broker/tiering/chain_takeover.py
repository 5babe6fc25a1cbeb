"""Takes over the chain of a partition's manifests. (A manifest lists the partition's segments in the object store; the
chain is the sequence of all its manifests.) A takeover checks that the manifests belong to the local log, and makes
this broker the only one that can publish the next manifest.
"""

import logging
import uuid
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from typing import NamedTuple

from stablelog.broker.loop.threads import in_thread
from stablelog.broker.tiering.remote_storage import RemoteStorage
from stablelog.coordinators.log_names import is_coordinator_log
from stablelog.env.disk import Disk
from stablelog.errors import DamageError
from stablelog.log.partition import Partition
from stablelog.tier.chain import Chain
from stablelog.tier.history import ADVICE, LocalHistory, ProvenManifest, proven_manifest
from stablelog.tier.local_state import LocalState
from stablelog.tier.names import text_of_id
from stablelog.tier.remote_log import RemoteLog

log = logging.getLogger(__name__)


class OwnedChain(NamedTuple):
    """The chain of a partition's manifests (each a list of the partition's segments in the store) after this broker has
    taken the chain over, so that no other broker can publish there.

    Attributes:
        chain: publishes the next manifests.
        last: its last manifest, corrected where the local log differs from it.
        contents: the contents of those parts of this manifest that were loaded, by the id of the part. (A long manifest
            stores its older segments in separate objects, its parts.)
    """

    chain: Chain
    last: ProvenManifest
    contents: dict[uuid.UUID, bytes]


Check = Callable[[bytes | None], tuple[ProvenManifest, dict[uuid.UUID, bytes]]]


async def take_over(
    storage: RemoteStorage, disk: Disk, threads: Executor, partition: Partition, remote: RemoteLog
) -> OwnedChain:
    """Take over the chain of a partition's manifests, so that only this broker publishes manifests there. (A manifest
    lists the partition's segments in the store; the chain is the sequence of all its manifests.) Return the chain with
    its last manifest.

    Args:
        storage: the object store.
        disk: the disk of the partition.
        threads: sends the requests to the store.
        partition: the partition.
        remote: its remote tier, with the log start offset that the directory records.

    Raises:
        FencedError: a broker of a greater epoch, which has started later, has taken over.
        DamageError: the last manifest is damaged, or was published for another log than the local one; the store has
            lost segments; or the files in which the partition's directory records its remote tier are damaged.
        StoreError: the store does not answer.
    """
    check = await _check_of(storage, disk, threads, partition, remote)
    chain = storage.chain(remote.partition)
    last, contents = await in_thread(threads, storage.take_over, chain, check)
    if last.lost is not None:
        log.warning(
            "%s-%d: a broker on another data directory has deleted the offsets %d to %d from %s. Their records were "
            "only in the object store, and cannot be read any more",
            partition.topic,
            partition.index,
            last.lost[0],
            last.lost[1] - 1,
            storage.store.url,
        )
    return OwnedChain(chain, last, contents)


async def prove_history(
    storage: RemoteStorage, disk: Disk, threads: Executor | None, partition: Partition, remote: RemoteLog
) -> None:
    """Check that the last manifest of a partition, the list of its segments in the store, was published for the local
    log, and not for another log that has the same id. The store is not changed.

    Raises:
        DamageError: the manifest is damaged or of another log, or segments are lost: see `take_over`.
        StoreError: the store does not answer.
    """
    check = await _check_of(storage, disk, threads, partition, remote)

    def prove() -> None:
        check(storage.prefix.last_payload(remote.partition))

    await in_thread(threads, prove)


def prove_topics(storage: RemoteStorage, known: AbstractSet[uuid.UUID]) -> set[uuid.UUID]:
    """Check that a data directory has all topics of which the store has a manifest, a list of a partition's segments.
    If it lacks one, the directory and the store are not of the same cluster's history. The store is not changed. This
    function blocks, and may be called in any thread.

    Args:
        storage: the object store.
        known: the ids of the topics that the directory has, or has deleted.

    Returns:
        The ids of the topics that have objects in the store.

    Raises:
        DamageError: the store has a manifest of a topic that is not in `known`, and that was not deleted.
        StoreError: the store does not answer.
    """
    prefix, found = storage.prefix, set[uuid.UUID]()
    for topic in prefix.topics():
        topic_ids = set(prefix.topic_ids(topic))
        found |= topic_ids
        if topic_ids <= known:
            continue
        for one in prefix.partitions(topic):
            if one.topic_id not in known and prefix.last_payload(one) is not None:
                raise DamageError(
                    f"the object store has copies of topic {topic!r} with the id {text_of_id(one.topic_id)}, which this "
                    f"data directory does not have: the store and the data directory are not of the same cluster's "
                    f"history. {ADVICE}"
                )
    return found


async def _check_of(
    storage: RemoteStorage, disk: Disk, threads: Executor | None, partition: Partition, remote: RemoteLog
) -> Check:
    """Return a function that checks the last manifest of a partition, the list of its segments in the store, before
    this broker takes over. `Chain.take_over` calls the function.

    It gets the payload of a manifest, and raises DamageError if the manifest contradicts the local log, or the files in
    which the partition's directory records its remote tier. Otherwise it returns a pair: the manifest, corrected where
    the local log differs, and the contents of the manifest's parts (objects that list older segments) that were loaded,
    by the id of the part.
    """
    state = LocalState(disk, partition.directory)
    log_start = await in_thread(threads, state.read_start)
    # The recorded log start offset may be greater than that of the manifest. A partition without a known manifest has
    # not read it yet.
    remote.raise_log_start(log_start)
    if is_coordinator_log(partition.topic):
        log_start = max(log_start, partition.start_offset)
    recorded = remote.manifest if remote.is_known else None
    local = LocalHistory(
        remote.partition.directory,
        storage.cluster_id,
        partition.segments(),
        partition.start_offset,
        log_start,
        recorded,
        partition.restored,
    )

    def check(payload: bytes | None) -> tuple[ProvenManifest, dict[uuid.UUID, bytes]]:
        if payload is None:
            if recorded is None and local.start_offset > 0:
                # Segments that were deleted from the local disk may be in the store. So it is an error if the
                # partition's record of its remote tier exists and is damaged.
                state.read_manifest()
            return proven_manifest(None, local), {}
        manifest, contents = storage.prefix.read_manifest(remote.partition, payload, recorded)
        return proven_manifest(manifest, local), contents

    return check
