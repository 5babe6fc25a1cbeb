"""Producer ids: reserved in blocks, handed out one by one.

A durable record in the commit log, the log of a transaction coordinator, reserves a block of ids. The coordinator hands
out the ids of the block from memory. After a crash the next block begins at the end of the reserved ids, and the rest
of the old block is never used. So two producers never get the same id, and only one id in a thousand costs a write.

A client may learn an id only when the reservation of its block is durable. The coordinator therefore adds the record of
the reservation to the same decision as the response with the id, and the response waits until the record is durable.
Each transaction group has its own commit log and its own blocks. `ProducerIdSpace` is shared by all groups of a broker:
it holds the end of all reservations, and of the ids that partitions contain.
"""

from typing import Final

BLOCK_SIZE: Final = 1000
PRODUCER_ID_MAX: Final = 2**63 - 1
# The greatest producer id that the broker hands out. A client that uses a greater id has invented it.
GIVEN_ID_MAX: Final = 2**62 - 1


class ProducerIdSpace:
    """The producer ids that are in use, for all transaction groups of a broker. Each group, which has a commit log of
    its own, reserves blocks of them.

    Attributes:
        reserved_end: the next block of producer ids that a group reserves begins at this id or later.
        used_end: all producer ids that a log contains are below this one.
    """

    def __init__(self) -> None:
        self.reserved_end = 0
        self.used_end = 0

    def raise_reserved_end(self, reserved_end: int) -> None:
        """Record that producer ids below `reserved_end` are reserved and may be in use. The blocks of ids that groups
        reserve later begin at or above `reserved_end`.
        """
        self.reserved_end = max(self.reserved_end, reserved_end)

    def skip_past(self, producer_id: int) -> None:
        """Record that a log contains a producer id. This id and all lower ones are not handed out any more.

        An id above `GIVEN_ID_MAX` is ignored, because only a client can have invented it. If such an id counted, no id
        might be left to hand out.
        """
        if producer_id <= GIVEN_ID_MAX:
            self.used_end = max(self.used_end, producer_id + 1)
            self.raise_reserved_end(self.used_end)


class ProducerIds:
    """The producer ids of one transaction group (topics and producers with one commit log): reserves them in blocks,
    and hands out each id once.

    Args:
        block_size: the number of ids in a block.
        space: the producer ids that all groups of the broker use.

    Attributes:
        reserved_end: all ids that the group's commit log has reserved are below this one.
    """

    def __init__(self, block_size: int = BLOCK_SIZE, space: ProducerIdSpace | None = None) -> None:
        assert block_size > 0
        self._block_size = block_size
        self._next = 0
        self.space = ProducerIdSpace() if space is None else space
        self.reserved_end = 0

    @property
    def next_id(self) -> int:
        """The producer id that the group hands out next, if no other group reserves this id first."""
        return max(self._next, self.space.used_end)

    def replay(self, reserved_end: int) -> None:
        """Apply a record of the commit log (the coordinator's log) that reserves producer ids: those below
        `reserved_end` may have been handed out before the broker's start.
        """
        self.reserved_end = max(self.reserved_end, reserved_end)
        self._next = self.reserved_end
        self.space.raise_reserved_end(reserved_end)

    @property
    def needs_block(self) -> bool:
        """Whether a new block of producer ids must be reserved before the next id can be handed out."""
        return self.next_id >= self.reserved_end

    def reserve_block(self) -> int:
        """Reserve the next block of producer ids. Return the end of the block, the new `reserved_end`. The caller has
        to record it in the commit log, the coordinator's log, before an id of the block is used.
        """
        assert self.needs_block
        self._next = self.space.reserved_end
        self.reserved_end = self._next + self._block_size
        assert self.reserved_end <= PRODUCER_ID_MAX
        self.space.raise_reserved_end(self.reserved_end)
        return self.reserved_end

    def take_id(self) -> int:
        """Hand out the next producer id. The caller must have reserved its block: see `needs_block`."""
        producer_id = self.next_id
        assert producer_id < self.reserved_end
        self._next = producer_id + 1
        return producer_id
