"""What a place of stored segments tells the searches: the position of a batch, and segments that are readers themselves."""

from types import SimpleNamespace

from stablelog.log.search.source import OFFSET_MAX, FoundBatch, ReaderRows


def reader(base, end):
    return SimpleNamespace(
        base_offset=base,
        end_offset=end,
        stable_offset=end,
        least_aborted_offset=None,
        txn_index=f"aborts of {base}",
    )


def test_a_batch_that_was_found_ends_behind_its_bytes():
    assert FoundBatch(100, 61, 5, 6).end_position == 161


def test_no_offset_of_a_record_is_greater_than_the_greatest():
    assert OFFSET_MAX == 2**63 - 1


def test_segments_that_are_readers_are_their_own_rows():
    segments = ReaderRows([reader(0, 10), reader(10, 20)])
    assert segments.rows is segments
    assert [one.base_offset for one in segments.readers_from(10)] == [10]
    assert [one.base_offset for one in segments.readers_from(9)] == [0, 10]


def test_their_transaction_indexes_are_at_hand():
    segments = ReaderRows([reader(0, 10)])
    assert segments.require_txn_indexes(list(segments)) is None
    assert segments.txn_index_of(segments[0]) == "aborts of 0"
