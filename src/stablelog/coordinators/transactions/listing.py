"""Which transactional ids does someone want to see?

Patterns come from clients and are matched by Python's `re`, which can be made to run for ever. So only patterns
are taken that cannot: no repeated group, no back reference, at most two open-ended repetitions.

Source: KIP-664, KIP-994, KIP-1152.
"""

import re
from collections.abc import Callable, Collection
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.states import KAFKA_ONLY_LABELS, LABELS, State
from stablelog.errors import Refused

PATTERN_SIZE_MAX: Final = 255
OPEN_REPETITIONS_MAX: Final = 2

_STATES: Final = {label: state for state, label in LABELS.items()}


def states_named(labels: Collection[str]) -> tuple[set[State], list[str]]:
    """The states with these names, and the names that are no state."""
    known = {_STATES[label] for label in labels if label in _STATES}
    return known, [label for label in labels if label not in _STATES and label not in KAFKA_ONLY_LABELS]


def id_matcher(pattern: str | None) -> Callable[[str], bool]:
    """A test of whether a whole transactional id matches. No pattern, or an empty one, matches every id.

    Raises:
        Refused: the pattern is none, or could take very long.
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
    """Refuse what backtracking could take more than about the square of the id's length for."""
    if len(pattern) > PATTERN_SIZE_MAX:
        raise Refused(
            ErrorCode.invalid_regular_expression,
            f"a pattern of {len(pattern)} characters; at most {PATTERN_SIZE_MAX}",
        )
    plain = re.sub(r"\\[^\dgk]", "_", pattern)  # an escaped character is a character, \1 is not
    plain = re.sub(r"\[\^?\]?[^]]*\]", "_", plain)  # and so is a class
    repetitions = len(re.findall(r"[*+]|\{\d*,\d*\}", plain))
    if "\\" in plain or "(?" in plain or re.search(r"\)[*+{]", plain) or repetitions > OPEN_REPETITIONS_MAX:
        raise Refused(
            ErrorCode.invalid_regular_expression,
            f"{pattern!r} could take very long to match; use at most {OPEN_REPETITIONS_MAX} repetitions, of single "
            "characters, and no references",
        )
