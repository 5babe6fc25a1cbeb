"""How much is run: which cases `make test` leaves to `make test-all`, and how much the random tests do, from which seed.

STABLELOG_SEED      where seeds begin (0)
STABLELOG_EXAMPLES  factor for the number of examples of Hypothesis (1); its own seed is pytest's --hypothesis-seed

Other variables say how often something is done: see docs/how-it-works/testing.md.
"""

import os
import random
from collections import defaultdict

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


def beyond_samples(items):
    """Return the items that the mark `sampled` leaves to `make test-all`: of each test all but the sample, which is spread
    evenly over its cases.
    """
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for several in cases.values():
        (size,) = several[0].get_closest_marker("sampled").args
        kept = {number * len(several) // size for number in range(size)}
        yield from (item for number, item in enumerate(several) if number not in kept)
