"""The pins of a read: objects in the store that tell the broker to delete no segment that a running query may still
read (`tier.pins`).

The driver creates a pin in each partition before it reads the partition's list of segments (the manifest). Spark does
not tell a source when a query ends, so the pins stay until the broker has seen them for an hour. Each task renews all
pins of its read, because the task of a partition may begin hours after the planning. The keys of the renewals follow
from the id of the read and from the time, so that all tasks create a renewal only once.
"""

import logging
import os
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Final
from weakref import WeakSet

from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import ObjectExistsError, StoreError, UnavailableError
from stablelog.spark.objects.parallel_requests import map_parallel
from stablelog.spark.planning import ReadersPins
from stablelog.tier.names import RemotePartition
from stablelog.tier.pins import RENEWAL_S, Pin, encode_pin

log = logging.getLogger(__name__)
OFFSET_MAX: Final = 2**63 - 1
_lock = threading.Lock()
_refused: "WeakSet[ObjectStore]" = WeakSet()  # The stores that have rejected a pin.
_renewed: set[tuple[uuid.UUID, int]] = set()  # By read: the renewals that this process has made.


class DriversPins:
    """The pins that the driver of a read creates. A pin is an object that asks the broker to keep the segments of a
    partition.

    Args:
        store: the object store.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._read_id, self._created_s = uuid.uuid4(), time.time()
        self._starts: dict[RemotePartition, int] = {}

    @property
    def are_old(self) -> bool:
        """Whether the pins (objects that keep segments from being deleted) are older than RENEWAL_S seconds. The driver
        of a stream then replaces them by new ones.
        """
        return time.time() - self._created_s > RENEWAL_S

    def create(self, starts: Mapping[RemotePartition, int]) -> None:
        """Create a pin in each of these partitions that has none yet: an object because of which the broker keeps the
        segments from the partition's start offset on. If the store rejects a pin, a warning is logged and the read
        continues without it.
        """
        new = [one for one in starts if one not in self._starts]
        pinned = map_parallel(lambda one: _create(self._store, one, starts[one], self._read_id, 0), new)
        self._starts |= {one: starts[one] for one, is_pinned in zip(new, pinned, strict=True) if is_pinned}

    @property
    def for_tasks(self) -> ReadersPins | None:
        """Return the pins (objects that keep segments from being deleted) in the form in which tasks receive them; None
        if no pin was created.
        """
        topics: dict[tuple[str, uuid.UUID], list[tuple[int, int]]] = {}
        for (topic, topic_id, number), start in self._starts.items():
            topics.setdefault((topic, topic_id), []).append((number, start))
        rows = tuple((*topic, tuple(sorted(numbers))) for topic, numbers in topics.items())
        return ReadersPins(self._read_id, self._created_s, rows) if rows else None

    def remove(self) -> None:
        """Delete the pins, the objects that keep segments from being deleted, at the end of the read. A failure is
        logged: the broker deletes expired pins later.
        """
        keys = [_pin_key(partition, self._read_id, 0) for partition in self._starts]
        try:
            map_parallel(self._store.delete, keys)
        except UnavailableError as error:
            log.info(
                "the pins of the read (objects that keep its segments from being deleted) cannot be "
                "removed, and expire in an hour: %s",
                error,
            )
        self._starts.clear()


def renew_pins(store: ObjectStore, pins: ReadersPins | None) -> None:
    """Renew all pins of a read (objects that keep segments from being deleted) if they are older than RENEWAL_S
    seconds, so that they do not expire while tasks run. Only the first caller in a process sends requests. A failure is
    logged.
    """
    if pins is None:
        return
    period = int((time.time() - pins.created_s) // RENEWAL_S)
    with _lock:
        if period <= 0 or (pins.read_id, period) in _renewed:
            return
        _renewed.add((pins.read_id, period))
    starts = [
        (RemotePartition(topic, topic_id, number), start)
        for topic, topic_id, numbers in pins.topics
        for number, start in numbers
    ]
    map_parallel(lambda one: _create(store, *one, pins.read_id, period), starts)


def _pin_key(partition: RemotePartition, read_id: uuid.UUID, period: int) -> str:
    return partition.pin_key(uuid.uuid5(read_id, f"{partition.directory} {period}"))


def _create(
    store: ObjectStore, partition: RemotePartition, start: int, read_id: uuid.UUID, period: int
) -> bool:
    """Create a pin in the store: an object that asks the broker to keep the segments of a partition from the offset
    `start` on. `period` is 0 for the first pin of the read, and the number of the renewal for a later one; the key of
    the pin follows from it and from the id of the read. Return True if the pin exists now. If the store rejects it, for
    example because the reader may not write there, log a warning and return False.
    """
    if store in _refused:
        return False
    pin = Pin(start, OFFSET_MAX, f"Spark, process {os.getpid()}")
    try:
        store.create(_pin_key(partition, read_id, period), encode_pin(pin))
    except ObjectExistsError:
        return True  # Another task has created it.
    except StoreError as error:
        with _lock:
            if store in _refused:
                return False
            if error.is_rejected:
                _refused.add(store)
        log.warning(
            "the read goes on without a pin (an object that keeps segments from being deleted), so a "
            "broker may delete segments that the read needs: %s. Allow this user to create objects in %s, "
            "or keep the topic's retention longer than the query",
            error,
            store.url,
        )
        return False
    return True
