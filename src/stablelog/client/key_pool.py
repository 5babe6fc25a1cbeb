"""Pool of a client's keys of joint commits. A stablelog broker commits each transaction of the client as a joint commit
(a commit of several transactions together, here of one). A key (a text) and a version (the number of the commit under
the key) identify it. The transactions use each key again and again.

The broker stores one record for each key: its last committed version. Each transaction that uses a key commits the
key's next version, which replaces that record. So the broker stores at most as many records for a client as the client
had transactions open at the same time.

Rules:
- A key has one transaction at a time: `take_key` removes it from the pool.
- A key returns to the pool only when the outcome of its transaction is known. While a commit is in doubt, the key and
  its version stay with the transaction, so that the commit can be repeated.
- The version rises with each commit. After an abort, the next transaction uses the same version and transactional id,
  and its InitProducerId fences the aborted transaction.
- The broker may still be writing the abort markers of the key's last transaction, as long as one of its partitions is
  offline. The next transaction waits `ENDING_WAIT_S` for the markers. Then it makes a new key.
- A key is dropped if the broker has refused its transaction with one of the error codes in `LOST`, or has not
  responded. Another client may then use the same key, for example in a copy of the virtual machine. The next
  transaction makes a new key.
- Only the process that made a key uses it. After a fork, the child process makes its own keys.
"""

from collections import deque
from typing import Final

from stablelog.client.core.keys import WriterKey
from stablelog.processes import this_process, watch_forks

IDLE_MAX: Final = 1000  # the greatest number of keys of one transaction group in the pool


class WriterKeyPool:
    """Pool of the keys that no transaction of the client uses now. A key (a text) and a version (the number of the
    commit under the key) identify the commit of a transaction for the broker. Several threads may use the pool, and so
    may a signal handler that has interrupted one of them: no method waits for a lock.
    """

    def __init__(self) -> None:
        self.after_fork()
        watch_forks(self)

    def after_fork(self) -> None:
        """In a forked process, drop all keys: the parent process continues to use them."""
        self._idle: dict[str, deque[WriterKey]] = {}  # by transaction group

    def take_key(self, group: str) -> WriterKey:
        """Take a key for the commit of a transaction in a transaction group (the topics whose commits have one order):
        remove it from the pool, or make a key if the pool has none. No other transaction uses the key until it is
        returned.
        """
        try:
            return self._idle[group].pop()
        except LookupError:
            return WriterKey(group)

    def return_key(self, key: WriterKey) -> None:
        """Return a key to the pool, so that the commit of another transaction can use it. The outcome of the last
        transaction with this key must be known.

        If the pool has `IDLE_MAX` keys of the key's transaction group (topics whose commits have one order), the oldest
        one of these is dropped. The broker forgets a dropped key a day after its last commit. A key that was made
        before a fork, in the parent process, is dropped, too, because the parent may use it.
        """
        idle = self._idle.setdefault(key.group, deque(maxlen=IDLE_MAX))
        if key.process is this_process():
            idle.append(key)
