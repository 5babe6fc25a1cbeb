"""Filters for transactional ids."""

import time

import pytest
from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.listing import id_matcher, states_named
from stablelog.coordinators.transactions.states import State
from stablelog.errors import Refused


def test_states_are_known_by_kafkas_names() -> None:
    assert states_named(["Ongoing", "CompleteAbort"]) == ({State.ONGOING, State.COMPLETE_ABORT}, [])
    assert states_named(["Dead", "PrepareEpochFence"]) == (set(), [])
    assert states_named(["ongoing", "Bogus"]) == (set(), ["ongoing", "Bogus"])


@pytest.mark.parametrize(
    "pattern", [None, "", ".*", "a.*", "a[/-]\\d+", "(a|b)/1", "a/[0-9]{1,3}", "[^b].*", "a\\/1"]
)
def test_patterns_match_whole_ids(pattern: str | None) -> None:
    matches = id_matcher(pattern)
    assert matches("a/1")
    assert pattern in (None, "", ".*", "[^b].*") or not matches("xa/1")


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+",
        "(a*)*b",
        "(a|aa)+b",
        ".*.*.*x",
        "(.)\\1",
        "(?=a)b",
        "(",
        "a{2",
        "x" * 300,
        "(a{1,9}){1,9}b",
        "[a](b+)*",
    ],
)
def test_patterns_that_could_take_for_ever_are_refused(pattern: str) -> None:
    if pattern == "a{2":  # to Python this is text
        assert id_matcher(pattern)("a{2")
        return
    with pytest.raises(Refused) as caught:
        id_matcher(pattern)
    assert caught.value.code is ErrorCode.invalid_regular_expression


def test_the_worst_pattern_that_is_taken_is_quick() -> None:
    matches = id_matcher(".*.*x")
    began = time.thread_time()
    assert not matches("a" * 1024)
    assert time.thread_time() - began < 1


@pytest.mark.parametrize(
    ("taken", "refused"),
    [
        ("x" * 255, "x" * 256),
        ("a*b+", "a*b+c{0,}"),
        ("a{1,2}b{,3}", "a{1,2}b{,3}c*"),
        ("[*+]*\\*\\+b*", "[*+]*\\*\\+b*c+"),
        ("(ab)c*", "(ab)*c"),
        ("\\.\\-", "(a)\\1"),
    ],
    ids=["size", "open ends", "counts", "escapes", "groups", "references"],
)
def test_a_pattern_has_255_characters_and_two_repetitions_of_single_ones(taken: str, refused: str) -> None:
    id_matcher(taken)
    with pytest.raises(Refused) as caught:
        id_matcher(refused)
    assert caught.value.code is ErrorCode.invalid_regular_expression
