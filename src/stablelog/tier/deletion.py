"""Deletion from the object store: which objects of a partition may be deleted, and when.

Three kinds of objects are deleted:

- *Marked segments.* Retention moves the log start, and the next manifest (list of the partition's segments in the
  store) marks the segments before the log start. The objects of a segment are deleted when the delay of deletions has
  passed since this broker first knew of a published manifest with the mark, and no valid pin protects the segment. (A
  pin is an object by which a reader keeps segments from deletion: `tier.pins`.) The next manifest no longer names the
  segment.
- *Orphans*: objects of segments, and parts of manifests, that the last manifest does not name, because an upload or a
  crash left them, or because a part was replaced. Only the broker that owns the chain can publish a manifest that names
  an object, and it uploads nothing while this module looks. So an object that was listed, and that the last manifest
  does not name, stays without a name. It is deleted when it was listed in a *sweep*, and again in a sweep after the
  delay. The delay protects readers that use an earlier manifest. While any pin is valid, no orphan is deleted.
- *Old manifests*, and pins that are no longer valid.

Before this module looks for objects to delete, it lists the chain of manifests and checks that no broker of a greater
epoch has taken over: such a broker has fenced this one, and a fenced broker deletes nothing. If a broker is fenced
between this listing and a deletion, no harm is done. A mark is never withdrawn. And a manifest of the broker that has
taken over names none of the listed orphans, because this broker uploads each segment under a new id.

The delay is measured by the clock of this broker, which no other clock has to agree with. It begins again at each start
of the broker.

Source: KIP-405 (log start first, then the objects).
"""

import math
import uuid
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import takewhile
from typing import Final

from stablelog.errors import DamageError, UnknownFormatError
from stablelog.tier.chain import MANIFESTS_KEPT, Chain, Delete, Get, List, Steps
from stablelog.tier.manifest import Manifest
from stablelog.tier.names import INDEXES, LOG, RemotePartition
from stablelog.tier.pins import VALID_S, Pin, decode_pin
from stablelog.tier.records import SegmentState

MANIFEST_COUNT_MAX: Final = 5 * MANIFESTS_KEPT  # With so many manifests, the old ones are deleted.
# While a pin protects a segment whose delay has passed, the pins are listed again after this time, in seconds.
PIN_PAUSE_S: Final = 60.0
# The store may apply an upload up to this time after the upload has failed, in seconds. A sweep in this time is repeated.
LATE_S: Final = 300.0
EVERYTHING: Final = Pin(0, 2**63 - 1, "")


class ObjectDeletion:
    """Decides which objects of one partition are deleted from the store, and deletes them. This broker must have taken
    over the chain of the partition's manifests (lists of its segments in the store), so that no other broker can
    publish one.

    Args:
        partition: the partition.
        chain: its chain of manifests.
        manifest: the last published manifest.
        now_s: the present time of a clock that is never set back, in seconds.

    Attributes:
        gone: the ids of the segments whose objects are deleted, but which the last manifest still names. The caller
            leaves them out of the next manifest.
    """

    def __init__(self, partition: RemotePartition, chain: Chain, manifest: Manifest, now_s: float) -> None:
        self._partition = partition
        self._chain = chain
        self._parts: set[uuid.UUID] = set()
        # When the mark of a segment was first known, oldest first.
        self._marked_s: dict[uuid.UUID, float] = {}
        self._retry_s = -math.inf  # Until then, pins protect all segments whose delay has passed.
        # The known pins by key. A pin is valid for VALID_S seconds from the time when this broker has first listed it.
        self._pins: dict[str, tuple[Pin, float]] = {}
        self._sweep_s = math.inf  # When the next sweep begins, without the delay.
        self._suspected_s = -math.inf  # When an orphan may have come into being.
        self._unnamed_s: dict[str, float] = {}  # When a sweep has first listed an orphan.
        self._manifest_count = MANIFESTS_KEPT  # How many manifests the chain may have.
        # What `delete_found` deletes next: the id of a segment and the keys of all its objects, or None and another key.
        self._found: deque[tuple[uuid.UUID | None, list[str]]] = deque()
        self.gone: set[uuid.UUID] = set()
        self.set_manifest(manifest, now_s)
        self.expect_orphans(now_s)  # A crash may have ended an upload.

    def set_manifest(self, manifest: Manifest, now_s: float) -> None:
        """Take note of a newly published manifest, the list of a partition's segments in the store. The objects of
        segments that it marks for deletion are deleted later. Objects that it no longer names become orphans.
        """
        marked = takewhile(lambda one: one.state is SegmentState.DELETE_STARTED, manifest.segments)
        known = self._marked_s
        self._marked_s = {one.segment_id: known.get(one.segment_id, now_s) for one in marked}
        parts = {part.part_id for part in manifest.parts}
        if self._parts - parts or known.keys() - self._marked_s.keys() - self.gone:
            self.expect_orphans(now_s)
        self.gone &= self._marked_s.keys()
        self._parts = parts
        self._manifest_count += 1

    def expect_orphans(self, now_s: float) -> None:
        """Plan a sweep, a search of the store for orphans. An orphan is an object that the last manifest (list of
        segments) does not name: an upload has failed, or a new manifest no longer names an object.
        """
        self._suspected_s = now_s
        self._sweep_s = min(self._sweep_s, now_s)

    @property
    def is_swept(self) -> bool:
        """Whether there is nothing to do about orphans, objects that no manifest (list of the partition's segments)
        names: no search for them is planned, and all orphans that were found are deleted.
        """
        return self._sweep_s == math.inf and not self._found

    def is_due(self, now_s: float, delay_s: float) -> bool:
        """Return whether there may be something to delete: whether `find_objects` may find an object now, or
        `delete_found` has one to delete. `delay_s` is how long objects stay after they are no longer needed, in
        seconds.
        """
        if self._found:
            return True
        if not self._chain.is_settled:
            # The last manifest in the store may name objects that this broker does not know it to name.
            return False
        return (
            self._is_marked_due(now_s, delay_s)
            or self._sweep_s + delay_s <= now_s
            or self._manifest_count >= MANIFEST_COUNT_MAX
        )

    def _is_marked_due(self, now_s: float, delay_s: float) -> bool:
        oldest_s = next(
            (since_s for one, since_s in self._marked_s.items() if one not in self.gone), math.inf
        )
        return self._retry_s <= now_s and oldest_s + delay_s <= now_s

    def find_objects(self, manifest: Manifest, now_s: float, delay_s: float) -> Steps[None]:
        """List the partition's objects in the store, and remember for `delete_found` those that may be deleted now.
        This is a generator: it yields its requests to the store, and the caller sends them. Nothing is done while
        `delete_found` still has objects to delete. The caller makes sure that no upload is running: the objects of an
        upload would look like orphans, because no manifest (list of segments) names them yet.

        Args:
            manifest: the last published manifest.
            now_s: the present time of a clock that is never set back, in seconds.
            delay_s: how long objects stay after they are no longer needed, in seconds, so that readers of earlier
                manifests can finish.

        Raises:
            FencedError: a broker of a greater epoch has taken over.
        """
        if self._found:
            return
        assert self._chain.is_settled
        is_sweep = self._sweep_s + delay_s <= now_s
        listed = (yield List(self._partition.directory)) if is_sweep else []
        old = yield from self._chain.removable_manifests()  # After the listing of orphans, and before each deletion.
        found: list[tuple[uuid.UUID | None, list[str]]] = []
        if is_sweep or self._is_marked_due(now_s, delay_s):
            pins = yield from self._valid_pins(now_s)
            found += self._due_segments(manifest, pins, now_s, delay_s)
            if is_sweep:
                old = self._sweep_orphans([key for key, _ in listed], manifest, pins, now_s, delay_s) + old
        self._found.extend([*found, *((None, [key]) for key in old)])
        self._manifest_count = MANIFESTS_KEPT

    def delete_found(self, count_max: int) -> Steps[bool]:
        """Delete the objects that `find_objects` has found. An upload may be running meanwhile. This is a generator: it
        yields its requests to the store, and the caller sends them.

        The objects may be deleted at any time after `find_objects`: segments that are marked for deletion are never
        used again, no manifest (list of the partition's segments) will name an orphan, which is an object that the last
        manifest does not name, and old manifests are never needed again.

        Args:
            count_max: at most so many segments and other objects are deleted. The next call continues.

        Returns:
            True if something is left to delete, so that the caller calls again. If a request fails, the next call
            repeats it.
        """
        for _ in range(min(count_max, len(self._found))):
            segment_id, keys = self._found[0]
            for key in keys:
                yield Delete(key)
            self._found.popleft()
            if segment_id is not None:
                self.gone.add(segment_id)
        return bool(self._found)

    def _due_segments(
        self, manifest: Manifest, pins: list[Pin], now_s: float, delay_s: float
    ) -> Iterator[tuple[uuid.UUID, list[str]]]:
        is_pinned = False
        marked_before_s = now_s - delay_s
        for segment in takewhile(
            lambda one: self._marked_s.get(one.segment_id, math.inf) <= marked_before_s, manifest.segments
        ):
            if segment.segment_id in self.gone:
                continue
            if any(pin.protects(segment.base_offset, segment.end_offset) for pin in pins):
                is_pinned = True
                continue
            key = partial(self._partition.segment_key, segment.base_offset, segment.segment_id)
            yield segment.segment_id, [key(INDEXES), key(LOG)]
        self._retry_s = now_s + PIN_PAUSE_S if is_pinned else -math.inf

    def _sweep_orphans(
        self, listed: list[str], manifest: Manifest, pins: list[Pin], now_s: float, delay_s: float
    ) -> list[str]:
        """Return the orphans (objects that the last manifest, the list of segments, does not name) that may be deleted:
        those that an earlier sweep, a search like this one, has also found at least `delay_s` seconds ago. None is
        deleted while a reader has a valid pin, an object that keeps segments from deletion. The other orphans are
        remembered for the next sweep.
        """
        named = named_keys(self._partition, manifest)
        orphans = [key for key in listed if key not in named and is_segment_or_part(self._partition, key)]
        self._unnamed_s = {key: self._unnamed_s.get(key, now_s) for key in orphans}
        known = [] if pins else [key for key in orphans if self._unnamed_s[key] + delay_s <= now_s]
        for key in known:
            del self._unnamed_s[key]
        is_over = not self._unnamed_s and self._suspected_s + LATE_S <= now_s
        self._sweep_s = math.inf if is_over else now_s
        return known

    def _valid_pins(self, now_s: float) -> Steps[list[Pin]]:
        """Return the valid pins, objects by which readers of the store keep segments from deletion. Pins that have
        expired are deleted from the store, because no reader renews them. A pin that cannot be decoded counts as one
        that protects all segments.
        """
        keys = [key for key, _ in (yield List(self._partition.pins))]
        self._pins = {key: self._pins[key] for key in keys if key in self._pins}
        for key in keys:
            if key in self._pins:
                continue
            content = yield Get(key)
            if content is None:
                continue  # Its reader has just deleted it.
            try:
                pin = decode_pin(content)
            except (DamageError, UnknownFormatError):
                pin = EVERYTHING
            self._pins[key] = (pin, now_s + VALID_S)
        for key in [key for key, (_, end_s) in self._pins.items() if end_s <= now_s]:
            yield Delete(key)
            del self._pins[key]
        return [pin for pin, _ in self._pins.values()]


def named_keys(partition: RemotePartition, manifest: Manifest) -> set[str]:
    """Return the keys of all objects that a manifest names: the objects of the segments that it lists, and its parts,
    which list older segments.
    """
    return {
        *(
            partition.segment_key(row.base_offset, row.segment_id, kind)
            for row in manifest.segments
            for kind in (LOG, INDEXES)
        ),
        *(partition.part_key(part.base_offset, part.part_id) for part in manifest.parts),
    }


def is_segment_or_part(partition: RemotePartition, key: str) -> bool:
    """Return whether a key in a partition's directory is that of a segment's object, or of a part of a manifest, an
    object that lists older segments. These two kinds of objects may become orphans, which no manifest names.
    """
    return partition.is_segment(key) or key.startswith(f"{partition.directory}/part/")
