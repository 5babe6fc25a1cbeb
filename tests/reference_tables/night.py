"""The table of the parts of `make night`."""

import shlex

from tests.night import PARTS, Part, tests
from tests.reference_tables import table

PYTEST = tests("")[:-1]


def tables() -> dict[str, str]:
    return {"night": table(("part", "what it runs"), ((f"`{part.name}`", _words(part)) for part in PARTS))}


def _words(part: Part) -> str:
    """The variables of a part, and its tests or its module, without the options that all parts have."""
    words = part.words[len(PYTEST) :] if part.words[: len(PYTEST)] == PYTEST else part.words[1:]
    pairs = zip(words, (*words[1:], ""), strict=True)
    left_out = ("--seed", "{seed}")
    shown = [
        word.format(seed="N", end=f"N+{part.seeds}")
        for word, after in pairs
        if (word, after) != left_out and word != "{seed}" and not word.startswith("--timeout")
    ]
    variables = [f"{name}={value}" for name, value in part.environment.items()]
    return f"`{' '.join([*variables, shlex.join(shown)])}`"
