"""The offset index, the time index, the leader epochs and the minima, each against a list that is looked through."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stablelog.errors import DamageError, NewerFormatError
from stablelog.log.files.epochs import LeaderEpochs
from stablelog.log.indexes.minima import FANOUT, Minima
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.time_index import NO_TIMESTAMP, TimeIndex
from stablelog.log.indexes.transaction_index import AbortedTxn, TransactionIndex

BASE = 1000
steps = some.lists(some.tuples(some.integers(1, 5), some.integers(1, 200)), max_size=20)


def grown(pairs, first=(0, 0)):
    """Rows whose fields both grow."""
    rows, last = [], first
    for one, other in pairs:
        last = last[0] + one, last[1] + other
        rows.append(last)
    return rows


@given(steps, some.integers(-2, 110), some.integers(-2, 4100), some.integers(0, 3))
def test_the_offset_index_finds_the_last_entry_that_is_not_past_a_target(pairs, offset, position, spare):
    rows, made = grown(pairs), OffsetIndex(BASE)
    for relative, at in rows:
        made.append(BASE + relative, at)
    # Kafka preallocates the file; a read index goes on where the file's entries end.
    read = OffsetIndex(BASE, bytes(made.content()) + bytes(8 * spare))
    for index in (made, read):
        assert [index[place] for place in range(len(index))] == [(BASE + one, at) for one, at in rows]
        before = [at for relative, at in rows if BASE + relative <= BASE + offset]
        assert index.position_before(BASE + offset) == (before or [0])[-1]
        assert index.position_at_or_before(position) == max([0, *(at for _, at in rows if at <= position)])
        for place in (-1, len(rows)):
            with pytest.raises(IndexError):
                index[place]
    last = rows[-1] if rows else (0, 0)
    read.append(BASE + last[0] + 1, last[1] + 1)
    assert len(read) == len(rows) + 1
    assert read[len(rows)] == (BASE + last[0] + 1, last[1] + 1)
    made.append(BASE + last[0] + 1, last[1] + 1)
    assert bytes(read.content()) == bytes(made.content())


@pytest.mark.extended
@given(
    some.lists(some.tuples(some.integers(-5, 50), some.integers(1, 5)), max_size=20), some.integers(-7, 55)
)
def test_the_time_index_tells_an_offset_before_the_first_batch_that_reaches_a_time(batches, timestamp):
    made, rows, offset = TimeIndex(BASE), [], BASE
    for time_ms, count in batches:
        offset += count
        made.append_if_later(time_ms, offset)
        if time_ms > max([NO_TIMESTAMP, *(known for known, _ in rows)]):
            rows.append((time_ms, offset))
    read = TimeIndex(BASE, bytes(made.content()) + bytes(24))
    for index in (made, read):
        assert [index[place] for place in range(len(index))] == rows
        assert index.last == (rows[-1] if rows else (NO_TIMESTAMP, BASE))
        earlier = [at for known, at in rows if known < timestamp]
        assert index.offset_before(timestamp) == (earlier[-1] if earlier else None)
        for place in (-1, len(rows)):
            with pytest.raises(IndexError):
                index[place]
    later = (rows[-1][0] if rows else 0) + 1
    read.append_if_later(later, offset + 1)
    assert [read[place] for place in range(len(read))] == [*rows, (later, offset + 1)]


@pytest.mark.extended
@given(some.lists(some.tuples(some.integers(0, 8), some.integers(0, 6)), max_size=12), some.data())
def test_leader_epochs_are_those_of_a_log_that_keeps_an_epoch_for_each_record(steps, data):
    epochs, log = LeaderEpochs(), []
    for epoch, count in steps:
        known = epochs.latest
        assert epochs.assign(epoch, len(log)) is (epoch > known)
        log += [max(epoch, known)] * count
    entries = epochs.entries
    assert entries == sorted(entries)
    assert LeaderEpochs.decode(epochs.encode()).entries == entries
    for offset, epoch in enumerate(log):
        assert epochs.epoch_of(offset) == epoch
    assert epochs.epoch_of(-1) == -1
    assert epochs.latest == (entries[-1][0] if entries else -1)
    for asked in range(-1, 10):
        if not entries or asked > epochs.latest or asked < 0:
            expected = (-1, -1)
        elif asked == epochs.latest:
            expected = asked, len(log)
        else:
            below = [known for known, _ in entries if known <= asked]
            ends = next(start for known, start in entries if known > asked)
            expected = (below[-1] if below else asked), ends
        assert epochs.end_offset(asked, len(log)) == expected
    end = data.draw(some.integers(0, len(log) + 1))
    kept = [entry for entry in entries if entry[1] < end]
    assert epochs.truncate_to(end) is (kept != entries)
    assert epochs.entries == kept


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "x\n0\n",
        "0\n1\n",
        "0\n1\n1\n",
        "0\n2\n1 0\n1 5\n",
        "0\n2\n1 5\n2 5\n",
        "0\n2\n2 0\n1 5\n",
        "-1\n0\n",
    ],
)
def test_a_checkpoint_of_leader_epochs_that_does_not_hold_is_damage(text):
    with pytest.raises(DamageError):
        LeaderEpochs.decode(text.encode())


def test_a_later_form_of_leader_epochs_is_named():
    with pytest.raises(NewerFormatError):
        LeaderEpochs.decode(b"1\n0\n")
    assert LeaderEpochs.decode(b"0\n1\n3 7\n").entries == [(3, 7)]


@pytest.mark.extended
@given(some.lists(some.integers(0, 30), max_size=3 * FANOUT**2), some.integers(0, 31), some.data())
def test_the_minima_find_every_value_below_a_bound(row, bound, data):
    minima = Minima()
    for count in sorted(data.draw(some.lists(some.integers(0, len(row)), max_size=3))):
        minima.extend_to(count, lambda begin, end: row[begin:end])
    minima.extend_to(len(row), lambda begin, end: row[begin:end])
    end = data.draw(some.integers(0, len(row)))
    begin = data.draw(some.integers(0, len(row)))
    assert list(minima.below(bound, begin, end)) == [at for at in range(begin, end) if row[at] < bound]


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
