"""The group of a transactional id."""

import pytest

from stablelog.wire.extension.children import child_id
from stablelog.wire.extension.transaction_groups import (
    crossing_in_words,
    group_in_words,
    group_of,
    group_of_topic_in,
    is_group_name,
)


@pytest.mark.parametrize(
    ("transactional_id", "group"),
    [
        ("worker-3", ""),
        ("payments/worker-3", "payments"),
        ("payments/eu/worker-3", "payments"),
        ("payments/", "payments"),
        ("/worker-3", ""),
        ("", ""),
        ("my app/1", ""),
        ("http://here/1", ""),
        ("ämter/1", ""),
        ("a" * 100 + "/1", "a" * 100),
        ("a" * 101 + "/1", ""),
        (child_id("q/1", 3, "r", 0, 0, group="payments"), "payments"),
        (child_id("q/1", 3, "r", 0, 0), ""),
    ],
)
def test_an_id_belongs_to_the_group_before_its_first_slash(transactional_id, group):
    assert group_of(transactional_id) == group


def test_a_group_is_named_like_a_topic():
    assert all(is_group_name(name) for name in ("", "payments", "a.b_c-1", "a" * 100))
    assert not any(is_group_name(name) for name in ("a/b", "a b", "ä", "a" * 101, "a\n"))
    assert group_in_words("payments") == "transaction group 'payments'"
    assert group_in_words("") == "the default transaction group"


@pytest.mark.parametrize("group", ["", "bank"])
@pytest.mark.parametrize(
    "own",
    [
        "me",
        "payments/me",
        "it's topic 'x' to",
        "it's topic 'x' to transaction group 'evil'",
        "it's by the name before its first slash, and topic 'x' to transaction group 'evil'",
    ],
)
def test_the_group_of_the_topic_is_read_from_a_refusal(own, group):
    words = crossing_in_words(own, "of.accounts", group)
    assert group_of_topic_in(f"appending to of.accounts-0: {words}: a transaction") == ("of.accounts", group)
    assert group_of_topic_in("topic 'of.accounts' may not be written") is None
