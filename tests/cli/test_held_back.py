"""What waits for the end of a transaction, by the order of the topic and the rights of the user."""

from types import SimpleNamespace

import pytest

from stablelog.cli.admin import held_back
from stablelog.errors import RefusedError


def admin_of(settings):
    def describe(kind, topic, names):
        if isinstance(settings, Exception):
            raise settings
        return {name: value for name, value in settings.items() if name in names}

    return SimpleNamespace(configs=SimpleNamespace(describe=describe))


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"stablelog.order": SimpleNamespace(value="offset")}, 3),
        ({"stablelog.order": SimpleNamespace(value="commit")}, 0),
        ({"cleanup.policy": SimpleNamespace(value="delete")}, 3),
        (RefusedError(29, "no right"), None),
    ],
    ids=["offsets", "commit order", "Apache Kafka", "no right"],
)
def test_the_order_of_the_topic_says_whether_readers_wait(settings, count):
    ends, stable = {("t", 0): 8, ("t", 1): 4}, {("t", 0): 5, ("t", 1): 4}
    assert held_back(admin_of(settings), ends, stable) == {("t", 0): count, ("t", 1): 0}


def test_records_that_came_in_between_do_not_wait():
    assert held_back(admin_of(AssertionError()), {("t", 0): 5}, {("t", 0): 7}) == {("t", 0): 0}
