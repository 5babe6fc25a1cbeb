"""The table of states and events."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.states import (
    TRANSITIONS,
    TransactionEvent,
    TransactionState,
    next_state,
)
from stablelog.errors import RefusedError


def test_every_event_has_its_outcome_in_every_state() -> None:
    assert TRANSITIONS.keys() == set(TransactionState)
    assert all(row.keys() == set(TransactionEvent) for row in TRANSITIONS.values())
    assert [state.label for state in (TransactionState.EMPTY, TransactionState.PREPARE_COMMIT)] == [
        "Empty",
        "PrepareCommit",
    ]


def test_an_outcome_is_decided_once() -> None:
    """Scenario 41: from a decision there is one way, and it leads to the same outcome."""
    for state, same in (
        (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT),
        (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT),
    ):
        after = {outcome for outcome in TRANSITIONS[state].values() if isinstance(outcome, TransactionState)}
        assert after == {state, same}


def test_only_open_transactions_are_decided() -> None:
    for state, row in TRANSITIONS.items():
        decides = {
            e for e, outcome in row.items() if isinstance(outcome, TransactionState) and outcome.is_decided
        }
        if state is TransactionState.ONGOING:
            assert decides == {
                TransactionEvent.INIT,
                TransactionEvent.COMMIT,
                TransactionEvent.ABORT,
                TransactionEvent.FENCE,
            }
        else:
            assert decides <= {TransactionEvent.COMMIT_AGAIN, TransactionEvent.ABORT_AGAIN}


def test_only_ids_at_rest_are_forgotten() -> None:
    for state, row in TRANSITIONS.items():
        assert (row[TransactionEvent.EXPIRE] is None) == (not state.is_open)
        assert all(
            outcome is not None for event, outcome in row.items() if event is not TransactionEvent.EXPIRE
        )


def test_a_refusal_says_what_and_where() -> None:
    with pytest.raises(
        RefusedError, match="the transaction is in state Empty: the producer commits"
    ) as caught:
        next_state(TransactionState.EMPTY, TransactionEvent.COMMIT)
    assert caught.value.code is ErrorCode.invalid_txn_state
