"""Filters for the states of transactions."""

from stablelog.coordinators.transactions.listing import parse_state_names
from stablelog.coordinators.transactions.states import TransactionState


def test_states_are_known_by_kafkas_names() -> None:
    assert parse_state_names(["Ongoing", "CompleteAbort"]) == (
        {TransactionState.ONGOING, TransactionState.COMPLETE_ABORT},
        [],
    )
    assert parse_state_names(["Dead", "PrepareEpochFence"]) == (set(), [])
    assert parse_state_names(["ongoing", "Bogus"]) == (set(), ["ongoing", "Bogus"])
