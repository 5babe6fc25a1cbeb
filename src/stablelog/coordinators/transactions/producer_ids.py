"""Producer ids: reserved in blocks, handed out one by one.

A durable record in the commit log reserves a block of ids. The coordinator hands out the ids of the block from memory.
After a crash the next block begins at the end of the reserved ids, and the rest of the old block is never used. So two
producers never get the same id, and only one id in a thousand costs a write.

A client may learn an id only when the reservation of its block is durable. The coordinator therefore puts the record of
the reservation before the response with the id. Each transaction group has its own commit log and its own blocks.
`ProducerIdSpace` is shared by all groups of a broker: it holds the end of all reservations, and of the ids that
partitions contain.
"""

from typing import Final

BLOCK_SIZE: Final = 1000
PRODUCER_ID_MAX: Final = 2**63 - 1
# The greatest producer id that the broker hands out. A client that uses a greater id has invented it.
GIVEN_ID_MAX: Final = 2**62 - 1


class ProducerIdSpace:
    """The producer ids of all groups.

    Attributes:
        reserved_end: the next block of producer ids that a group reserves begins at this id or later.
        met_end: all producer ids that a log contains are below this one.
    """

    def __init__(self) -> None:
        self.reserved_end = 0
        self.met_end = 0

    def reserved_to(self, reserved_end: int) -> None:
        """Note that ids below `reserved_end` may have been handed out."""
        self.reserved_end = max(self.reserved_end, reserved_end)

    def skip_past(self, producer_id: int) -> None:
        """Note that a log contains this producer id: neither this id nor a lower one is handed out any more.

        An id above `GIVEN_ID_MAX` is ignored: a client has invented it. If it were the greatest possible id, no id
        would be left to hand out.
        """
        if producer_id <= GIVEN_ID_MAX:
            self.met_end = max(self.met_end, producer_id + 1)
            self.reserved_to(self.met_end)


class ProducerIds:
    """Hands out the producer ids of one transaction group, each once.

    Args:
        block_size: the number of ids in a block.
        space: the producer ids of all groups of the broker.

    Attributes:
        reserved_end: the group's commit log reserves ids below this one.
    """

    def __init__(self, block_size: int = BLOCK_SIZE, space: ProducerIdSpace | None = None) -> None:
        assert block_size > 0
        self._block_size = block_size
        self._next = 0
        self.space = ProducerIdSpace() if space is None else space
        self.reserved_end = 0

    @property
    def next_id(self) -> int:
        """Return the producer id that this transaction group hands out next, unless another group reserves it first."""
        return max(self._next, self.space.met_end)

    def replay(self, reserved_end: int) -> None:
        """Apply a record of the commit log: producer ids below `reserved_end` may have been handed out."""
        self.reserved_end = max(self.reserved_end, reserved_end)
        self._next = self.reserved_end
        self.space.reserved_to(reserved_end)

    @property
    def needs_block(self) -> bool:
        """Whether a new block of producer ids must be reserved before the next id can be handed out."""
        return self.next_id >= self.reserved_end

    def reserve(self) -> int:
        """Reserve the next block of producer ids. Returns the new `reserved_end`, for the record of the reservation."""
        assert self.needs_block
        self._next = self.space.reserved_end
        self.reserved_end = self._next + self._block_size
        assert self.reserved_end <= PRODUCER_ID_MAX
        self.space.reserved_to(self.reserved_end)
        return self.reserved_end

    def take(self) -> int:
        """Take the next producer id. The block of ids that contains it must be reserved."""
        producer_id = self.next_id
        assert producer_id < self.reserved_end
        self._next = producer_id + 1
        return producer_id
