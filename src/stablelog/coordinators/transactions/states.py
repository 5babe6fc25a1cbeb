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


class State(IntEnum):
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
        """Whether the transaction is decided and its markers are not all written."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        """Whether all markers of the last transaction are written."""
        return self in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)

    @property
    def is_open(self) -> bool:
        """Whether a partition may contain records of the transaction that no marker has ended."""
        return self is State.ONGOING or self.is_decided


class Event(Enum):
    """An event that may change the state of a transactional id. The value describes the event in error messages."""

    INIT = "a producer takes over the transactional id"
    KEEP = "a producer takes over the transactional id and keeps the open transaction (KIP-939)"
    ADD = "a partition is added to the transaction"
    COMMIT = "the producer commits"
    ABORT = "the producer aborts"
    ABORT_NOTHING = (
        "a producer without an open transaction aborts: to get a new epoch, or because it was turned away"
    )
    COMMIT_AGAIN = "the producer repeats its last request, a commit"
    ABORT_AGAIN = "the producer repeats its last request, an abort"
    FENCE = "the coordinator aborts: after a timeout, for a successor, or for an operator"
    MARKED = "all markers of the decision are written"
    EXPIRE = "the transactional id has not been used for its expiration time"


_FENCED: Final = ErrorCode.producer_fenced
_WAIT: Final = ErrorCode.concurrent_transactions
_WRONG: Final = ErrorCode.invalid_txn_state

Outcome = State | ErrorCode | None  # The next state, or an error code. None means that the id is forgotten.

TRANSITIONS: Final[Mapping[State, Mapping[Event, Outcome]]] = {
    State.EMPTY: {
        Event.INIT: State.EMPTY,
        Event.KEEP: State.EMPTY,
        Event.ADD: State.ONGOING,
        Event.COMMIT: _WRONG,
        Event.ABORT: _WRONG,
        Event.ABORT_NOTHING: State.COMPLETE_ABORT,
        Event.COMMIT_AGAIN: _FENCED,
        Event.ABORT_AGAIN: _FENCED,
        Event.FENCE: _WRONG,
        Event.MARKED: _WRONG,
        Event.EXPIRE: None,
    },
    State.ONGOING: {
        # The new producer's InitProducerId aborts the open transaction. It gets CONCURRENT_TRANSACTIONS, so the new
        # producer retries.
        Event.INIT: State.PREPARE_ABORT,
        Event.KEEP: State.ONGOING,
        Event.ADD: State.ONGOING,
        Event.COMMIT: State.PREPARE_COMMIT,
        Event.ABORT: State.PREPARE_ABORT,
        Event.ABORT_NOTHING: _WRONG,
        Event.COMMIT_AGAIN: _FENCED,
        Event.ABORT_AGAIN: _FENCED,
        Event.FENCE: State.PREPARE_ABORT,
        Event.MARKED: _WRONG,
        Event.EXPIRE: _WRONG,
    },
    State.PREPARE_COMMIT: {
        Event.INIT: _WAIT,
        Event.KEEP: _WAIT,
        Event.ADD: _WAIT,
        Event.COMMIT: _WAIT,
        Event.ABORT: _WAIT,
        Event.ABORT_NOTHING: _WAIT,
        Event.COMMIT_AGAIN: State.PREPARE_COMMIT,
        Event.ABORT_AGAIN: _WRONG,
        Event.FENCE: _WRONG,
        Event.MARKED: State.COMPLETE_COMMIT,
        Event.EXPIRE: _WRONG,
    },
    State.PREPARE_ABORT: {
        Event.INIT: _WAIT,
        Event.KEEP: _WAIT,
        Event.ADD: _WAIT,
        Event.COMMIT: _WAIT,
        Event.ABORT: _WAIT,
        Event.ABORT_NOTHING: _WAIT,
        Event.COMMIT_AGAIN: _WRONG,
        Event.ABORT_AGAIN: State.PREPARE_ABORT,
        Event.FENCE: _WRONG,
        Event.MARKED: State.COMPLETE_ABORT,
        Event.EXPIRE: _WRONG,
    },
    State.COMPLETE_COMMIT: {
        Event.INIT: State.EMPTY,
        Event.KEEP: State.EMPTY,
        Event.ADD: State.ONGOING,
        Event.COMMIT: _WRONG,
        Event.ABORT: _WRONG,
        Event.ABORT_NOTHING: State.COMPLETE_ABORT,
        Event.COMMIT_AGAIN: State.COMPLETE_COMMIT,
        Event.ABORT_AGAIN: _WRONG,
        Event.FENCE: _WRONG,
        Event.MARKED: _WRONG,
        Event.EXPIRE: None,
    },
    State.COMPLETE_ABORT: {
        Event.INIT: State.EMPTY,
        Event.KEEP: State.EMPTY,
        Event.ADD: State.ONGOING,
        Event.COMMIT: _WRONG,
        Event.ABORT: _WRONG,
        Event.ABORT_NOTHING: State.COMPLETE_ABORT,
        Event.COMMIT_AGAIN: _WRONG,
        Event.ABORT_AGAIN: State.COMPLETE_ABORT,
        Event.FENCE: _WRONG,
        Event.MARKED: _WRONG,
        Event.EXPIRE: None,
    },
}


def next_state(state: State, event: Event) -> State | None:
    """Return the state after an event; None if the id is to be forgotten.

    Raises:
        RefusedError: the event is not valid in this state. Nothing has changed.
    """
    outcome = TRANSITIONS[state][event]
    if isinstance(outcome, ErrorCode):
        raise RefusedError(outcome, f"{event.value}, but its transaction is in state {state.label}")
    return outcome
