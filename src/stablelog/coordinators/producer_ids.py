"""Which producer id comes next?

Producer ids are reserved in blocks: one durable record says up to where, and then a block's worth of ids is handed
out from memory. After a crash the next block begins where the reservations end; what was left of the old one is
never used. So no id is given to two producers, and asking for one costs a write only once in a thousand times.

An id may be told to anyone only after the reservation that it comes from is durable. The coordinator keeps that by
putting the reservation's record before the answer that carries the id.
"""

from typing import Final

BLOCK_SIZE: Final = 1000
PRODUCER_ID_MAX: Final = 2**63 - 1


class ProducerIds:
    """Hands out producer ids, each once.

    Attributes:
        next_id: the next one to be handed out.
        reserved_end: exclusive end of what the commit log says is reserved.
    """

    def __init__(self, block_size: int = BLOCK_SIZE) -> None:
        assert block_size > 0
        self._block_size = block_size
        self.next_id = 0
        self.reserved_end = 0

    def replay(self, reserved_end: int) -> None:
        """A record says that ids below `reserved_end` may have been handed out."""
        self.reserved_end = max(self.reserved_end, reserved_end)
        self.next_id = self.reserved_end

    def skip_past(self, producer_id: int) -> None:
        """A producer has been met that has this id, whoever gave it: it and those below are not handed out."""
        if producer_id >= self.next_id:
            self.next_id = producer_id + 1

    @property
    def needs_block(self) -> bool:
        """Whether a block must be reserved before the next id is taken."""
        return self.next_id >= self.reserved_end

    def reserve(self) -> int:
        """Reserve the next block; returns the new `reserved_end`, for the record that makes it so."""
        assert self.needs_block
        self.reserved_end = self.next_id + self._block_size
        assert self.reserved_end <= PRODUCER_ID_MAX
        return self.reserved_end

    def take(self) -> int:
        """The next id. There must be one reserved."""
        assert self.next_id < self.reserved_end
        producer_id = self.next_id
        self.next_id += 1
        return producer_id
