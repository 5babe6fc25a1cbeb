"""Queue of the durable decisions of one transaction coordinator whose markers have to be written.

The queue divides the markers into *portions*. The event loop writes one portion in each turn, so that a decision with
thousands of markers does not occupy the loop. A portion has the markers of one or more decisions, in the order of the
decisions. A decision with too many markers for one portion is divided into several portions.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

from stablelog.batch.markers import Marker, MarkerType
from stablelog.broker.loop.turns import AT_ONCE_MAX
from stablelog.coordinators.transactions.answers import Decision
from stablelog.coordinators.transactions.marker_orders import MarkerOrder
from stablelog.log.partition import MarkerWrite
from stablelog.types import TopicPartition

# The maximum number of markers of one portion.
MARKERS_AT_ONCE_MAX = 100
# The number of markers of a long decision that one turn of the event loop sorts by their partitions.
SORTED_AT_ONCE = 2_000

# A decision, and the future of the request that waits for its markers.
QueuedDecision = tuple[Decision[Any], "asyncio.Future[None] | None"]
# The markers of some decisions for one partition, in the order of the decisions.
PartitionMarkers = tuple[TopicPartition, list[MarkerOrder]]


class MarkerQueue:
    """The decisions of a transaction coordinator whose records are durable and whose markers are not all written,
    oldest first.

    Attributes:
        in_writing: the decisions whose markers `next_portion` returns at present.
    """

    def __init__(self) -> None:
        self._decided: deque[QueuedDecision] = deque()
        self.in_writing: list[QueuedDecision] = []
        # The markers of `in_writing` that were not given out yet: first one by one, then sorted by their partitions.
        self._unsorted: Iterator[tuple[TopicPartition, MarkerOrder]] | None = None
        self._by_partition: dict[TopicPartition, list[MarkerOrder]] = {}
        self._to_write: deque[PartitionMarkers] = deque()
        self._is_long = False  # Whether `in_writing` has more markers than one portion.

    def add(self, decision: Decision[Any], done: "asyncio.Future[None] | None") -> None:
        """Append a decision to the queue.

        Args:
            decision: the decision, whose records are durable.
            done: the future of the request that waits until the markers are written; None without such a request.
        """
        self._decided.append((decision, done))

    def __bool__(self) -> bool:
        """Whether the queue is not empty: it has a decision whose markers are not all written."""
        return bool(self.in_writing or self._decided)

    @property
    def is_given_out(self) -> bool:
        """Whether `next_portion` has returned all markers of the decisions in `in_writing`, so that the caller can end
        the writing.
        """
        return self._unsorted is None and not self._to_write

    def next_portion(self) -> list[PartitionMarkers]:
        """Return the next portion of markers to be written, as many as fit into one turn of the event loop.

        A list without markers does not mean that the queue is empty: a decision with many markers needs several turns
        of the event loop until its markers are sorted by partition. The caller then calls again in the next turn.

        Returns:
            (partition, its markers in the order of the decisions) for each partition of the portion.
        """
        if not self.in_writing:
            self._start_writing()
        if self._unsorted is not None:
            self._sort_by_partition(self._unsorted)
        if not self._is_long:
            portion = list(self._to_write)
            self._to_write.clear()
            return portion
        if not self._to_write:
            return []
        target, orders = self._to_write.popleft()
        if len(orders) > MARKERS_AT_ONCE_MAX:
            self._to_write.appendleft((target, orders[MARKERS_AT_ONCE_MAX:]))
        return [(target, orders[:MARKERS_AT_ONCE_MAX])]

    def end_writing(self) -> list[QueuedDecision]:
        """Remove the decisions of `in_writing`, because the caller has written all their markers. Return them, so that
        the caller can answer the requests that wait for them.
        """
        ended, self.in_writing = self.in_writing, []
        return ended

    def _start_writing(self) -> None:
        """Move decisions from the queue to `in_writing`: as many as fit into one portion (the markers of one turn of
        the event loop) together. If the first decision has more markers than a portion, move only this decision.
        """
        count, partitions = 0, set[TopicPartition]()
        while self._decided and count <= MARKERS_AT_ONCE_MAX:
            markers = self._decided[0][0].markers
            size = count + sum(len(order.partitions) for order in markers)
            targets: set[TopicPartition] = set()
            if size <= MARKERS_AT_ONCE_MAX:
                targets = partitions.union(*(order.partitions for order in markers))
            if self.in_writing and (size > MARKERS_AT_ONCE_MAX or len(targets) > AT_ONCE_MAX):
                break
            self.in_writing.append(self._decided.popleft())
            count, partitions = size, targets
        self._is_long = count > MARKERS_AT_ONCE_MAX or len(partitions) > AT_ONCE_MAX
        self._unsorted = iter(
            (target, order)
            for decision, _ in self.in_writing
            for order in decision.markers
            for target in order.partitions.in_order
        )

    def _sort_by_partition(self, unsorted: Iterator[tuple[TopicPartition, MarkerOrder]]) -> None:
        count = 0
        for target, order in islice(unsorted, SORTED_AT_ONCE):
            self._by_partition.setdefault(target, []).append(order)
            count += 1
        if count < SORTED_AT_ONCE:
            self._to_write.extend(self._by_partition.items())
            self._by_partition = {}
            self._unsorted = None


def marker_write(order: MarkerOrder) -> MarkerWrite:
    """Return the marker that a marker order (the coordinator's instruction to write one) asks for, in the form that
    `Partition.append_markers` accepts.
    """
    marker = Marker(
        type=order.type,
        coordinator_epoch=order.coordinator_epoch,
        group=order.group if order.type is MarkerType.COMMIT else None,
        commit_sequence=order.commit_sequence,
    )
    return MarkerWrite(order.producer_id, order.producer_epoch, marker, order.transaction_version)
