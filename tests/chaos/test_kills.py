"""A slice of the long run of kills, and what its verdict says of histories that must not be."""

import pytest

from stablelog.client.core.transaction_stream import CommittedTransaction, ReadRecord
from stablelog.testing.history import Fate, Seen
from tests.chaos import kills, mutants
from tests.chaos.verdict import (
    Found,
    check_compacted,
    check_cuts,
    check_deleted,
    check_places,
    check_transformed,
)
from tests.chaos.victim import EndedByItselfError, Victim
from tests.chaos.writers import Attempt
from tests.scale import SEED

A, B, ORDERED, KEYED = ("a", 0), ("b", 0), ("o", 0), ("k", 0)


@pytest.mark.night
@pytest.mark.timeout(900)
def test_a_slice_of_the_long_run_finds_nothing():
    report = kills.run(10, SEED, tell=print)
    print(report.kills, report.counts)
    assert report.findings == []
    assert report.kills.total() == 10
    for name in ("committed", "transactions read by cut", "batches compared", "watermarks", "read live"):
        assert report.counts[name] > 0, name


@pytest.mark.extended
def test_a_broker_that_ends_by_itself_is_told_from_one_that_is_killed(tmp_path):
    victim = Victim(tmp_path / "data", {})
    try:
        victim.start()
        victim.kill()
        victim.spawn()
        victim.kill()  # while it starts
        victim.start()
        victim.stop()
        victim.start()
        victim.process.terminate()
        victim.process.wait()
        with pytest.raises(EndedByItselfError, match="the broker ended with 0"):
            victim.kill()
        assert victim.faults() == []
        with victim.log_path.open("a") as log:
            log.write("Traceback (most recent call last)")
        assert len(victim.faults()) == 1
    finally:
        victim.close()


@pytest.mark.extended
def test_a_broker_that_does_not_start_is_told(tmp_path):
    victim = Victim(tmp_path / "data", {"no.such.setting": "1"})
    try:
        with pytest.raises(EndedByItselfError, match=r"no\.such\.setting"):
            victim.start()
    finally:
        victim.close()


@pytest.mark.parametrize("name", [mutant.__name__ for mutant in mutants.MUTANTS])
def test_every_fault_changes_something_that_is_there(name):
    mutant, owner, attribute = mutants.named(name)
    sound = vars(owner)[attribute]
    assert mutant(sound) is not sound


# -- what the verdict says ---------------------------------------------------------------------------------------


def attempt(fate, *records, asked_s=1.0, **more):
    """An attempt that writes (place, value) or (place, key, value)."""
    rows = [one if len(one) == 3 else (one[0], None, one[1]) for one in records]
    return Attempt("w", rows, fate, asked_s, **more)


def found(committed, everything=None, *, starts=None, live=None, watermarks=None):
    """What is there, by place: rows (offset, value) or (offset, key, value)."""

    def rows(read):
        return {
            place: [one if len(one) == 3 else (one[0], None, one[1]) for one in read.get(place, [])]
            for place in (A, B, ORDERED, KEYED)
        }

    return Found(
        rows(committed),
        rows(committed if everything is None else everything),
        dict.fromkeys((A, B, ORDERED, KEYED), 0) | (starts or {}),
        frozenset([KEYED]),
        frozenset([ORDERED]),
        live or {},
        watermarks or {},
    )


def test_a_right_history_has_no_findings():
    committed = attempt(
        Fate.COMMITTED, (A, b"1"), (ORDERED, b"2"), appended={b"1": (A, 0), b"2": (ORDERED, 0)}
    )
    native = attempt(Fate.COMMITTED, (ORDERED, b"3"), placed={b"3": (ORDERED, 7)})
    aborted = attempt(Fate.ABORTED, (A, b"4"), asked_s=float("inf"))
    there = found(
        {A: [(0, b"1")], ORDERED: [(5, b"2"), (7, b"3")]},
        {A: [(0, b"1"), (2, b"4")], ORDERED: [(0, b"2"), (3, b"3")]},
        live={A: [Seen(2.0, 0, b"1")]},
    )
    assert list(check_places([committed, native, aborted], there)) == []


WRONG = {
    "lost": ([attempt(Fate.COMMITTED, (A, b"1"))], found({})),
    "aborted yet read": ([attempt(Fate.ABORTED, (A, b"1"))], found({A: [(0, b"1")]})),
    "duplicated": ([attempt(Fate.COMMITTED, (A, b"1"))], found({A: [(0, b"1"), (1, b"1")]})),
    "torn": ([attempt(Fate.UNKNOWN, (A, b"1"), (B, b"2"))], found({A: [(0, b"1")]})),
    "acknowledged at": (
        [attempt(Fate.COMMITTED, (A, b"1"), appended={b"1": (A, 5)})],
        found({A: [(0, b"1")]}),
    ),
    "committed at": (
        [attempt(Fate.COMMITTED, (ORDERED, b"1"), placed={b"1": (ORDERED, 5)})],
        found({ORDERED: [(4, b"1")]}),
    ),
    "was read as": (
        [attempt(Fate.COMMITTED, (A, b"1")), attempt(Fate.COMMITTED, (A, b"2"))],
        found({A: [(0, b"1"), (1, b"2")]}, live={A: [Seen(3.0, 0, b"2")]}),
    ),
    "before its commit was asked for": (
        [attempt(Fate.COMMITTED, (A, b"1"))],
        found({A: [(0, b"1")]}, live={A: [Seen(0.5, 0, b"1")]}),
    ),
    "watermarks moved back": (
        [attempt(Fate.COMMITTED, (A, b"1"))],
        found({A: [(0, b"1")]}, watermarks={A: [(2, 2), (1, 1)]}),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_history_is_found(name):
    attempts, there = WRONG[name]
    assert any(name in finding for finding in check_places(attempts, there))


def test_what_was_deleted_is_not_missed_and_what_was_not_is():
    written = attempt(
        Fate.COMMITTED, (A, b"1"), (A, b"2"), (B, b"3"), appended={b"1": (A, 0), b"2": (A, 4), b"3": (B, 0)}
    )
    there = {A: [(4, b"2")], B: [(0, b"3")]}
    assert list(check_places([written], found(there, starts={A: 3}))) == []
    assert "lost: b'2'" in list(check_places([written], found({B: [(0, b"3")]}, starts={A: 3})))
    assert "lost: b'3'" in list(check_places([written], found({A: [(4, b"2")]}, starts={A: 3})))


def test_in_commit_order_a_transaction_is_deleted_whole_or_not_at_all():
    appended = {b"1": (ORDERED, 1), b"2": (ORDERED, 8)}
    written = attempt(Fate.COMMITTED, (ORDERED, b"1"), (ORDERED, b"2"), appended=appended)
    whole = found({ORDERED: [(11, b"1"), (12, b"2")]}, {ORDERED: [(8, b"2")]}, starts={ORDERED: 5})
    assert list(check_places([written], whole)) == []
    assert list(check_deleted([written], whole, {ORDERED: 5})) == []
    torn = found({ORDERED: [(12, b"2")]}, {ORDERED: [(8, b"2")]}, starts={ORDERED: 5})
    assert "lost: b'1'" in list(check_places([written], torn))
    assert any("some are there" in finding for finding in check_deleted([written], torn, {}))
    gone = found({}, starts={ORDERED: 20})
    assert list(check_places([written], gone)) == []
    assert any("the log starts at 5" in finding for finding in check_deleted([written], whole, {ORDERED: 6}))


def test_a_key_has_its_latest_committed_value():
    first = attempt(Fate.COMMITTED, (KEYED, b"x", b"1"), (KEYED, b"y", b"2"), (A, b"w1"))
    second = attempt(Fate.UNKNOWN, (KEYED, b"x", b"3"), (KEYED, b"y", None), (A, b"w2"))
    old = found({KEYED: [(0, b"x", b"1"), (1, b"y", b"2")], A: [(0, b"w1")]})
    new = found({KEYED: [(3, b"x", b"3")], A: [(0, b"w1"), (2, b"w2")]})
    half = found({KEYED: [(1, b"y", b"2"), (3, b"x", b"3")], A: [(0, b"w1"), (2, b"w2")]})
    unseen = found({KEYED: [(1, b"y", b"2"), (3, b"x", b"3")], A: [(0, b"w1")]})
    assert list(check_compacted([first, second], old)) == []
    assert list(check_compacted([first, second], new)) == []
    assert any("b'y' was committed as None" in one for one in check_compacted([first, second], half))
    assert any("was never committed" in one for one in check_compacted([first, second], unseen))
    moved = attempt(Fate.COMMITTED, (KEYED, b"x", b"1"), (A, b"w1"), appended={b"1": (KEYED, 4)})
    there = found({KEYED: [(4, b"x", b"5"), (5, b"x", b"1")], A: [(0, b"w1")]})
    assert any("b'1' was acknowledged at 4" in one for one in check_compacted([moved], there))


def test_each_record_is_transformed_once_up_to_the_committed_offset():
    def findings(*made, committed=2):
        rows = [(offset, value) for offset, value in enumerate(made)]
        there = found({A: [(0, b"s"), (1, b"s"), (2, b"s")]})
        there.committed["t", 0] = [(offset, None, value) for offset, value in rows]
        return list(check_transformed(there, [A], "t", {A: committed}))

    assert findings(b"x.0.0.0.0", b"x.0.1.0.1") == []
    assert findings(b"x.0.0.0.0") == ["a: record (0, 1) was not transformed"]
    assert findings(b"x.0.0.0.0", b"x.0.1.0.1", b"x.1.0.0.1") == ["a: record (0, 1) was transformed 2 times"]
    assert findings(b"x.0.0.0.0", committed=0) == ["a: record (0, 0) was transformed, and is not committed"]


def commit(sequence, *values):
    records = [ReadRecord("o", 0, offset, 0, None, value, ()) for offset, value in enumerate(values)]
    return CommittedTransaction(sequence, 1, tuple(records))


def test_cuts_show_whole_transactions_once_in_order_under_the_numbers_that_were_told():
    one = attempt(Fate.COMMITTED, (ORDERED, b"1"), (ORDERED, b"2"), sequence=4)
    two = attempt(Fate.UNKNOWN, (ORDERED, b"3"))
    gone = attempt(Fate.ABORTED, (ORDERED, b"4"))

    def findings(*by_cut, live=()):
        return list(check_cuts([one, two, gone], ("o",), list(by_cut), [list(live)]))

    right = (commit(4, b"1", b"2"), commit(6, b"3"))
    assert findings(*right, live=right[:1]) == []
    assert findings(right[0]) == []
    assert any("commits come in the order" in found for found in findings(right[1], right[0]))
    assert any("commit 4 holds" in found for found in findings(commit(4, b"1"), right[1]))
    assert any("commit 4 holds" in found for found in findings(commit(4, b"1", b"2", b"3")))
    assert any("is in commits 4 and 5" in found for found in findings(right[0], commit(5, b"1", b"2")))
    assert any("was aborted" in found for found in findings(*right, commit(7, b"4")))
    assert any("told to be commit 4, and is 5" in found for found in findings(commit(5, b"1", b"2")))
    assert any("is in no cut" in found for found in findings(right[1]))
    assert any("a reader by cut saw" in found for found in findings(*right, live=[right[1]]))
