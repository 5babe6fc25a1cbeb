"""What happened when: the curves of progress, the kills, and the transactions of one partition."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from stablelog.batch.header import headers_in
from stablelog.batch.markers import MarkerType, read_marker

WRITTEN, FOLLOWED, STREAMED = "committed by the producers", "read by a consumer group", "copied by Spark"
CURVES = (WRITTEN, FOLLOWED, STREAMED)


class Kill(NamedTuple):
    """A kill -9: when, in seconds since the start, what was killed, and whose curve it stops."""

    at_s: float
    what: str
    curve: str


@dataclass(slots=True)
class History:
    """What the scene has seen.

    Attributes:
        began_s: the start, by the monotonic clock.
        began_ms: the start, in ms since 1970.
        progress: for each curve, when how many flights had been reached.
        kills: the kills, in order.
    """

    began_s: float = field(default_factory=time.monotonic)
    began_ms: float = field(default_factory=lambda: time.time() * 1000)
    progress: dict[str, list[tuple[float, int]]] = field(
        default_factory=lambda: {name: [(0.0, 0)] for name in CURVES}
    )
    kills: list[Kill] = field(default_factory=list)

    def now_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began_s

    def reached(self, curve: str, count: int) -> None:
        """Note how many flights a curve has reached by now."""
        self.progress[curve].append((self.now_s(), count))

    def killed(self, what: str, curve: str) -> None:
        """Note that something is killed now."""
        self.kills.append(Kill(self.now_s(), what, curve))

    @property
    def end_s(self) -> float:
        """When the last curve has ended."""
        return max(points[-1][0] for points in self.progress.values())


class Txn(NamedTuple):
    """A transaction in one partition.

    Attributes:
        first_offset: the offset of its first record.
        marker_offset: the offset of its marker.
        committed: whether it was committed.
        began_s: when its first record was written, in seconds since the start of the scene.
        ended_s: when its marker was written.
    """

    first_offset: int
    marker_offset: int
    committed: bool
    began_s: float
    ended_s: float


def read_transactions(partition_directory: Path, began_ms: float) -> list[Txn]:
    """The ended transactions of a partition, from its files.

    Args:
        partition_directory: the partition's directory.
        began_ms: the start of the scene, in ms since 1970.
    """
    found: list[Txn] = []
    begun: dict[int, tuple[int, float]] = {}
    for path in sorted(partition_directory.glob("*.log")):
        content = path.read_bytes()
        for position, header in headers_in(content):
            at_s = (header.base_timestamp - began_ms) / 1000
            if not header.is_control:
                if header.is_transactional:
                    begun.setdefault(header.producer_id, (header.base_offset, at_s))
                continue
            marker = read_marker(content, position)
            first = begun.pop(header.producer_id, None)
            if marker is not None and first is not None:
                committed = marker.type is MarkerType.COMMIT
                found.append(Txn(first[0], header.base_offset, committed, first[1], at_s))
    return found


def longest(transactions: Iterable[Txn], at_s: float) -> Txn | None:
    """The transaction that was open the longest of those that were open at a time, or ended soon after it."""
    near = [txn for txn in transactions if txn.began_s <= at_s + 0.2 and txn.ended_s >= at_s - 0.2]
    return max(near, key=lambda txn: txn.ended_s - txn.began_s, default=None)


def stable_offsets(transactions: Sequence[Txn]) -> list[tuple[float, int]]:
    """(seconds, last stable offset) at each change: the first offset of the oldest open transaction, or, while none is
    open, the offset after the last marker.
    """
    changes = sorted(
        [(txn.began_s, 0, txn) for txn in transactions] + [(txn.ended_s, 1, txn) for txn in transactions],
        key=lambda change: (change[0], change[2].first_offset, change[1]),
    )
    still_open: set[Txn] = set()
    found: list[tuple[float, int]] = []
    end = 0
    for at_s, is_end, txn in changes:
        if is_end:
            still_open.discard(txn)
            end = max(end, txn.marker_offset + 1)
        else:
            still_open.add(txn)
        found.append((at_s, min([one.first_offset for one in still_open], default=end)))
    return found
