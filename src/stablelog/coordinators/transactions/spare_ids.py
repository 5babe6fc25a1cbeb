"""Producer ids of forgotten children of joint commits, for the children that come next.

Each attempt of a Spark task is a child with a transactional id of its own. Without reuse each would take a new producer
id, which every partition that it has written to remembers for a day.

A producer id goes from child A to child B only if all of this holds:

1. The version of A, or a later one, is committed, and A is forgotten: every request that names A's transactional id is
   refused, because its version is not above the last committed one.
2. Every marker that the group had written when A was forgotten is durable, and no partition may lack a marker of the
   producer id: no crash opens a transaction of A again.
3. B gets a higher epoch than A, its markers and every answer to A have had. So no two holders ever show the same id and
   epoch, and a request that shows A's is refused whatever transactional id it names.

The ids are in memory only. A restart loses them, and new ids are taken.

Proof: docs/decisions/0016-producer-ids-of-children.md.
"""

from array import array
from collections import deque
from collections.abc import Callable
from typing import Final

from stablelog.coordinators.transactions.records import Identity

WAITING_MAX: Final = 100_000  # identities that wait for markers to be durable; others are dropped

# Whether all markers written before a point in time are durable: True, False (not yet) or None (never).
Barrier = Callable[[], bool | None]


def durability_unknown() -> None:
    """The barrier of a caller that does not know what is durable."""


class SpareIds:
    """Producer ids that no transactional id has, with the highest epoch that anyone has had under each."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Barrier, Identity]] = deque()
        self._producer_ids = array("q")
        self._epochs = array("h")

    def release(self, identity: Identity, barrier: Barrier) -> None:
        """Add an identity that nobody holds any more. It can be taken once its barrier is True."""
        self._admit()
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append((barrier, identity))

    def take(self) -> Identity | None:
        """An identity whose producer id may get another holder, under a higher epoch; None if there is none."""
        self._admit()
        if not self._producer_ids:
            return None
        return Identity(self._producer_ids.pop(), self._epochs.pop())

    def _admit(self) -> None:
        """Take those out of the queue whose markers are durable, and drop those whose markers never will be."""
        while self._waiting:
            barrier, identity = self._waiting[0]
            is_durable = barrier()
            if is_durable is False:
                return
            self._waiting.popleft()
            if is_durable:
                self._producer_ids.append(identity.producer_id)
                self._epochs.append(identity.producer_epoch)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._producer_ids)
