"""The parts of a manifest: which segments of a long list are in objects of their own.

A manifest is published after each copied segment, and a partition may keep 100,000 segments. So the manifest itself has
only the newest segments, and segments whose deletion has begun. All others are in parts of PART_COUNT segments. A part
is written once. If a segment in a part changes, because it is being deleted, the next manifest lists the segments of
that part itself, or has them in new parts. A part that no manifest names is never read, like the objects of a failed
copy.
"""

import uuid
from collections.abc import Callable
from typing import Final

from stablelog.tier.manifest import Manifest, Part, encode_part, place_of

PART_COUNT: Final = 1_000  # The number of segments in a part.


def divided(
    manifest: Manifest,
    earlier: Manifest,
    now_ms: int,
    new_id: Callable[[], uuid.UUID] = uuid.uuid4,
    *,
    part_count: int,
) -> tuple[Manifest, list[tuple[Part, bytes]]]:
    """Divide the segments of the next manifest into parts.

    Args:
        manifest: the next manifest.
        earlier: the manifest that was published last.
        now_ms: the time of the broker's clock.
        new_id: returns the id of a new part.
        part_count: the number of segments in a part.

    Returns:
        The next manifest with its parts, and the new parts with the contents of their objects. These objects must be
        durable before the manifest is published. The manifest itself has fewer than `2 * part_count` segments before
        its first part, between two parts, and after its last part.
    """
    segments = manifest.segments
    parts: list[Part] = []
    fresh: list[tuple[Part, bytes]] = []

    def add_between(begin: int, end: int) -> None:
        while end - begin >= 2 * part_count:
            part, content = encode_part(new_id(), segments[begin : begin + part_count], now_ms)
            parts.append(part)
            fresh.append((part, content))
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
