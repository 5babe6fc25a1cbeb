"""Patterns of names, as clients send them."""

import contextlib
import re
import time
import warnings

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from stablelog.coordinators import patterns
from stablelog.coordinators.patterns import name_matcher
from stablelog.errors import RefusedError
from tests.scale import examples


@pytest.mark.parametrize(
    "pattern",
    [
        None,
        "",
        ".*",
        "a.*",
        "a[/-]\\d+",
        "(a|b)/1",
        "a/[0-9]{1,3}",
        "[^b].*",
        "a\\/1",
        "^a/1$",
        "(?:b|a)/(?:1)",
        "(?:(?:a/)|(?:b/)).*",
    ],
)
def test_patterns_match_whole_ids(pattern: str | None) -> None:
    matches = name_matcher(pattern)
    assert matches("a/1")
    assert pattern in (None, "", ".*", "[^b].*") or not matches("xa/1")


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+",
        "(a|aa)+b",
        "(ab){2}",
        "(.)\\1",
        "(.)(?P=n)",
        "(?=a)b",
        "(?i)a",
        "(?:a)*",
        "(?:a",
        "(",
        "a*+",
        "\\bx",
        "a{501}b{500}",
        "a{2,1001}",
        "x" * 256,
        "a)b",
        "(a",
        "a{3,2}",
        "[b-a]",
        "[a-\\d]",
        "[\\d-a]",
        "[\\q]",
        "[\\400]",
        "[\\U00110000]",
        "[^]",
        "[a",
        "a\\",
    ],
)
def test_what_is_not_supported_is_refused(pattern: str) -> None:
    with pytest.raises(RefusedError) as caught:
        name_matcher(pattern)
    assert caught.value.code is ErrorCode.invalid_regular_expression


def test_the_largest_counts_and_the_longest_pattern_are_taken() -> None:
    assert name_matcher("a{500}b{,500}")("a" * 500)
    assert name_matcher("x" * 255)("x" * 255)
    assert name_matcher("a{2")("a{2"), "not a repetition"


def test_a_long_pattern_is_refused_before_python_reads_it() -> None:
    """Python takes seconds for a pattern of 5 MB."""
    with pytest.raises(RefusedError, match="has 257 characters"):
        name_matcher("(" + "x" * 256)


@pytest.mark.parametrize(
    ("pattern", "transactional_id"),
    [
        (".?" * 60 + "!", "orders-writer-1"),
        ("a?" * 60 + "a" * 40, "a" * 39),
        ("(a|.)" * 50, "a" * 49 + "\n"),
        (".{0,1}" * 40 + "!", "a" * 40),
        (".*" * 100 + "!", "a" * 100),
        ("a*a*" + "a" * 250 + "b", "a" * 1024),
    ],
)
def test_each_element_of_a_pattern_is_applied_once(
    monkeypatch: pytest.MonkeyPatch, pattern: str, transactional_id: str
) -> None:
    """Python's own match of these takes from 150 ms to years."""
    matches = name_matcher(pattern)
    looked_up = []
    real = patterns.NameText.positions_of
    monkeypatch.setattr(
        patterns.NameText, "positions_of", lambda *given: looked_up.append(given[1]) or real(*given)
    )
    assert not matches(transactional_id)
    assert len(looked_up) <= len(pattern)


ID_SIZE_MAX = 1024
WORST = {
    "wide classes": "[\0-\uffff]" * 51,
    "different classes": "".join(f"[{chr(0x100 + at)}-\uffff]" for at in range(51)),
    "negated classes": "[^\0-\uffff]" * 42,
    "many ranges": "[" + "".join(f"{chr(0x4E00 + 2 * at)}-{chr(0x4E00 + 2 * at)}" for at in range(84)) + "]+",
    "categories": "\\w\\W\\s\\S\\d\\D" * 21,
    "optional classes": "".join(f"[^{chr(0x4E00 + at)}]?" for at in range(51)),
    "counts": ".{,999}",
    "groups": "(" * 127 + ")" * 127,
    "alternatives": "|" * 255,
    "no class": "[" * 255,
    "no count": "a{" + "1" * 253,
    "a long count": "a{" + "9" * 252 + "}",
}


@pytest.mark.parametrize("pattern", WORST.values(), ids=WORST)
def test_no_pattern_takes_long_to_read_or_to_match(pattern: str) -> None:
    """Python's `re.compile` takes 0.3 s for some of these. A request needs no right to send one."""
    assert len(pattern) <= patterns.PATTERN_SIZE_MAX
    name = "".join(chr(0x4E00 + at) for at in range(ID_SIZE_MAX))
    took = []
    for _ in range(3):  # The least of three: other programs use the same caches of the processor.
        re.purge()
        begun = time.thread_time()
        with contextlib.suppress(RefusedError):
            name_matcher(pattern)(name)
        took.append(time.thread_time() - begun)
    assert min(took) < 0.010


CLASSES = [
    "[0-9b-]",
    "[^\\d.]",
    "[\\W1]",
    "\\w",
    "\\S",
    "[\\x61\\n]",
    "[^]a]",
    "[--1]",
    "[\\0-\\u0061]",
    "[\\]-b]",
]
ATOMS = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", "\\d", "\\.", "{", "}", "-", "[]a-]", "^", "$", "\n", *CLASSES]
)
REPEATS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,2}", "{,2}", "{1,}", "*?", "{2}?", "{,}", "{0}"])
ELEMENTS = st.recursive(
    st.builds(lambda atom, repeat: atom if atom in "^$" else atom + repeat, ATOMS, REPEATS),
    lambda inner: (
        st.lists(st.lists(inner, max_size=3).map("".join), min_size=1, max_size=3).map(
            lambda branches: f"({'|'.join(branches)})"
        )
        | st.lists(inner, min_size=1, max_size=3).map(lambda branches: f"(?:{'|'.join(branches)})")
    ),
    max_leaves=8,
)


@pytest.mark.extended
@settings(deadline=None, max_examples=examples(200))
@given(st.lists(ELEMENTS, min_size=1, max_size=4).map("".join), st.text("aab1.-{\n", max_size=7))
def test_ids_match_as_in_python(pattern: str, transactional_id: str) -> None:
    assume(len(pattern) <= patterns.PATTERN_SIZE_MAX)
    expected = re.fullmatch(pattern, transactional_id) is not None
    assert name_matcher(pattern)(transactional_id) == expected


@pytest.mark.extended
@settings(deadline=None, max_examples=examples(400))
@given(st.text("ab[]^-\\{},12().|?*+$d\n", max_size=12), st.text("ab12-d[]^{\n", max_size=5))
def test_a_pattern_is_taken_only_if_python_takes_it_and_means_the_same(pattern: str, name: str) -> None:
    try:
        matches = name_matcher(pattern)
    except RefusedError:
        return
    with warnings.catch_warnings(
        action="ignore"
    ):  # Python warns of "[[", which it may read as a set of sets one day.
        expected = not pattern or re.fullmatch(pattern, name) is not None
    assert matches(name) == expected
