"""Garbage in an object store: objects that no broker or reader needs. It is found and deleted without a broker.

A broker deletes the garbage that it knows of (`tier.deletion`). It does not know the objects that it has lost with its
disk, for example those of deleted topics after a restore; and a store may have no broker any more.

Only the broker that publishes a partition's manifests (lists of its segments in the store) knows which uploads are
under way. So an object that the last manifest does not name counts as garbage only if it is old. All ages are
differences of two times of the store's clock.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from stablelog.env.objects.attempts import StoredObject
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError
from stablelog.tier.chain import LINK
from stablelog.tier.deletion import is_segment_or_part, named_keys
from stablelog.tier.names import RemotePartition
from stablelog.tier.pins import VALID_S
from stablelog.tier.prefix import Prefix

CLOCK_DIRECTORY: Final = "check"


@dataclass(frozen=True, slots=True)
class Garbage:
    """The garbage of one partition: its objects that can be deleted.

    Attributes:
        partition: the partition.
        is_deleted: whether its topic was deleted.
        is_pinned: whether a reader has a pin, an object by which it keeps segments from being deleted. Nothing may be
            deleted then.
        objects: the objects, in the order in which they are to be deleted.
    """

    partition: RemotePartition
    is_deleted: bool
    is_pinned: bool
    objects: tuple[StoredObject, ...]

    @property
    def size(self) -> int:
        """The size of all objects in bytes."""
        return sum(one.size for one in self.objects)


def store_time_ms(store: ObjectStore) -> int:
    """Return the time of the store's clock, which is the modification time of an object that this function creates and
    deletes. Raises StoreError.
    """
    key = f"{CLOCK_DIRECTORY}/clock-{secrets.token_hex(8)}"
    store.create(key, key.encode())
    try:
        (found,) = [one for one in store.list_after(CLOCK_DIRECTORY) if one.key == key]
    finally:
        store.delete(key)
    return found.modified_ms


def find_garbage(
    prefix: Prefix, partition: RemotePartition, *, deleted_ms: int | None, now_ms: int, age_ms: int
) -> Garbage:
    """Find the garbage of a partition: its objects in the store that no broker or reader needs.

    Args:
        prefix: the prefix of the store, under which the broker keeps all its objects.
        partition: the partition.
        deleted_ms: when the deletion of its topic was recorded in the store; None if the topic was not deleted.
        now_ms: the time of the store's clock.
        age_ms: an object that the last manifest (the list of the partition's segments) does not name counts as garbage
            only if it is at least so old, in ms: a younger one may belong to an upload that is still under way. If the
            topic was deleted, the age of its objects does not matter.

    Returns:
        The garbage, which may be no objects. If a reader has a pin (an object that protects segments from deletion),
        `is_pinned` is True, and nothing may be deleted.

    Raises:
        StoreError: the store does not answer, or rejects a request.
        UnknownFormatError: a later release has written the manifest.
        DamageError: the manifest, or a part of it in an object of its own, is damaged or missing, or a broker has
            published a manifest after the topic was deleted. The message names the key of the object.
    """
    # The objects are listed before the manifest is read, so that the manifest names each object that was published.
    objects = list(prefix.store.list_after(partition.directory))
    pins = [one for one in objects if one.key.startswith(f"{partition.pins}/")]
    is_pinned = any(now_ms - one.modified_ms < VALID_S * 1000 for one in pins)
    unnamed = [one for one in objects if is_segment_or_part(partition, one.key)]
    if deleted_ms is not None:
        # Claims and fences stay: they stop a broker that does not know that the topic was deleted.
        links = [one for one in objects if one.key.startswith(f"{partition.chain}/") and one.size > LINK.size]
        if any(one.modified_ms > deleted_ms for one in links):
            raise DamageError(
                f"{partition.deleted_key} says that the topic was deleted, and a broker has published a manifest since: "
                "nothing is deleted. If the topic is in use, remove that object"
            )
        return Garbage(partition, True, is_pinned, (*unnamed, *pins, *links))
    named = _named_keys(prefix, partition) if unnamed else set()
    old = [one for one in unnamed if one.key not in named and now_ms - one.modified_ms >= age_ms]
    return Garbage(partition, False, is_pinned, tuple(old))


def delete_garbage(prefix: Prefix, garbage: Garbage) -> Iterator[StoredObject]:
    """Delete garbage, and yield each object after its deletion. The last manifest (the list of the partition's
    segments) is read again first, and objects that it names by now are kept. Raises the errors of `find_garbage`.
    """
    assert not garbage.is_pinned, "a reader needs it"
    named = set() if garbage.is_deleted else _named_keys(prefix, garbage.partition)
    for one in garbage.objects:
        if one.key not in named:
            prefix.store.delete(one.key)
            yield one


def _named_keys(prefix: Prefix, partition: RemotePartition) -> set[str]:
    """Return the keys of all objects that the last manifest of a partition (the list of its segments in the store)
    names.

    Raises:
        DamageError: the partition has no manifest, or the manifest or a part of it is damaged or missing.
        StoreError, UnknownFormatError: the manifest cannot be read: see `find_garbage`.
    """
    manifest = prefix.last_manifest(partition)
    if manifest is None:
        # If the manifests were lost, the segments are not garbage.
        raise DamageError(
            f"{partition.chain} has no manifest (the list of segments), but the partition has segments: no "
            "segment is deleted. Restore the manifests"
        )
    return named_keys(partition, manifest)
