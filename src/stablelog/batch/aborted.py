"""Filter that drops the batches of aborted transactions, as Kafka's consumer does.

A Fetch response lists the aborted transactions that concern its records. From the first offset of a listed transaction
on, the filter drops the transactional batches of its producer, up to the producer's next abort marker.

Source: KIP-98.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from stablelog.batch.header import Buffer
from stablelog.batch.markers import MarkerType, read_marker

# (producer_id, first_offset) of each aborted transaction. A third number, if present, is the offset of the abort
# marker.
Aborted = Sequence[tuple[int, ...]]


class AbortedFilter:
    """Decides which batches of a partition belong to aborted transactions. The caller passes the batches in the order
    of their offsets.
    """

    def __init__(self) -> None:
        # Heap of the aborted transactions that were added and whose first batch has not come yet, as (first_offset,
        # producer_id).
        self._ahead: list[tuple[int, int]] = []
        self._known: set[tuple[int, int]] = set()  # the entries of the heap `_ahead`
        self._aborting: set[int] = set()  # producers whose batches are dropped until their abort marker
        self._ended: dict[int, int] = {}  # by producer id: the offset of the producer's last abort marker

    def add(self, aborted: Aborted, first_offset: int) -> None:
        """Add the aborted transactions that a Fetch response lists. A transaction has no effect if it was added before
        (consecutive responses may list the same one), or if its abort marker is before `first_offset`.

        Args:
            aborted: the aborted transactions of the response, each as (producer id, first offset); the offset of the
                abort marker may follow as a third value.
            first_offset: the offset at which the batches of the response begin.
        """
        for producer_id, begun, *ended in aborted:
            entry = (begun, producer_id)
            if entry in self._known or begun < self._ended.get(producer_id, -1):
                continue
            if ended and ended[0] < first_offset:
                continue
            self._known.add(entry)
            heappush(self._ahead, entry)

    @property
    def is_idle(self) -> bool:
        """Whether the filter has passed the abort marker of every aborted transaction that was added. It then drops no
        further batch until another transaction is added.
        """
        return not self._ahead and not self._aborting

    def drops_batch(self, producer_id: int, last_offset: int) -> bool:
        """Whether a transactional batch is to be dropped, because it belongs to an aborted transaction. The arguments
        are the batch's producer id and last offset.
        """
        while self._ahead and self._ahead[0][0] <= last_offset:
            entry = heappop(self._ahead)
            self._known.discard(entry)
            self._aborting.add(entry[1])
        return producer_id in self._aborting

    def process_control(self, data: Buffer, position: int, producer_id: int, last_offset: int) -> None:
        """Process the control batch at `position` in `data`. If it is an abort marker, it ends the aborted transaction
        of its producer: the producer's later batches are not dropped any more. `producer_id` and `last_offset` are
        those of the control batch.

        Raises:
            DamageError: the batch has no control record.
        """
        if not self.drops_batch(producer_id, last_offset):
            return
        marker = read_marker(data, position)
        if marker is not None and marker.type is MarkerType.ABORT:
            self._aborting.discard(producer_id)
            self._ended[producer_id] = last_offset
