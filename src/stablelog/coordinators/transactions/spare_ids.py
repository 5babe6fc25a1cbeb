"""Producer ids of committed children of joint commits, which later children use again.

A child is one transaction of a joint commit; the coordinator forgets it after the commit. Each attempt of a Spark task
is a child with its own transactional id. If no producer id were used again, each attempt would take a new one. Every
partition that the attempt has written to would remember this producer id for a day.

A producer id passes from child A to child B only if all of this holds:

1. A's version of its joint commit, or a later version, is committed, and A is forgotten. The coordinator therefore
   refuses every request that names A's transactional id, because the id contains this version.
2. Every marker that the transaction group had written when A was forgotten is durable. If the broker has not opened a
   partition since its start, this partition must not lack a marker of the producer id. So no crash opens a transaction
   of A again.
3. B gets a higher epoch than A, the markers of A and every response to A have had. So two children that hold the same
   producer id one after the other never have the same id and epoch, and a request with A's identity is refused whatever
   transactional id it names.

The ids are in memory only. A restart loses them, and the coordinator then takes new ids.

Proof: docs/decisions/0016-producer-ids-of-children.md.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from stablelog.coordinators.transactions.transaction import ProducerIdAndEpoch

# The maximum number of identities (producer id and epoch) that wait for durable markers; further ones are dropped.
WAITING_MAX: Final = 100_000

# A marker barrier: a function that tells whether all markers that were written before the function was made are
# durable. The result is True, False (not yet) or None (they never will be).
Barrier = Callable[[], bool | None]


def durability_unknown() -> None:
    """Return None, which stands for "never durable".

    A marker barrier is a function that tells whether all markers that were written before a time are durable. A caller
    that cannot find this out uses this function as the barrier. No producer id is then used a second time.
    """


class SpareIds:
    """Producer ids that can be used again. Each has belonged to a child (one of the transactions that a joint commit
    commits together) that the coordinator has forgotten, and is kept with the highest epoch that it has had.

    `len` is the number of ids, including those that cannot be used yet.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Barrier, ProducerIdAndEpoch]] = deque()
        self._free: list[ProducerIdAndEpoch] = []

    def add_identity(self, identity: ProducerIdAndEpoch, barrier: Barrier) -> None:
        """Add the producer id and epoch of a child, one of the transactions that a joint commit commits together, that
        the coordinator forgets.

        Args:
            identity: the producer id, and the highest epoch that it has had.
            barrier: tells whether all markers that were written before this call are durable. `take_identity` returns
                the identity only after `barrier` has returned True.
        """
        self._free_durable()
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append((barrier, identity))

    def take_identity(self) -> ProducerIdAndEpoch | None:
        """Take a producer id out, and return it with its highest epoch; None if no id is free.

        The id is for a new child, one of the transactions that a joint commit commits together. The child must use a
        greater epoch.
        """
        self._free_durable()
        return self._free.pop() if self._free else None

    def _free_durable(self) -> None:
        """Make those producer ids available whose earlier markers are durable now, in the order in which the ids were
        added.

        An id whose markers can never become durable is dropped.
        """
        while self._waiting:
            barrier, identity = self._waiting[0]
            is_durable = barrier()
            if is_durable is False:
                return
            self._waiting.popleft()
            if is_durable:
                self._free.append(identity)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._free)
