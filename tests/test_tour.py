"""docs/how-it-works/tour.md leads through the code as a request and a start do."""

import re

import pytest

from tests import documented
from tests.walks import SOURCE, walks

TOUR = documented.page("tour.md")
WALKS = re.findall(r"^### (.+)\n((?:(?!^##).*\n)+)", TOUR.partition("## Three walks")[2], re.M)


@pytest.fixture(scope="module")
def followed():
    return walks()


def test_the_tour_has_each_walk(followed):
    assert [heading for heading, _ in WALKS] == list(followed)


@pytest.mark.parametrize(("heading", "text"), WALKS, ids=[heading for heading, _ in WALKS])
def test_a_walk_reaches_each_module_that_the_tour_names(heading, text, followed):
    named = [place for place in re.findall(r"`([\w/]+\.py)`", text) if (SOURCE / place).exists()]
    assert len(named) >= 10
    left_out = [place for place in named if place not in followed[heading]]
    assert left_out == [], (
        f"{heading} does not pass these modules; python -m tests.walks prints those that it passes"
    )


@pytest.mark.parametrize(("heading", "text"), WALKS, ids=[heading for heading, _ in WALKS])
def test_the_steps_of_a_walk_are_in_its_order(heading, text, followed):
    # Within a step the order of the sentences is free: its first module is what the order is judged by.
    steps = re.split(r"^\d+\. ", text, flags=re.M)[1:]
    first = [min(followed[heading].index(place) for place in places) for places in _places(steps)]
    assert first == sorted(first), f"{heading}: {list(zip(first, steps, strict=True))}"


def _places(steps):
    """The modules that each step names for the first time, of the steps that name any."""
    seen = set()
    for step in steps:
        places = [place for place in re.findall(r"`([\w/]+\.py)`", step) if place not in seen]
        seen.update(places)
        if places:
            yield places
