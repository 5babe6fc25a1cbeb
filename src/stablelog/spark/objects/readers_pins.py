"""The pins of a read: while a query runs, the broker deletes no segment that the query may still read (`tier.pins`).

The driver creates a pin in a partition before it reads the manifest. Spark gives the driver of a batch no moment at
which the batch ends, so the pin stays until the broker has seen it for an hour. A task that runs later renews the pin.
The id of a renewal follows from the first id and the time, so that all tasks of a read renew a pin only once.
"""

import logging
import os
import threading
import time
import uuid
from typing import Final

from stablelog.env.objects.store import ObjectStore
from stablelog.errors import ObjectExists, StoreError, Unavailable
from stablelog.spark.planning import ReadersPin
from stablelog.tier.names import RemotePartition
from stablelog.tier.pins import RENEWAL_S, Pin, encode_pin

log = logging.getLogger(__name__)
OFFSET_MAX: Final = 2**63 - 1
REFUSED: set[str] = set()  # The stores in which this process must not write.
_lock = threading.Lock()


def create_pin(
    store: ObjectStore, partition: RemotePartition, start: int = 0, end: int = OFFSET_MAX
) -> ReadersPin | None:
    """Create the pin of a read in a partition. Return None if the store rejects it: then the read goes on without a
    pin, and a warning says so.
    """
    pin = ReadersPin(uuid.uuid4(), time.time(), start, end)
    return pin if _create(store, partition, pin, pin.pin_id) else None


def renew_pin(store: ObjectStore, partition: RemotePartition, pin: ReadersPin) -> None:
    """Create the next pin of a read if its last one is RENEWAL_S seconds old. A failure is logged."""
    period = int((time.time() - pin.created_s) // RENEWAL_S)
    if period > 0:
        _create(store, partition, pin, uuid.uuid5(pin.pin_id, str(period)))


def is_old(pin: ReadersPin) -> bool:
    """Whether the driver of a stream creates a new pin in place of this one."""
    return time.time() - pin.created_s > RENEWAL_S


def remove_pin(store: ObjectStore, partition: RemotePartition, pin: ReadersPin) -> None:
    """Delete the pin of a read that has ended. A failure is logged: the broker deletes the pin later."""
    try:
        store.delete(partition.pin_key(pin.pin_id))
    except Unavailable as error:
        log.info("a pin stays in the store for an hour: %s", error)


def _create(store: ObjectStore, partition: RemotePartition, pin: ReadersPin, pin_id: uuid.UUID) -> bool:
    if store.url in REFUSED:
        return False
    reader = f"Spark, process {os.getpid()}"
    try:
        store.create(partition.pin_key(pin_id), encode_pin(Pin(pin.start, pin.end, reader)))
    except ObjectExists:
        return True  # Another task has created it.
    except StoreError as error:
        with _lock:
            if store.url in REFUSED:
                return False
            if error.is_rejected:
                REFUSED.add(store.url)
        log.warning(
            "the read goes on without a pin, so that a broker may delete what it reads: %s. Allow this user to create "
            "objects in %s, or keep the topic's retention longer than the query",
            error,
            store.url,
        )
        return False
    return True
