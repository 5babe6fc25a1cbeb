"""Minima over a row against a look at every value."""

import random

import pytest

from stablelog.log.indexes.minima import FANOUT, Minima


@pytest.mark.parametrize("count", [1, FANOUT, FANOUT + 1, FANOUT**2 + 3, 700])
@pytest.mark.parametrize("seed", range(3))
def test_places_below_a_bound_are_those_of_a_look_at_every_value(count, seed):
    chance = random.Random(seed)
    row = [chance.randint(0, 30) for _ in range(count)]
    minima = Minima()
    known = 0
    while known < count:
        known = min(known + chance.randint(1, 40), count)
        minima.extend_to(known, lambda begin, end: row[begin:end])
        for _ in range(10):
            begin, end = sorted((chance.randint(0, known), chance.randint(0, known)))
            bound = chance.randint(0, 31)
            wanted = [place for place in range(begin, end) if row[place] < bound]
            assert list(minima.below(bound, begin, end)) == wanted
