"""States of a transactional id, and the events that change them.

`TRANSITIONS` is the complete table: for every state and every event it has either the next state or the error code with
which the event is refused. The coordinator calls `next_state` before it changes anything, so a refused event changes
nothing.

The numbers and names of the states are Kafka's. The commit log and DescribeTransactions use them. Kafka has two more
states. An id that Kafka has in the state Dead (6) is absent here. PrepareEpochFence (7) exists only in Kafka's memory;
here it is the event FENCE.

Source: KIP-98, KIP-360, KIP-890, KIP-939; docs/decisions/0003-transactions.md.
"""

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.errors import RefusedError


class TransactionState(IntEnum):
    """The state of a transactional id. The values are Kafka's numbers."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def label(self) -> str:
        """Kafka's name of the state, such as "PrepareCommit"."""
        return self.name.title().replace("_", "")

    @property
    def is_decided(self) -> bool:
        """Whether the transaction is decided (a record says whether it is committed or aborted), and its markers are
        not all written yet.
        """
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        """Whether the last transaction has ended, and all its markers are written."""
        return self in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open in a partition, or may be: its marker may not be written there yet."""
        return self is TransactionState.ONGOING or self.is_decided


class TransactionEvent(Enum):
    """An event that may change the state of a transactional id. The value describes the event in error messages."""

    INIT = "a producer takes over the transactional id"
    KEEP = "a producer takes over the transactional id and keeps the open transaction (KIP-939)"
    ADD = "a partition is added to the transaction"
    COMMIT = "the producer commits"
    ABORT = "the producer aborts"
    ABORT_NOTHING = "a producer without an open transaction aborts: to get a new epoch, or because its transaction was refused a partition"
    COMMIT_AGAIN = "the producer repeats its last request, a commit"
    ABORT_AGAIN = "the producer repeats its last request, an abort"
    FENCE = "the coordinator aborts: after a timeout, for a successor, or for an operator"
    MARKED = "all markers of the decision are written"
    EXPIRE = "the transactional id has not been used for its expiration time"


_FENCED: Final = ErrorCode.producer_fenced
_WAIT: Final = ErrorCode.concurrent_transactions
_WRONG: Final = ErrorCode.invalid_txn_state

Outcome = (
    TransactionState | ErrorCode | None
)  # The next state, or an error code. None means that the id is forgotten.

TRANSITIONS: Final[Mapping[TransactionState, Mapping[TransactionEvent, Outcome]]] = {
    TransactionState.EMPTY: {
        TransactionEvent.INIT: TransactionState.EMPTY,
        TransactionEvent.KEEP: TransactionState.EMPTY,
        TransactionEvent.ADD: TransactionState.ONGOING,
        TransactionEvent.COMMIT: _WRONG,
        TransactionEvent.ABORT: _WRONG,
        TransactionEvent.ABORT_NOTHING: TransactionState.COMPLETE_ABORT,
        TransactionEvent.COMMIT_AGAIN: _FENCED,
        TransactionEvent.ABORT_AGAIN: _FENCED,
        TransactionEvent.FENCE: _WRONG,
        TransactionEvent.MARKED: _WRONG,
        TransactionEvent.EXPIRE: None,
    },
    TransactionState.ONGOING: {
        # The new producer's InitProducerId aborts the open transaction. It gets CONCURRENT_TRANSACTIONS, so the new
        # producer retries.
        TransactionEvent.INIT: TransactionState.PREPARE_ABORT,
        TransactionEvent.KEEP: TransactionState.ONGOING,
        TransactionEvent.ADD: TransactionState.ONGOING,
        TransactionEvent.COMMIT: TransactionState.PREPARE_COMMIT,
        TransactionEvent.ABORT: TransactionState.PREPARE_ABORT,
        TransactionEvent.ABORT_NOTHING: _WRONG,
        TransactionEvent.COMMIT_AGAIN: _FENCED,
        TransactionEvent.ABORT_AGAIN: _FENCED,
        TransactionEvent.FENCE: TransactionState.PREPARE_ABORT,
        TransactionEvent.MARKED: _WRONG,
        TransactionEvent.EXPIRE: _WRONG,
    },
    TransactionState.PREPARE_COMMIT: {
        TransactionEvent.INIT: _WAIT,
        TransactionEvent.KEEP: _WAIT,
        TransactionEvent.ADD: _WAIT,
        TransactionEvent.COMMIT: _WAIT,
        TransactionEvent.ABORT: _WAIT,
        TransactionEvent.ABORT_NOTHING: _WAIT,
        TransactionEvent.COMMIT_AGAIN: TransactionState.PREPARE_COMMIT,
        TransactionEvent.ABORT_AGAIN: _WRONG,
        TransactionEvent.FENCE: _WRONG,
        TransactionEvent.MARKED: TransactionState.COMPLETE_COMMIT,
        TransactionEvent.EXPIRE: _WRONG,
    },
    TransactionState.PREPARE_ABORT: {
        TransactionEvent.INIT: _WAIT,
        TransactionEvent.KEEP: _WAIT,
        TransactionEvent.ADD: _WAIT,
        TransactionEvent.COMMIT: _WAIT,
        TransactionEvent.ABORT: _WAIT,
        TransactionEvent.ABORT_NOTHING: _WAIT,
        TransactionEvent.COMMIT_AGAIN: _WRONG,
        TransactionEvent.ABORT_AGAIN: TransactionState.PREPARE_ABORT,
        TransactionEvent.FENCE: _WRONG,
        TransactionEvent.MARKED: TransactionState.COMPLETE_ABORT,
        TransactionEvent.EXPIRE: _WRONG,
    },
    TransactionState.COMPLETE_COMMIT: {
        TransactionEvent.INIT: TransactionState.EMPTY,
        TransactionEvent.KEEP: TransactionState.EMPTY,
        TransactionEvent.ADD: TransactionState.ONGOING,
        TransactionEvent.COMMIT: _WRONG,
        TransactionEvent.ABORT: _WRONG,
        TransactionEvent.ABORT_NOTHING: TransactionState.COMPLETE_ABORT,
        TransactionEvent.COMMIT_AGAIN: TransactionState.COMPLETE_COMMIT,
        TransactionEvent.ABORT_AGAIN: _WRONG,
        TransactionEvent.FENCE: _WRONG,
        TransactionEvent.MARKED: _WRONG,
        TransactionEvent.EXPIRE: None,
    },
    TransactionState.COMPLETE_ABORT: {
        TransactionEvent.INIT: TransactionState.EMPTY,
        TransactionEvent.KEEP: TransactionState.EMPTY,
        TransactionEvent.ADD: TransactionState.ONGOING,
        TransactionEvent.COMMIT: _WRONG,
        TransactionEvent.ABORT: _WRONG,
        TransactionEvent.ABORT_NOTHING: TransactionState.COMPLETE_ABORT,
        TransactionEvent.COMMIT_AGAIN: _WRONG,
        TransactionEvent.ABORT_AGAIN: TransactionState.COMPLETE_ABORT,
        TransactionEvent.FENCE: _WRONG,
        TransactionEvent.MARKED: _WRONG,
        TransactionEvent.EXPIRE: None,
    },
}


def next_state(state: TransactionState, event: TransactionEvent) -> TransactionState | None:
    """Return the state of a transactional id after an event; None if the coordinator forgets the id.

    Raises:
        RefusedError: the event is not allowed in this state. Nothing has changed.
    """
    outcome = TRANSITIONS[state][event]
    if isinstance(outcome, ErrorCode):
        raise RefusedError(
            outcome, f"this is not allowed while the transaction is in state {state.label}: {event.value}"
        )
    return outcome
