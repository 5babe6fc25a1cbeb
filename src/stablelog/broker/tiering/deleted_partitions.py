"""Deletes the objects of partitions whose topic was deleted.

The list of topics (`data_directory.catalog`) names each deleted topic that had a remote tier, until the objects of all
its partitions are deleted. So no deletion is forgotten, also if the broker or the store stops. The steps for such a
partition are:

1. Take over the chain of the partition's manifests (lists of its segments in the store), so that no other broker
   publishes there.
2. Create the object `deleted` of the topic. Readers of the store and a restore then skip the topic.
3. Delete all objects of segments, and all parts of manifests, as objects that no manifest names are deleted
   (`tier.deletion`): after the delay, and while no reader has a valid pin, an object that keeps segments from deletion.
4. Delete the manifests, then the claims and fences, the other objects of the chain. Only the object `deleted` stays.

A start of the broker that finds the object `deleted` waits for the delay before it takes over the chain. So starts add
no claims and fences while a deletion waits.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from stablelog.broker.loop.threads import in_thread
from stablelog.broker.tiering.remote_storage import RemoteStorage
from stablelog.errors import FencedError, StablelogError
from stablelog.tier.chain import Chain, same_payload
from stablelog.tier.deletion import ObjectDeletion
from stablelog.tier.manifest import Manifest
from stablelog.tier.names import RemotePartition

log = logging.getLogger(__name__)

COUNT_MAX: Final = 100  # The number of objects of a partition that are deleted in one pass.
# The time after which a pass begins with no further partition, so that copies go on, in seconds.
PASS_S_MAX: Final = 10.0


class DeletedPartitions:
    """Deletes the objects of partitions whose topic was deleted.

    Args:
        storage: the object store.
        delay_s: returns the delay of deletions, in seconds: objects are deleted only so long after the deletion was
            found to be possible, so that readers can finish.
        now_s: returns the time in seconds, from a clock that is never set back.
    """

    def __init__(
        self, storage: RemoteStorage, *, delay_s: Callable[[], float], now_s: Callable[[], float]
    ) -> None:
        self._storage = storage
        self._delay_s = delay_s
        self._now_s = now_s
        self._empty = Manifest(storage.cluster_id)  # Names no object.
        self._taken: dict[RemotePartition, tuple[Chain, ObjectDeletion]] = {}
        self._tried_s: dict[RemotePartition, float] = {}
        self._known_s: dict[RemotePartition, float] = {}  # When this start has first known of the deletion.
        # The partitions whose object `deleted` an earlier start has created.
        self._told: set[RemotePartition] = set()
        self._failed: set[RemotePartition] = set()  # The partitions whose error was logged.
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="deleted partitions")

    async def delete_objects(self, partitions: Iterable[RemotePartition]) -> list[RemotePartition]:
        """Delete those objects of these partitions in the store that may be deleted now: the delay has passed, and no
        reader protects them. Return the partitions that have no object left in the store.

        If the objects of a partition cannot be deleted, this is logged once, and the next call tries again.
        """
        over, end_s = [], self._now_s() + PASS_S_MAX
        # Each pass begins with another partition.
        for partition in sorted(partitions, key=lambda one: self._tried_s.get(one, -math.inf)):
            if self._now_s() > end_s:
                break
            self._tried_s[partition] = self._now_s()
            if self._storage.fenced is not None or self._storage.epoch is None:
                break
            try:
                if await in_thread(self._threads, self._delete_partition, partition):
                    over.append(partition)
                    del self._tried_s[partition], self._known_s[partition]
                    self._told.discard(partition)
                self._failed.discard(partition)
            except FencedError as error:
                self._storage.stop_changes(error)
            except StablelogError as error:
                if partition not in self._failed:
                    self._failed.add(partition)
                    log.error(
                        "the objects of a deleted topic in %s/%s cannot be deleted yet; the broker tries again: %s",
                        self._storage.store.url,
                        partition.directory,
                        error,
                    )
            await asyncio.sleep(0)
        return over

    def _delete_partition(self, partition: RemotePartition) -> bool:
        """Delete the objects of one partition that may be deleted now. Return True if the store has no object of the
        partition any more, except the object `deleted`, which says that its topic was deleted. Runs in a thread.
        """
        run, now_s, delay_s = self._storage.prefix.run_steps, self._now_s(), self._delay_s()
        known_s = self._known_s.setdefault(partition, now_s)
        if partition not in self._taken:
            if partition in self._told or self._storage.is_deleted(partition):
                self._told.add(partition)
                if now_s < known_s + delay_s:
                    return False
            else:
                known_s = now_s
            chain = self._storage.chain(partition)
            self._storage.take_over(chain, same_payload)
            self._storage.mark_deleted(partition)
            self._taken[partition] = chain, ObjectDeletion(partition, chain, self._empty, known_s)
        chain, deletion = self._taken[partition]
        if deletion.is_due(now_s, delay_s):
            run(deletion.find_objects(self._empty, now_s, delay_s))
            run(deletion.delete_found(COUNT_MAX))
        if not deletion.is_swept:
            return False
        run(chain.delete_objects())
        del self._taken[partition]
        log.info("deleted %s from %s: its topic was deleted", partition.directory, self._storage.store.url)
        return True

    def close(self) -> None:
        """Shut down the thread that deletes objects."""
        self._threads.shutdown(wait=True, cancel_futures=True)
