import random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stablelog.errors import DamageError
from stablelog.log.indexes import transaction_index
from stablelog.log.indexes.minima import Minima
from stablelog.log.indexes.transaction_index import ENTRY, AbortedTxn, TransactionIndex
from stablelog.log.verify import verify_directory
from tests.log.timeline import DIRECTORY, Log, write

ENTRIES = [
    AbortedTxn(1, 0, 10, 11),
    AbortedTxn(2, 5, 15, 13),
    AbortedTxn(3, 18, 35, 25),
    AbortedTxn(4, 32, 50, 40),
]


def index(entries=ENTRIES):
    made = TransactionIndex()
    for entry in entries:
        made.append(entry)
    return made


@pytest.mark.parametrize(
    ("start", "end", "found", "complete"),
    [
        (0, 100, ENTRIES, False),
        (0, 32, ENTRIES[:3], True),
        (0, 35, ENTRIES, True),
        (11, 32, ENTRIES[1:3], True),
        (20, 41, ENTRIES[2:], False),
    ],
)
def test_a_search_takes_what_touches_the_range_and_stops_where_all_is_decided(start, end, found, complete):
    """Scenario 1: the stop is at the first entry whose stable offset reaches the end of the range."""
    assert index().collect(start, end) == (found, complete)


def test_a_marker_that_does_not_lie_past_the_last_one_is_refused():
    """Scenario 2: last offsets strictly grow."""
    made = index(ENTRIES[:2])
    for last_offset in (15, 14):
        with pytest.raises(ValueError, match="the offset of its marker must be greater"):
            made.append(AbortedTxn(9, 3, last_offset, 20))
    assert len(made) == 2


def test_a_torn_entry_is_noticed():
    """Scenario 4: a file whose size is no multiple of an entry is not read as if it were."""
    content = b"".join(ENTRY.pack(0, *entry) for entry in ENTRIES)
    assert len(TransactionIndex(content)) == 4
    with pytest.raises(DamageError, match="torn"):
        TransactionIndex(content[:-1])


def test_a_long_row_of_aborts_behind_an_open_transaction_is_searched_without_looking_at_all(monkeypatch):
    looked_at = 0

    def iter_unpack(rows):
        nonlocal looked_at
        for row in ENTRY.iter_unpack(rows):
            looked_at += 1
            yield row

    counting = SimpleNamespace(iter_unpack=iter_unpack, pack=ENTRY.pack, size=ENTRY.size)
    monkeypatch.setattr(transaction_index, "ENTRY", counting)
    made = TransactionIndex()
    for n in range(5000):
        made.append(AbortedTxn(1, 100 + 2 * n, 101 + 2 * n, 7))  # one transaction pins the stable offset at 7
    made.collect(10, 20)
    assert looked_at == 5000, "once, for the tree of minima"
    looked_at = 0
    assert made.collect(10, 20) == ([], False)
    assert made.collect(10, 101)[0] == [AbortedTxn(1, 100, 101, 7)]
    assert looked_at < 100


def test_a_search_in_few_entries_of_a_long_index_does_not_read_all_entries(monkeypatch):
    """As the first fetch after a start: the tree of minima covers no entry yet."""
    entries = [AbortedTxn(1, 2 * n, 2 * n + 1, 2 * n + 2) for n in range(5000)]
    made = TransactionIndex(b"".join(ENTRY.pack(0, *entry) for entry in entries))
    covered, extend_to = [], Minima.extend_to
    monkeypatch.setattr(
        Minima,
        "extend_to",
        lambda self, count, values_in: covered.append(count) or extend_to(self, count, values_in),
    )
    assert made.collect(1000, 3000) == (entries[500:1500], True)
    assert covered == []
    assert made.collect(0, 9000) == (entries[:4500], True)
    assert made.collect(1000, 3000) == (entries[500:1500], True)
    assert covered == [5000, 5000]


def test_the_worked_example_of_the_abort_index():
    #            0  1  2  3   4  5   6  7  8  9   10
    log = write("P1 P1 P2 P1c P2 P2a P1 P2 P1 P1a P2c")
    assert log.stable_offset == 11
    assert log.all_aborted() == [AbortedTxn(2, 2, 5, 6), AbortedTxn(1, 6, 9, 7)]
    five_records = log.partition.read(0, 5 * 80, 1)
    assert five_records.end_offset == 5
    assert log.aborted(0, 5 * 80) == ["P2@2..5"]
    assert log.aborted(5) == ["P2@2..5", "P1@6..9"]


def test_the_lists_of_the_two_counter_examples_hold_what_the_right_client_needs():
    """Counter-examples A and B: a fetch from the middle of a transaction names it, and none that ended before."""
    a = write("- - P1 P2 P2 P2 P2 P2 P2 P2 P2 P2 P2a P1 P1 P1 P1 P1 P1 P1 P1a")
    assert a.aborted(10) == ["P2@3..12", "P1@2..20"]
    assert a.aborted(13) == ["P1@2..20"]
    b = write("- - P1 - - - - - - - - - - - - - - - - - P1a P1 P1c")
    assert b.aborted(15) == ["P1@2..20"]
    assert b.aborted(21) == []


def test_an_undecided_transaction_hides_all_that_follows_it():
    log = write("P1 P2 P3 P2c P3a")
    assert log.stable_offset == 0
    log.write("P1c")
    assert log.stable_offset == 6


def test_a_transaction_index_that_vanished_is_made_anew():
    """Scenario 6: Kafka would read what was aborted as committed."""
    log = write("P1 P1a " * 50, segment_bytes=1000)
    before = log.all_aborted()
    log.partition.close()
    for name in log.disk.list_dir(DIRECTORY):
        if name.endswith(".txnindex"):
            log.disk.remove(DIRECTORY / name)
    log.partition = log.open()
    assert log.all_aborted() == before
    assert len(before) == 50


def test_the_only_segments_transaction_index_vanished():
    """Scenario 6, in the segment that grows."""
    log = Log().write("P1 P1a P2 P2a")
    before = log.all_aborted()
    log.partition.close()
    log.disk.remove(DIRECTORY / f"{0:020d}.txnindex")
    log.partition = log.open()
    assert log.all_aborted() == before


def test_an_index_of_another_segment_is_not_taken_for_this_ones():
    """Scenario 5: whatever its size and entries, its summary does not tell of it, and it is made anew from the log."""
    log = write("P1 P1a " * 12, segment_bytes=300)
    wanted = log.all_aborted()
    log.partition.close()
    first, second = (segment.path(".txnindex") for segment in log.partition.segments()[2:6:2])
    contents = [log.disk.read_bytes(path) for path in (first, second)]
    assert len(contents[0]) == len(contents[1])
    log.disk.write_atomic(first, contents[1])
    log.disk.write_atomic(second, contents[0])
    assert list(verify_directory(log.disk, DIRECTORY))
    log.partition = log.open(clean=True)
    assert log.all_aborted() == wanted
    assert [log.disk.read_bytes(path) for path in (first, second)] == contents


steps = some.lists(some.tuples(some.integers(1, 5), some.integers(1, 200)), max_size=20)


@pytest.mark.extended
@given(
    some.lists(some.tuples(some.integers(1, 4), some.integers(0, 30)), max_size=100),
    some.integers(0, 330),
    some.integers(0, 90),
)
def test_aborted_transactions_of_a_range_are_all_that_touch_it(steps, start, size):
    index, known, last = TransactionIndex(), [], 0
    for producer_id, (by, length) in enumerate(steps):
        last += by
        known.append((producer_id, max(last - length, 0), last))
    stable = last + 1
    entries = []
    for producer_id, first, marker in reversed(
        known
    ):  # the first offset that is undecided behind each marker
        entries.append(AbortedTxn(producer_id, first, marker, min(marker + 1, stable)))
        stable = min(stable, first)
    for entry in reversed(entries):
        index.append(entry)
    end = start + size
    found, complete = index.collect(start, end)
    every = [index[place] for place in range(len(index))]
    assert every == entries[::-1]
    touching = [txn for txn in every if txn.last_offset >= start and txn.first_offset < end]
    stops = [txn.stable_offset >= end for txn in every]
    assert complete == any(stops)
    assert found == touching, "what is past the stop begins past the end"
    assert TransactionIndex(bytes(index.content())).collect(start, end) == (found, complete)


@pytest.mark.parametrize("seed", range(4))
def test_a_growing_index_of_aborts_answers_as_a_list_however_it_is_searched(seed, monkeypatch):
    monkeypatch.setattr(transaction_index, "SCAN_COUNT_MAX", seed)
    chance, rows, stable = random.Random(seed), [], 0
    index = TransactionIndex()
    for last in range(3, 300, 5):
        stable = max(stable, chance.randint(0, last))
        rows.append(AbortedTxn(chance.randrange(4), chance.randint(max(stable - 9, 0), last), last, stable))
        index.append(rows[-1])
        if last % 9 == 0:
            index = TransactionIndex(bytes(index.content()))
        for _ in range(4):
            start = chance.randrange(last + 2)
            end = chance.randrange(start, last + 9)
            stop = next((at for at, row in enumerate(rows) if row.stable_offset >= end), None)
            seen = rows if stop is None else rows[: stop + 1]
            touching = [row for row in seen if row.first_offset < end and row.last_offset >= start]
            assert index.collect(start, end) == (touching, stop is not None)
    assert [index[place] for place in range(len(index))] == rows
