"""How much the random tests do, and from which seed: little in `make test`, much in `make night`.

STABLELOG_SEED      where seeds begin (0)
STABLELOG_EXAMPLES  factor for the number of examples of Hypothesis (1); its own seed is pytest's --hypothesis-seed

Other variables say how often something is done: see docs/testing.md.
"""

import os
import random

SEED = int(os.environ.get("STABLELOG_SEED", "0"))
FACTOR = int(os.environ.get("STABLELOG_EXAMPLES", "1"))


def examples(count):
    """The number of examples of a test that has so many in `make test`."""
    return count * FACTOR


def seeds(count):
    """Range of so many seeds, from STABLELOG_SEED on."""
    return range(SEED, SEED + count)


def randomness(*words):
    """A source of randomness of its own for each combination of words."""
    return random.Random(f"{SEED} {words}")
