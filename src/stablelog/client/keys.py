"""Pool of the keys of joint commits for one client's transactions, which use each key again and again.

The broker remembers the last committed version of a key. A transaction that takes a key over from its predecessor
commits the next version, which replaces what the broker remembers of the predecessor. So a client leaves one record
for each key, and it has at most as many keys as it had transactions open at one time.

Rules:
- A key has one transaction at a time: `take` removes it from the pool.
- A key comes back only when the outcome of its transaction is known. While a commit is in doubt, the key and its
  version stay with the transaction, so that the commit can be repeated.
- The version rises with each commit. A transaction that was aborted leaves the version and the transactional id to
  its successor, whose InitProducerId fences it.
- The broker may still be ending an aborted transaction when the key comes back, and for as long as one of its
  partitions is offline. The successor waits `ENDING_WAIT_S` for that end. Then it makes a new key.
- A key is dropped if the broker has refused its transaction with one of `LOST`, or has not answered: somebody else may
  use the key, as the copy of a virtual machine does. The next transaction makes a new key.
- A key stays in the process that made it. After a fork, the child process makes its own.
"""

import os
import threading
import uuid
from dataclasses import dataclass, field
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.client.joint import child_id

IDLE_MAX: Final = 1000  # keys that wait for a transaction, in all transaction groups
ENDING_WAIT_S: Final = 2.0  # how long to wait for the end of the key's last transaction
LOST: Final = frozenset(  # error codes that mean that another client may use the key
    {
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.concurrent_transactions,
    }
)
RUN: Final = "1"


@dataclass(slots=True)
class WriterKey:
    """The key of a joint commit, and the version that its next commit gets.

    Attributes:
        group: the transaction group.
        name: the key.
        version: above every version of the key that was committed.
        may_be_ending: whether the broker may still be ending the last transaction, which was aborted.
        process_id: of the process that made the key.
    """

    group: str
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    version: int = 0
    may_be_ending: bool = False
    process_id: int = field(default_factory=lambda: os.getpid())  # noqa: PLW0108 - looked up after a fork

    @property
    def transactional_id(self) -> str:
        """The transactional id of the version's only child."""
        return child_id(self.name, self.version, RUN, 0, 0, group=self.group)


class WriterKeys:
    """The keys of a client that no transaction uses now. May be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[WriterKey] = []
        self._process_id = os.getpid()

    def take(self, group: str) -> WriterKey:
        """Take a key of a transaction group that no other transaction uses."""
        with self._lock:
            if os.getpid() != self._process_id:
                self._idle, self._process_id = [], os.getpid()
            for place in reversed(range(len(self._idle))):
                if self._idle[place].group == group:
                    return self._idle.pop(place)
        return WriterKey(group)

    def give_back(self, key: WriterKey) -> None:
        """Keep a key for the next transaction. The outcome of its last transaction must be known.

        A key above `IDLE_MAX` is dropped: the broker forgets it a day after its last commit. A key that another
        process has made is dropped, too: that process may use it.
        """
        with self._lock:
            if len(self._idle) < IDLE_MAX and key.process_id == os.getpid() == self._process_id:
                self._idle.append(key)
