"""Minima over a row against a look at every value."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as some

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


@pytest.mark.extended
@given(some.lists(some.integers(0, 30), max_size=3 * FANOUT**2), some.integers(0, 31), some.data())
def test_the_minima_find_every_value_below_a_bound(row, bound, data):
    minima = Minima()
    for count in sorted(data.draw(some.lists(some.integers(0, len(row)), max_size=3))):
        minima.extend_to(count, lambda begin, end: row[begin:end])
    minima.extend_to(len(row), lambda begin, end: row[begin:end])
    end = data.draw(some.integers(0, len(row)))
    begin = data.draw(some.integers(0, len(row)))
    assert list(minima.below(bound, begin, end)) == [at for at in range(begin, end) if row[at] < bound]
