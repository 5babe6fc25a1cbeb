"""Which partitions a reader does not read now."""

import pytest

from stablelog.client.core.pauses import PausedPartitions
from stablelog.errors import UsageError

TARGETS = [("t", 0), ("t", 1), ("u", 0)]


@pytest.fixture
def paused():
    return PausedPartitions()


def test_nothing_is_paused_at_first(paused):
    assert paused.select_paused(TARGETS) == frozenset()


def test_a_partition_is_paused_alone(paused):
    paused.pause("t", 1)
    assert paused.select_paused(TARGETS) == {("t", 1)}
    paused.resume("t", 1)
    assert paused.select_paused(TARGETS) == frozenset()


def test_a_topic_is_paused_with_partitions_that_are_added_later(paused):
    paused.pause("t", None)
    assert paused.select_paused([*TARGETS, ("t", 7)]) == {("t", 0), ("t", 1), ("t", 7)}


def test_all_pauses_of_a_topic_end_together(paused):
    for partition in (0, None):
        paused.pause("t", partition)
    paused.pause("u", 0)
    paused.resume("t", None)
    assert paused.select_paused(TARGETS) == {("u", 0)}


def test_a_partition_of_a_paused_topic_is_not_resumed_alone(paused):
    paused.pause("t", None)
    with pytest.raises(
        UsageError, match=r"^t-1 cannot be resumed alone, .* resume 't', and pause its other partitions$"
    ):
        paused.resume("t", 1)
    assert paused.select_paused(TARGETS) == {("t", 0), ("t", 1)}


def test_to_resume_what_is_not_paused_changes_nothing(paused):
    paused.pause("t", 0)
    paused.resume("t", 1)
    paused.resume("u", None)
    assert paused.select_paused(TARGETS) == {("t", 0)}
