"""The checker finds what must not be, each kind of it, and nothing where all is well."""

import pytest

from stablelog.testing.history import Fate, History, Seen, WrittenTransaction, check

C, A, U = Fate.COMMITTED, Fate.ABORTED, Fate.UNKNOWN
NEVER = float("inf")


def test_a_history_in_which_all_is_well():
    history = History(
        [
            WrittenTransaction(C, (b"a", b"b"), "w", 1.0),
            WrittenTransaction(A, (b"c",), "w", NEVER),
            WrittenTransaction(U, (b"d", b"e"), "w", 5.0),
            (C, (b"f",)),
        ],
        {0: [(0, b"a"), (3, b"b")], 1: [(0, b"f")]},
        {0: [(1, 0), (4, 4), (9, 4)]},
        {0: [Seen(1.0, 0, b"a"), Seen(2.0, 3, b"b")]},
        {0: [(0, b"a"), (3, b"b"), (5, b"c")], 1: [(0, b"f")]},
        {b"a": (0, 0), b"c": (0, 5)},
    )
    assert check(history) == []


def test_a_transaction_whose_fate_is_not_known_may_be_there_as_a_whole():
    assert check(History([(U, (b"d", b"e"))], {0: [(0, b"d"), (1, b"e")]})) == []


@pytest.mark.parametrize(
    ("history", "word"),
    [
        (History([(C, (b"a",))], {0: []}), "lost"),
        (History([(A, (b"a",))], {0: [(0, b"a")]}), "aborted yet read"),
        (History([WrittenTransaction(U, (b"a",), "w", NEVER)], {0: [(0, b"a")]}), "aborted yet read"),
        (History([(C, (b"a",))], {0: [(0, b"a"), (1, b"a")]}), "duplicated"),
        (History([(C, (b"a",))], {0: [(0, b"a")], 1: [(0, b"a")]}), "duplicated"),
        (History([(U, (b"a", b"b"))], {0: [(0, b"a")]}), "torn"),
        (History([(U, (b"a", b"b"))], {0: [(0, b"a")], 1: []}), "torn"),
        (History([], {0: [(0, b"x")]}), "never written"),
        (History([(C, (b"a",)), (C, (b"b",))], {0: [(4, b"a"), (3, b"b")]}), "came after"),
        (History([(C, (b"a",)), (C, (b"b",))], {0: [(4, b"a"), (4, b"b")]}), "came after"),
        (History([(C, (b"a", b"b"))], {0: [(3, b"b"), (4, b"a")]}), "was written before"),
        (
            History(
                [WrittenTransaction(C, (b"a",), "w"), WrittenTransaction(C, (b"b",), "w")],
                {0: [(3, b"b"), (4, b"a")]},
            ),
            "was written before",
        ),
        (History([], {}, {0: [(5, 5), (4, 4)]}), "moved back"),
        (History([], {}, {0: [(5, 5), (6, 4)]}), "moved back"),
        (History([], {}, {0: [(5, 5), (4, 5)]}), "moved back|past the high watermark"),
        (History([], {}, {0: [(5, 6)]}), "past the high watermark"),
        (
            History(
                [WrittenTransaction(C, (b"a",), "w", 3.0)], {0: [(0, b"a")]}, live={0: [Seen(2.9, 0, b"a")]}
            ),
            "before its commit",
        ),
        (
            History(
                [(C, (b"a",)), (C, (b"b",))], {0: [(0, b"b")], 1: [(0, b"a")]}, live={0: [Seen(1, 0, b"a")]}
            ),
            "was read as b'a', and is b'b' now",
        ),
        (History([(A, (b"a",))], {0: []}, live={0: [Seen(1, 0, b"a")]}), "was read as b'a', and is None now"),
        (
            History([(C, (b"a",)), (C, (b"b",))], {0: [(0, b"a"), (1, b"b")]}, live={0: [Seen(1, 1, b"b")]}),
            "offset 0 was passed by",
        ),
        (
            History([(C, (b"a",))], {0: [(0, b"a")]}, live={0: [Seen(1, 0, b"a"), Seen(2, 0, b"a")]}),
            "handed out twice",
        ),
        (History([], acknowledged={b"a": (0, 5)}, everything={0: []}), "not there"),
        (History([], acknowledged={b"a": (0, 5)}, everything={0: [(6, b"a")]}), "not there"),
        (History([], acknowledged={b"a": (0, 5)}, everything={0: [(5, b"b")]}), "not there"),
        (History([], everything={0: [(5, b"b"), (6, b"b")]}), "stored 2 times"),
    ],
)
def test_what_must_not_be_is_found(history, word):
    findings = check(history)
    assert findings
    assert all(any(part in finding for part in word.split("|")) for finding in findings)
