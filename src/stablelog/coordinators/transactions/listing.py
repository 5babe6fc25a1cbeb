"""Filters of ListTransactions: this module reads the filter by names of states. `coordinators.patterns` matches the
patterns of transactional ids.

Source: KIP-664, KIP-994, KIP-1152.
"""

from collections.abc import Collection
from typing import Final

from stablelog.coordinators.transactions.states import TransactionState

KAFKA_ONLY_LABELS: Final = frozenset({"Dead", "PrepareEpochFence"})

_STATES: Final = {state.label: state for state in TransactionState}


def parse_state_names(labels: Collection[str]) -> tuple[set[TransactionState], list[str]]:
    """Convert Kafka's names of transaction states, such as "Ongoing", to states.

    Returns:
        A pair: the states, and the names in `labels` that are no state of Kafka's. A state of Kafka's that stablelog
        does not have, such as "Dead", appears in neither.
    """
    known = {_STATES[label] for label in labels if label in _STATES}
    return known, [label for label in labels if label not in _STATES and label not in KAFKA_ONLY_LABELS]
