"""Commit order that is read from the object store alone, against everything that was written."""

import pytest

from stablelog.batch.header import headers_in
from stablelog.batch.records import decode_records
from stablelog.commit_order.stored_view import StoredOrder
from stablelog.errors import DamageError
from stablelog.log.search.times import run_lookup
from tests.commit_order.test_tiered_commit_order import TieredLog, copied

SIZE_MAX = 1 << 20


def read_all(log, order, start, size_max):
    """(position, payload) of every record from a position to the end of the store, read after read."""
    rows, position = [], start
    while True:
        found = log.loading(lambda at=position: order.read(at, size_max))
        headers = [header for _, header in headers_in(b"".join(found.buffers))]
        if not headers:
            return rows
        data = b"".join(found.buffers)
        rows += [
            (record.offset, record.value.strip())
            for at, _ in headers_in(data)
            for record in decode_records(data, at)
            if record.offset >= position
        ]
        position = headers[-1].next_offset


@pytest.fixture(scope="module")
def log():
    """A log whose transactions overlap over the ends of segments. All its records but the last are only in the store."""
    return copied()


def stored(log):
    """(position, payload, first offset, time, commit sequence) of the records in the store, in commit order."""
    return sorted(row for row in log.written if row[0] < log.remote.end_offset)


@pytest.mark.parametrize("size_max", [1, 200, SIZE_MAX])
def test_a_reader_gets_every_committed_record_at_its_position(log, size_max):
    assert read_all(log, StoredOrder(log.remote), 0, size_max) == [row[:2] for row in stored(log)]


def test_a_reader_may_begin_at_each_position(log):
    for start in range(log.remote.end_offset + 1):
        wanted = [row[:2] for row in stored(log) if row[0] >= start]
        assert read_all(log, StoredOrder(log.remote), start, SIZE_MAX) == wanted


def test_transactions_are_listed_in_commit_order_up_to_a_position_and_a_count(log):
    order, rows = StoredOrder(log.remote), stored(log)
    sequences = sorted({row[4] for row in rows if row[4] >= 0})
    found = log.loading(lambda: order.transactions(0, 100))
    assert [one.commit_sequence for one in found] == sequences
    assert [one.start for one in found] == [min(row[0] for row in rows if row[4] == one) for one in sequences]
    assert log.loading(lambda: order.transactions(0, 100, end=found[2].start)) == found[:2]
    assert log.loading(lambda: order.transactions(found[1].end, 2)) == found[2:4]


def test_records_outside_transactions_are_listed_on_demand(log):
    order, rows = StoredOrder(log.remote), stored(log)
    found = log.loading(lambda: order.transactions(0, 100, with_outside=True))
    outside = [position for one in found if one.commit_sequence < 0 for position in range(one.start, one.end)]
    assert outside == [row[0] for row in rows if row[4] < 0]


def test_a_cut_lies_where_the_next_transaction_begins_and_none_is_after_the_last(log):
    order, rows = StoredOrder(log.remote), stored(log)
    latest = max(row[4] for row in rows)
    assert order.latest_sequence == latest
    for sequence in range(latest):
        begin = min(row[0] for row in rows if row[4] > sequence)
        assert log.loading(lambda cut=sequence: order.offset_after(cut)) == begin
    assert log.loading(lambda: order.offset_after(latest)) == log.remote.end_offset


def test_a_cut_before_the_first_position_of_the_view_lies_at_it(log):
    assert log.loading(lambda: StoredOrder(log.remote, view_start=30).offset_after(0)) == 30


def position_at(log, order, time_ms):
    found = log.loading(lambda: run_lookup(order.look_up_time(time_ms)))
    return None if found is None else found[0]


def test_a_time_finds_the_first_commit_or_record_of_it_or_later():
    log = TieredLog(segment_bytes=400, file_delete_delay_ms=0)
    for number in range(9):
        if number % 3:
            log.append(1, 2)
            log.end(1)
        else:
            log.plain(2)
        log.now_ms += 10
    log.partition.roll(log.now_ms)
    log.sync()
    log.copy()
    order, rows = StoredOrder(log.remote), sorted(log.written)
    for time_ms in range(rows[0][3] - 1, rows[-1][3] + 2, 3):
        wanted = next((row[0] for row in rows if row[3] >= time_ms), None)
        assert position_at(log, order, time_ms) == wanted
    middle = rows[5][0]
    assert position_at(log, StoredOrder(log.remote, middle), 0) == middle


def test_of_a_whole_log_no_commit_was_removed_and_none_is_torn(log):
    order = StoredOrder(log.remote)
    assert log.loading(order.removed_sequence) == -1
    assert log.loading(order.torn_sequence) == -1


def removed_before(log, start):
    """The greatest commit sequence with a record before a position."""
    return max((row[4] for row in log.written if row[0] < start), default=-1)


def test_commits_with_records_before_the_first_position_count_as_removed(log):
    order = StoredOrder(log.remote)
    for one in log.loading(lambda: order.transactions(0, 100, with_outside=True))[:-1]:
        late = StoredOrder(log.remote, view_start=one.end)
        assert log.loading(late.removed_sequence) == removed_before(log, one.end)


def test_a_transaction_that_began_before_the_log_start_is_left_out_and_counts_as_torn():
    log = copied()
    torn = next(row for row in stored(log) if row[4] >= 0 and row[0] - row[2] > 5)
    log.remote.move_start(torn[2] + 1)
    lost = {row[4] for row in log.written if row[4] >= 0 and row[2] <= torn[2]}
    order = StoredOrder(log.remote)
    left = [row[:2] for row in stored(log) if row[0] > torn[2] and row[4] not in lost]
    assert read_all(log, order, torn[2] + 1, SIZE_MAX) == left
    assert log.loading(order.torn_sequence) == max(lost)


def test_a_store_whose_records_are_all_removed_tells_no_commit():
    log = copied()
    log.remote.move_start(log.remote.end_offset)
    order = StoredOrder(log.remote)
    assert log.loading(order.removed_sequence) is None
    assert position_at(log, order, 0) is None
    assert read_all(log, order, log.remote.end_offset, SIZE_MAX) == []


def test_a_read_ends_before_a_damaged_batch_and_the_next_one_refuses_it_by_its_object():
    log = copied()
    order, rows = StoredOrder(log.remote), stored(log)
    key = sorted(key for key in log.objects if key.endswith("log"))[2]
    good = log.objects[key]
    damaged = bytearray(good)
    for at, header in headers_in(good):
        damaged[at + header.size - 1] ^= 1
    log.objects[key] = bytes(damaged)
    found = []

    def read_on():
        while more := log.loading(lambda: order.read(position_after(found), SIZE_MAX)).buffers:
            found.extend(more)

    with pytest.raises(DamageError, match=key):
        read_on()
    data = b"".join(found)
    records = [record for at, _ in headers_in(data) for record in decode_records(data, at)]
    assert [record.offset for record in records] == [row[0] for row in rows[: len(records)]]
    assert records
    log.objects[key] = good
    assert read_all(log, order, 0, SIZE_MAX) == [row[:2] for row in rows]


def position_after(buffers):
    headers = [header for _, header in headers_in(b"".join(buffers))]
    return headers[-1].next_offset if headers else 0
