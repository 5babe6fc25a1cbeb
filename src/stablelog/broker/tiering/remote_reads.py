"""Loads byte ranges of objects that reads need, from the cache on the disk or from the object store.

A fetch waits for the bytes at most as long as its client allows. The load goes on after that, so that the client's next
fetch finds the bytes. If several readers need the same range, it is loaded once.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from stablelog.broker.loop.tasks import Tasks
from stablelog.broker.loop.threads import in_thread
from stablelog.broker.monitoring.damage_log import MESSAGES_MAX, DamageLog
from stablelog.broker.tiering.range_cache import RangeCache
from stablelog.broker.tiering.store_failures import StoreFailures
from stablelog.env.disk import Buffer
from stablelog.errors import (
    DamageError,
    NotLoadedError,
    ObjectMissingError,
    StablelogError,
    StoreError,
    UnavailableError,
)
from stablelog.log.partition import Partition
from stablelog.types import ObjectRange

if TYPE_CHECKING:
    from stablelog.env.objects.retrying_store import ObjectStore

log = logging.getLogger(__name__)

Result = TypeVar("Result")

FAILED = "a remote segment cannot be read"
THREADS = 16  # The number of ranges that are loaded at a time. With chunks of 4 MiB, 64 MiB are in flight.
ERROR_S = 1.0  # For this time after a failed load, reads of the range get its error.
SLOW_S = 2.0  # After this time without an answer of the store, a fetch gets a retriable error.
WAIT_S_MAX = 10.0  # After this time, a request without a time limit of its own, such as a lookup by time, gets that error.


@dataclass(slots=True)
class _Load:
    begun_s: float
    waiting: dict[Partition, None] = field(default_factory=dict)
    done: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class RemoteReads:
    """Loads byte ranges of objects from the store for readers, and knows which loads are in progress.

    Args:
        store: the object store; None if the broker has none.
        cache: gets the loaded ranges.
        on_loaded: called when a load has ended, with each partition whose readers wait for the range.
        damage_log: logs damaged objects. The requests that get the error of a load use the same log, so that each
            damage is logged once.

    Attributes:
        loaded_size: how many bytes the store has returned since the start.
    """

    def __init__(
        self,
        store: "ObjectStore | None",
        cache: RangeCache,
        tasks: Tasks,
        on_loaded: Callable[[Partition], None],
        damage_log: DamageLog,
    ) -> None:
        self._store = store
        self._cache = cache
        self._tasks = tasks
        self._on_loaded = on_loaded
        self._damage_log = damage_log
        # The messages about ranges that were damaged at their last load, oldest first.
        self._damaged: dict[ObjectRange, str] = {}
        self._loads: dict[ObjectRange, _Load] = {}
        self._failed: dict[ObjectRange, tuple[float, StablelogError]] = {}
        self._logged: set[str] = set()  # The keys whose failure was logged since their last success.
        self._failures = StoreFailures()
        self._room = asyncio.Semaphore(THREADS)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="remote reads")
        self.loaded_size = 0

    def start_loads(
        self, partition: Partition | None, missing: NotLoadedError
    ) -> list["asyncio.Future[None]"]:
        """Begin to load the missing byte ranges of a read.

        Args:
            partition: the partition that is read; it is passed to `on_loaded` when a load has ended. None if nothing
                waits for this call.
            missing: the error that the read has raised, which names the ranges.

        Returns:
            A future for each range that is being loaded. It is done when the load has ended.

        Raises:
            UnavailableError: a range could not be loaded a moment ago, the store does not answer, or there is no store.
            DamageError: an object is missing, or its bytes do not match the checksums in the manifest, the list of the
                partition's segments in the store.
        """
        if self._store is None:
            raise UnavailableError(
                "the broker has no object store: set stablelog.remote.url, and restart the broker"
            )
        now_s = asyncio.get_running_loop().time()
        self._cache.make_room(missing.size)
        loads = []
        for wanted in missing.ranges:
            failed = self._failed.get(wanted)
            if failed is not None:
                if now_s < failed[0]:
                    raise failed[1]
                del self._failed[wanted]
            load = self._start_load(wanted)
            if partition is not None:
                load.waiting[partition] = None
            if now_s - load.begun_s > SLOW_S:
                raise UnavailableError(
                    f"{self._store.url}/{wanted.key} was requested {now_s - load.begun_s:.0f} s ago, and the store has "
                    "not answered"
                )
            loads.append(load.done)
        return loads

    def read_ahead(self, ranges: Iterable[ObjectRange]) -> None:
        """Begin to load byte ranges of objects before a reader requests them. Nothing is loaded if all threads are
        busy: loads for which readers wait come first.
        """
        for wanted in ranges:
            if self._store is None or self._room.locked() or len(self._loads) >= THREADS:
                return
            if self._cache.get(wanted) is None and wanted not in self._failed:
                self._start_load(wanted)

    async def load_ranges(self, partition: Partition | None, missing: NotLoadedError) -> None:
        """Load the missing byte ranges of a read, and return when all are loaded. After WAIT_S_MAX seconds this method
        raises UnavailableError, while the loads go on. Raises the errors of `start_loads`, too.
        """
        _, late = await asyncio.wait(self.start_loads(partition, missing), timeout=WAIT_S_MAX)
        if late:
            assert self._store is not None
            raise UnavailableError(
                f"{self._store.url}/{missing.ranges[0].key} was requested {WAIT_S_MAX:g} s ago, and the store has not "
                "answered"
            )
        failed = [self._failed[one][1] for one in missing.ranges if one in self._failed]
        if failed:
            raise failed[0]

    async def call_when_loaded(self, call: Callable[[], Result]) -> Result:
        """Call a function until it raises no NotLoadedError: after each such error, load the byte ranges that it names
        from the store. Return the function's result.

        Raises:
            UnavailableError: the store does not answer.
            DamageError: the bytes in the store do not match the checksums in the manifest, the list of a partition's
                segments.
        """
        while True:
            try:
                return call()
            except NotLoadedError as missing:
                await self.load_ranges(None, missing)

    def _start_load(self, wanted: ObjectRange) -> _Load:
        load = self._loads.get(wanted)
        if load is None:
            load = self._loads[wanted] = _Load(asyncio.get_running_loop().time())
            self._tasks.start("remote read", self._load, wanted, load)
        return load

    async def _load(self, wanted: ObjectRange, load: _Load) -> None:
        # The ranges that the new one displaces are written to the disk before the next load begins: until then they
        # are in memory, beside those that are loaded.
        async with self._room:
            kept = await self._load_and_notify(wanted, load)
            for one in kept:
                await in_thread(self._threads, self._cache.write_to_disk, *one)

    async def _load_and_notify(self, wanted: ObjectRange, load: _Load) -> list[tuple[ObjectRange, Buffer]]:
        """Load a byte range of an object into the cache, and notify the partitions that wait for it. Return the ranges
        that the cache has dropped from memory to make room, with their bytes: the caller writes them to the disk.
        """
        try:
            content = await in_thread(
                self._threads, self._cache.load_range, wanted, lambda: self._fetch(wanted)
            )
            self._logged.discard(wanted.key)
            self._damage_log.forget_message(self._damaged.pop(wanted, ""))
            return self._cache.put(wanted, content)
        except StablelogError as error:
            self._record_failure(wanted, error)
            return []
        finally:
            del self._loads[wanted]
            load.done.set_result(None)
            for partition in load.waiting:
                self._on_loaded(partition)

    def _record_failure(self, wanted: ObjectRange, error: StablelogError) -> None:
        assert self._store is not None
        if isinstance(error, ObjectMissingError):
            error = DamageError(f"{self._store.url}/{wanted.key} is missing, and a manifest names it")
        now_s = asyncio.get_running_loop().time()
        self._failed = {one: failed for one, failed in self._failed.items() if failed[0] > now_s}
        self._failed[wanted] = now_s + ERROR_S, error
        if isinstance(error, DamageError):
            if wanted not in self._damaged and len(self._damaged) == MESSAGES_MAX:
                del self._damaged[next(iter(self._damaged))]
            self._damaged[wanted] = str(error)
            self._damage_log.log_once(error, FAILED)
        elif wanted.key not in self._logged and (
            not isinstance(error, StoreError) or self._failures.is_new(error)
        ):
            self._logged.add(wanted.key)
            log.error("%s: %s", FAILED, error)

    def _fetch(self, wanted: ObjectRange) -> Buffer:
        """Request a byte range of an object from the store. Return the bytes after a check against the CRCs in the
        manifest, the list of a partition's segments. Runs in a thread.
        """
        assert self._store is not None
        content: Buffer
        if wanted.size:
            content = self._store.get_range(wanted.key, wanted.start, wanted.size)
            from stablelog.tier.segment_bytes import check_proof  # few brokers have a store

            check_proof(content, wanted, self._store.url)
        else:
            try:
                content = self._store.get(wanted.key)
            except ObjectMissingError:
                # The transaction index is missing: a segment of Apache Kafka without aborted transactions has none.
                content = b""
        self.loaded_size += len(content)
        self._failures.clear_logged()
        return content

    def close(self) -> None:
        """Shut down the threads that load ranges. The results of running loads are not used."""
        self._threads.shutdown(wait=True, cancel_futures=True)
