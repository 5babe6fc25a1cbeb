"""Filter that drops the batches of aborted transactions, as Kafka's consumer does.

A Fetch response lists the aborted transactions that concern its records. At each batch, every listed transaction that
begins at or before the batch's last offset is in force, until the abort marker of its producer ends it.
Source: KIP-98.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from stablelog.batch.header import Buffer
from stablelog.batch.markers import MarkerType, read_marker

Aborted = Sequence[tuple[int, ...]]  # (producer_id, first_offset), or with the abort marker's offset as third


class AbortedFilter:
    """Tells which batches of a partition belong to aborted transactions; batches must come in the order of offsets."""

    def __init__(self) -> None:
        # Heap of (first_offset, producer_id) of transactions that have not begun yet.
        self._ahead: list[tuple[int, int]] = []
        self._known: set[tuple[int, int]] = set()  # what is in the heap
        self._aborting: set[int] = set()  # producers whose records are dropped
        self._ended: dict[
            int, int
        ] = {}  # by producer: the offset of the last abort marker that ended a transaction

    def add(self, aborted: Aborted, first_offset: int) -> None:
        """Add aborted transactions that may concern the batches from `first_offset` on.

        A transaction that was added before, or whose marker is before `first_offset`, has no effect.
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
        """Whether no batch can be dropped at present."""
        return not self._ahead and not self._aborting

    def drops(self, producer_id: int, last_offset: int) -> bool:
        """Whether a transactional batch of this producer belongs to an aborted transaction."""
        while self._ahead and self._ahead[0][0] <= last_offset:
            entry = heappop(self._ahead)
            self._known.discard(entry)
            self._aborting.add(entry[1])
        return producer_id in self._aborting

    def pass_control(self, data: Buffer, position: int, producer_id: int, last_offset: int) -> None:
        """Pass the control batch at `position` of the data. Only an abort marker ends an aborted transaction.

        Raises:
            Corrupt: the batch holds no control record.
        """
        if not self.drops(producer_id, last_offset):
            return
        marker = read_marker(data, position)
        if marker is not None and marker.type is MarkerType.ABORT:
            self._aborting.discard(producer_id)
            self._ended[producer_id] = last_offset
