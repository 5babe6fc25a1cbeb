"""Lookup of extents: all of them, and few that a response has no room for."""

import pytest

from stablelog.commit_order import extent_lookup
from stablelog.commit_order.commit_index import CommitIndex
from stablelog.commit_order.extents import LONG_COUNT
from stablelog.commit_order.verify import verify_view
from tests.commit_order.committed_log import DIRECTORY, Log


@pytest.mark.extended
@pytest.mark.parametrize("count", [LONG_COUNT - 1, LONG_COUNT, LONG_COUNT + 100])
def test_a_long_transaction_is_read_at_its_positions_from_every_place_in_it(count):
    log = Log(segment_bytes=600_000)
    for at in range(count):
        log.append(1, 1 + at % 3, size=600)
        if at % 500 == 0:
            log.append(2, size=600)
            log.end(2)
    log.append(3)
    log.end(3)
    log.plain(2)
    log.end(1)
    log.append(4, size=600)
    log.end(4)
    log.sync()
    expected = log.expected()
    for _ in range(2):
        assert log.read_all(0, 100_000) == expected
        for start, payload in expected[5::97]:
            assert (start, payload) in log.fetched(start, 2_000)[0]
        assert log.partition.view.transactions(0, 100)[-2].end == expected[-2][0] + 1
        log.reopen()
    assert list(verify_view(log.disk, DIRECTORY)) == []


@pytest.mark.parametrize(("size", "size_max"), [(600, 100_000), (5_000, 1_000_000), (20_000, 1 << 20)])
def test_few_batches_are_looked_up_that_there_is_no_room_for(monkeypatch, size, size_max):
    log = Log()
    for _ in range(20):
        for writer in range(40):
            log.append(writer, size=size)
    for writer in range(40):
        log.end(writer)
    log.sync()
    looked_up = []
    between = CommitIndex.extents_between

    def counted(index, first, end, long=None):
        looked_up.append(end - first)
        return between(index, first, end, long)

    monkeypatch.setattr(CommitIndex, "extents_between", counted)
    handed_out, _ = log.fetched(0, size_max)
    assert len(handed_out) > size_max / size * 0.7
    assert (
        sum(looked_up) <= max(len(handed_out) + 5, extent_lookup.FIRST_AT_ONCE) + extent_lookup.LEAST_AT_ONCE
    )


def test_a_large_answer_takes_few_lookups(monkeypatch):
    log = Log()
    for _ in range(800):
        log.append(1, size=600)
    log.end(1)
    log.sync()
    looked_up = []
    between = CommitIndex.extents_between
    monkeypatch.setattr(
        CommitIndex,
        "extents_between",
        lambda index, first, end, long=None: (
            looked_up.append(end - first) or between(index, first, end, long)
        ),
    )
    assert log.fetched(0)[0] == log.expected()
    assert (sum(looked_up), len(looked_up)) == (800, 3)
    looked_up.clear()
    handed_out, _ = log.fetched(0, 200 * 700)
    assert 190 < len(handed_out) <= sum(looked_up) < 230
    assert len(looked_up) <= 3


@pytest.mark.extended
def test_a_long_transaction_among_many_costs_about_its_own_bytes():
    log = Log()
    writers = 100
    for _ in range(200):
        for producer in range(writers):
            log.append(producer, size=16_384 if producer else 9000)
    log.end(0)
    log.sync()
    records, _ = log.fetched(0)
    assert len(records) == 200
    view = log.partition.view
    entry = view.indexes[0][0]
    read = sum(
        view.indexes[0].extent(place).size
        for place in range(entry.extent_first, entry.extent_first + entry.extent_count)
    )
    assert read <= 2 * 200 * 9100
