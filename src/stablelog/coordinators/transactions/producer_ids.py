"""Which producer id comes next?

Producer ids are reserved in blocks: one durable record says up to where, and then a block's worth of ids is handed
out from memory. After a crash the next block begins where the reservations end; what was left of the old one is
never used. So no id is given to two producers, and asking for one costs a write only once in a thousand times.

An id may be told to anyone only after the reservation that it comes from is durable. The coordinator keeps that by
putting the reservation's record before the answer that carries the id. Each transaction group has a commit log, and
so blocks, of its own: what one has reserved says nothing to a log of another. Beyond which number nobody has
reserved any, and which were met, all groups of a broker know together (`ProducerIdSpace`).
"""

from typing import Final

BLOCK_SIZE: Final = 1000
PRODUCER_ID_MAX: Final = 2**63 - 1
GIVEN_ID_MAX: Final = 2**62 - 1  # nobody lives to be given a greater one: whoever shows one has made it up


class ProducerIdSpace:
    """What is known of producer ids in all groups.

    Attributes:
        reserved_end: ids from here on are free for whoever reserves the next block.
        met_end: ids from here on were met nowhere.
    """

    def __init__(self) -> None:
        self.reserved_end = 0
        self.met_end = 0

    def reserved_to(self, reserved_end: int) -> None:
        """Ids below `reserved_end` may have been handed out."""
        self.reserved_end = max(self.reserved_end, reserved_end)

    def skip_past(self, producer_id: int) -> None:
        """A producer has been met that has this id, whoever gave it: it and those below are not handed out any more.

        One that nobody can have been given is passed over: behind the last of all there would be none to hand out.
        """
        if producer_id <= GIVEN_ID_MAX:
            self.met_end = max(self.met_end, producer_id + 1)
            self.reserved_to(self.met_end)


class ProducerIds:
    """Hands out producer ids to one group, each once.

    Args:
        block_size: how many are reserved at once.
        space: what all groups of the broker share.

    Attributes:
        space: likewise.
        reserved_end: exclusive end of what the group's commit log says is reserved.
    """

    def __init__(self, block_size: int = BLOCK_SIZE, space: ProducerIdSpace | None = None) -> None:
        assert block_size > 0
        self._block_size = block_size
        self._next = 0
        self.space = ProducerIdSpace() if space is None else space
        self.reserved_end = 0

    @property
    def next_id(self) -> int:
        """The next one to be handed out, unless others reserve it first."""
        return max(self._next, self.space.met_end)

    def replay(self, reserved_end: int) -> None:
        """A record says that ids below `reserved_end` may have been handed out."""
        self.reserved_end = max(self.reserved_end, reserved_end)
        self._next = self.reserved_end
        self.space.reserved_to(reserved_end)

    def skip_past(self, producer_id: int) -> None:
        """A producer has been met that has this id."""
        self.space.skip_past(producer_id)

    @property
    def needs_block(self) -> bool:
        """Whether a block must be reserved before the next id is taken."""
        return self.next_id >= self.reserved_end

    def reserve(self) -> int:
        """Reserve the next block; returns the new `reserved_end`, for the record that makes it so."""
        assert self.needs_block
        self._next = self.space.reserved_end
        self.reserved_end = self._next + self._block_size
        assert self.reserved_end <= PRODUCER_ID_MAX
        self.space.reserved_to(self.reserved_end)
        return self.reserved_end

    def take(self) -> int:
        """The next id. There must be one reserved."""
        producer_id = self.next_id
        assert producer_id < self.reserved_end
        self._next = producer_id + 1
        return producer_id
