"""The parts of a manifest, the list of a partition's segments in the store: which segments of a long list are in
objects of their own.

A manifest is published after each copied segment, and a partition may keep 100,000 segments. So the manifest itself has
only the newest segments, and segments that change soon. All others are in parts of PART_COUNT segments. A part is
written once. If a segment in a part changes, because it is being deleted, the next manifest lists the segments of that
part itself, or has them in new parts. A part that the last manifest no longer names is never read again, and is deleted
later.

Segments change one after another, in the order of their offsets: retention marks them for deletion, and later they
leave the manifest. No new part therefore begins shortly after the log start or shortly after the start of the list. A
segment of such a part would change at one of the next publications, and the broker would write a part for each deleted
segment.
"""

import uuid
from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter
from typing import Final

from stablelog.tier.manifest import Manifest, ManifestPart, encode_part, place_of

PART_COUNT: Final = 1_000  # The number of segments in a part.


def divide_into_parts(
    manifest: Manifest,
    earlier: Manifest,
    now_ms: int,
    new_id: Callable[[], uuid.UUID] = uuid.uuid4,
    *,
    part_count: int,
) -> tuple[Manifest, list[tuple[ManifestPart, bytes]]]:
    """Divide the list of segments of the next manifest into parts, objects that list older segments, so that the
    manifest itself stays small. The parts of the earlier manifest whose segments are unchanged are kept, so that their
    objects need not be written again.

    Args:
        manifest: the next manifest.
        earlier: the manifest that was published last.
        now_ms: the time of the broker's clock.
        new_id: returns the id of a new part.
        part_count: the number of segments in a part.

    Returns:
        A pair. The first value is the next manifest with its parts. The manifest itself has at most `part_count`
        segments between two parts and after its last part, and a quarter more after the start of the list and after the
        log start. The second value is a list of the new parts, each with the content of its object. These objects must
        be durable before the manifest is published.
    """
    segments = manifest.segments
    parts: list[ManifestPart] = []
    fresh: list[tuple[ManifestPart, bytes]] = []
    fronts = (0, bisect_right(segments, manifest.log_start, key=attrgetter("end_offset")))

    def add_between(begin: int, end: int) -> None:
        for front in fronts:
            if front < end and begin < front + part_count // 4:
                add(begin, front)
                begin = front + part_count // 4
        add(begin, end)

    def add(begin: int, end: int) -> None:
        while end - begin > part_count:
            fresh.append(encode_part(new_id(), segments[begin : begin + part_count], now_ms))
            parts.append(fresh[-1][0])
            begin += part_count

    at = 0
    for part in earlier.parts:
        place = place_of(segments, part.base_offset)
        if segments[place : place + part.segment_count] != earlier.segments_of(part):
            continue
        add_between(at, place)
        parts.append(part)
        at = place + part.segment_count
    add_between(at, len(segments))
    return manifest._replace(parts=tuple(parts)), fresh
