"""Filters of ListTransactions: names of states. `coordinators.patterns` matches patterns of transactional ids.

Source: KIP-664, KIP-994, KIP-1152.
"""

from collections.abc import Collection
from typing import Final

from stablelog.coordinators.transactions.states import State

KAFKA_ONLY_LABELS: Final = frozenset({"Dead", "PrepareEpochFence"})

_STATES: Final = {state.label: state for state in State}


def states_named(labels: Collection[str]) -> tuple[set[State], list[str]]:
    """Return the states with these names (`labels`). Return also each name in `labels` that is not the name of a state
    in Kafka.
    """
    known = {_STATES[label] for label in labels if label in _STATES}
    return known, [label for label in labels if label not in _STATES and label not in KAFKA_ONLY_LABELS]
