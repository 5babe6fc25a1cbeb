import pytest

from stablelog.testing.history import Fate, History, check

C, A, U = Fate.COMMITTED, Fate.ABORTED, Fate.UNKNOWN


def test_a_history_in_which_all_is_well():
    history = History(
        [(C, (b"a", b"b")), (A, (b"c",)), (U, (b"d", b"e"))],
        {0: [(0, b"a"), (3, b"b")]},
        {0: [(1, 0), (4, 4)]},
    )
    assert check(history) == []


@pytest.mark.parametrize(
    ("history", "word"),
    [
        (History([(C, (b"a",))], {0: []}), "lost"),
        (History([(A, (b"a",))], {0: [(0, b"a")]}), "aborted yet read"),
        (History([(C, (b"a",))], {0: [(0, b"a"), (1, b"a")]}), "duplicated"),
        (History([(U, (b"a", b"b"))], {0: [(0, b"a")]}), "torn"),
        (History([], {0: [(0, b"x")]}), "never written"),
        (History([(C, (b"a", b"b"))], {0: [(4, b"a"), (3, b"b")]}), "came after"),
        (History([], {}, {0: [(5, 5), (4, 4)]}), "moved back"),
        (History([], {}, {0: [(5, 5), (6, 4)]}), "moved back"),
    ],
)
def test_what_must_not_be_is_found(history, word):
    findings = check(history)
    assert findings
    assert all(word in finding for finding in findings)
