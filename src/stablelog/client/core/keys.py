"""The keys of the joint commits by which a client commits its transactions. A joint commit is a commit of several
transactions together, here of one. A key (a text) and a version (the number of the commit under the key) identify it
for the broker. One key serves for many transactions, one after the other; `client.key_pool` stores the keys that are
free.
"""

import uuid
from dataclasses import dataclass, field
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.processes import Process, this_process
from stablelog.wire.extension.children import child_id

ENDING_WAIT_S: Final = 2.0  # how long a transaction waits for the abort markers of the key's last transaction
LOST: Final = frozenset(  # error codes that mean that another client may use the key
    {
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.concurrent_transactions,
    }
)
RUN: Final = "1"
RETENTION_S: Final = 86_400  # how long the broker remembers the key of a joint commit after the commit
# Apache Kafka gives a producer another id after the epoch 32,767. The key is dropped before.
EPOCH_MAX: Final = 30_000


@dataclass(slots=True)
class WriterKey:
    """A key (a text), and the version (number) of the next commit under it: together they identify the commit of one
    transaction for the broker. Only one transaction at a time uses the key.

    Attributes:
        group: the transaction group of the commits, whose topics have one order of commits; empty for the default
            group.
        name: the text of the key, which no other client uses.
        version: the version of the next commit; greater than every version of the key that was committed.
        may_be_ending: whether the broker may still write the abort markers of the last transaction that used the key.
        process: the process that made the key, and that alone uses it.
    """

    group: str
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    version: int = 0
    may_be_ending: bool = False
    process: Process = field(default_factory=this_process)

    @property
    def transactional_id(self) -> str:
        """The transactional id of the transaction that is to be committed under this key and version."""
        return child_id(self.name, self.version, RUN, 0, 0, group=self.group)
