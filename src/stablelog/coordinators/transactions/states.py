"""Which states can a transactional id be in, and what may happen in each?

`TRANSITIONS` is the whole of it: for every state and every event either the state that follows or the code with
which the event is refused. The coordinator asks `next_state` before it changes anything, so a refused event
leaves everything as it was.

The numbers and names of the states are Kafka's: they stand in the commit log and in DescribeTransactions. Kafka
has two more: Dead (6), which is here the absence of the id, and PrepareEpochFence (7), which only Kafka's memory
knows and which is here the event FENCE.

Source: KIP-98, KIP-360, KIP-890, KIP-939; docs/decisions/0003-transactions.md.
"""

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.errors import Refused


class State(IntEnum):
    """The state of a transactional id, by Kafka's number for it."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def label(self) -> str:
        """Kafka's name for it."""
        return LABELS[self]

    @property
    def is_decided(self) -> bool:
        """Whether the outcome is durable, or will be before anyone hears of it, but markers are still to be written."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        """Whether the last transaction is over, markers and all."""
        return self in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)

    @property
    def is_open(self) -> bool:
        """Whether a partition may hold records of the transaction that no marker has ended."""
        return self is State.ONGOING or self.is_decided


LABELS: Final[Mapping[State, str]] = {
    State.EMPTY: "Empty",
    State.ONGOING: "Ongoing",
    State.PREPARE_COMMIT: "PrepareCommit",
    State.PREPARE_ABORT: "PrepareAbort",
    State.COMPLETE_COMMIT: "CompleteCommit",
    State.COMPLETE_ABORT: "CompleteAbort",
}
KAFKA_ONLY_LABELS: Final = frozenset({"Dead", "PrepareEpochFence"})


class Event(Enum):
    """What can happen to a transactional id."""

    INIT = "a producer takes over the id"
    KEEP = "a producer takes over the id and keeps the open transaction (KIP-939)"
    ADD = "a partition becomes part of the transaction"
    COMMIT = "the producer commits"
    ABORT = "the producer aborts"
    ABORT_NOTHING = (
        "a producer aborts without an open transaction: for a new epoch, or because it was turned away"
    )
    COMMIT_AGAIN = "the producer asks again for the commit that it asked for last"
    ABORT_AGAIN = "the producer asks again for the abort that it asked for last"
    FENCE = "the coordinator aborts: the time is up, a successor has come, or by hand"
    MARKED = "the decision's markers stand in all partitions"
    EXPIRE = "the id has not been used for long"


_FENCED: Final = ErrorCode.producer_fenced
_WAIT: Final = ErrorCode.concurrent_transactions
_WRONG: Final = ErrorCode.invalid_txn_state

Outcome = State | ErrorCode | None  # None: the id is forgotten

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
        Event.INIT: State.PREPARE_ABORT,  # and the successor is told to come again: CONCURRENT_TRANSACTIONS
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
    """The state after the event; None if the id is to be forgotten.

    Raises:
        Refused: the event is not legal in this state. Nothing was changed.
    """
    outcome = TRANSITIONS[state][event]
    if isinstance(outcome, ErrorCode):
        raise Refused(outcome, f"{event.value}, while the transaction is in state {state.label}")
    return outcome
