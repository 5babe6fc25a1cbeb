"""Filters of ListTransactions: names of states and patterns of transactional ids.

Patterns come from clients and are matched by Python's `re`, which takes unlimited time for some patterns. So only
patterns are accepted that cannot take long: without repeated groups and back references, and with at most two
repetitions without an upper limit.

Source: KIP-664, KIP-994, KIP-1152.
"""

import re
from collections.abc import Callable, Collection
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.states import State
from stablelog.errors import Refused

PATTERN_SIZE_MAX: Final = 255
OPEN_REPETITIONS_MAX: Final = 2
KAFKA_ONLY_LABELS: Final = frozenset({"Dead", "PrepareEpochFence"})

_STATES: Final = {state.label: state for state in State}


def states_named(labels: Collection[str]) -> tuple[set[State], list[str]]:
    """Return the states with these names (`labels`). Return also each name in `labels` that is not the name of a state
    in Kafka.
    """
    known = {_STATES[label] for label in labels if label in _STATES}
    return known, [label for label in labels if label not in _STATES and label not in KAFKA_ONLY_LABELS]


def id_matcher(pattern: str | None) -> Callable[[str], bool]:
    """Return a function that checks whether a whole transactional id matches.

    No pattern, or an empty one, matches all ids.

    Raises:
        Refused: the pattern is not a regular expression, or could take very long.
    """
    if not pattern:
        return lambda _transactional_id: True
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise Refused(
            ErrorCode.invalid_regular_expression, f"{pattern!r} is not a regular expression: {error}"
        ) from None
    _check_cost(pattern)
    return lambda transactional_id: compiled.fullmatch(transactional_id) is not None


def _check_cost(pattern: str) -> None:
    """Refuse a pattern whose match could take more steps than about the square of the transactional id's length."""
    if len(pattern) > PATTERN_SIZE_MAX:
        raise Refused(
            ErrorCode.invalid_regular_expression,
            f"the pattern has {len(pattern)} characters; at most {PATTERN_SIZE_MAX} are allowed",
        )
    # An escaped character counts as one character, but \1 to \9 are references and stay.
    plain = re.sub(r"\\[^\dgk]", "_", pattern)
    plain = re.sub(r"\[\^?\]?[^]]*\]", "_", plain)  # A character class such as [a-z] counts as one character.
    repetitions = len(re.findall(r"[*+]|\{\d*,\d*\}", plain))
    if "\\" in plain or "(?" in plain or re.search(r"\)[*+{]", plain) or repetitions > OPEN_REPETITIONS_MAX:
        raise Refused(
            ErrorCode.invalid_regular_expression,
            f"{pattern!r} could take very long to match; use at most {OPEN_REPETITIONS_MAX} repetitions, of single "
            "characters, and no references",
        )
