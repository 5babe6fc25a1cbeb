"""Filters for the states of transactions."""

from stablelog.coordinators.transactions.listing import states_named
from stablelog.coordinators.transactions.states import State


def test_states_are_known_by_kafkas_names() -> None:
    assert states_named(["Ongoing", "CompleteAbort"]) == ({State.ONGOING, State.COMPLETE_ABORT}, [])
    assert states_named(["Dead", "PrepareEpochFence"]) == (set(), [])
    assert states_named(["ongoing", "Bogus"]) == (set(), ["ongoing", "Bogus"])
