"""The fetched records of a group's reader: in which order the program gets them, and which are dropped."""

import pytest

from stablelog.batch.header import headers_in
from stablelog.batch.records import HEADER, Record, encode_batch
from stablelog.client.core.fetched_records import FetchedRecords
from stablelog.client.core.record_reader import ReadBatch
from stablelog.errors import DamageError

T0, T1 = ("t", 0), ("t", 1)


def batch(target, base_offset, *values, first_offset=0):
    data = encode_batch([Record(0, 0, None, value) for value in values], base_offset=base_offset)
    ((_, header),) = headers_in(memoryview(data))
    return ReadBatch(target, header, bytes(data[HEADER.size :]), first_offset)


@pytest.fixture
def fetched():
    queue = FetchedRecords()
    queue.add_batches([batch(T0, 5, b"a", b"b"), batch(T1, 7, b"c"), batch(T0, 9, b"d")])
    return queue


def values(records):
    return b"".join(one.value for one in records)


def test_records_come_in_the_order_of_their_batches(fetched):
    fetched.decode_batches(100)
    taken = fetched.take_records(100)
    assert values(taken) == b"abcd"
    assert [(one.topic, one.partition, one.offset) for one in taken] == [
        (*T0, 5),
        (*T0, 6),
        (*T1, 7),
        (*T0, 9),
    ]
    assert fetched.is_empty


@pytest.mark.parametrize(("count", "decoded"), [(0, 0), (1, 2), (2, 2), (3, 3), (4, 4)])
def test_only_as_many_batches_are_decoded_as_are_needed(fetched, count, decoded):
    fetched.decode_batches(count)
    assert len(fetched.ready) == decoded
    assert not fetched.is_empty


def test_records_that_are_put_back_come_first_in_their_order(fetched):
    fetched.decode_batches(3)
    taken = fetched.take_records(2)
    assert values(taken) == b"ab"
    assert values(fetched.ready) == b"c"
    fetched.put_back(taken)
    assert values(fetched.take_records(9)) == b"abc"


@pytest.mark.parametrize("decoded", [0, 3])
def test_the_first_offset_of_a_partition_is_known_whether_it_is_decoded_or_not(fetched, decoded):
    fetched.decode_batches(decoded)
    assert [fetched.first_offset(one) for one in (T0, T1, ("u", 0))] == [5, 7, None]


def test_a_batch_of_which_a_part_was_read_begins_behind_that_part():
    fetched = FetchedRecords()
    fetched.add_batches([batch(T0, 5, b"a", b"b", b"c", first_offset=6)])
    assert fetched.first_offset(T0) == 6
    fetched.decode_batches(1)
    assert values(fetched.ready) == b"bc"


@pytest.mark.parametrize("decoded", [0, 2, 4])
def test_the_records_of_some_partitions_are_dropped_and_the_others_stay(fetched, decoded):
    fetched.decode_batches(decoded)
    fetched.drop_records({T0})
    fetched.decode_batches(100)
    assert values(fetched.ready) == b"c"


@pytest.mark.parametrize("decoded", [0, 2])
def test_after_a_clear_nothing_is_left(fetched, decoded):
    fetched.decode_batches(decoded)
    fetched.clear()
    fetched.decode_batches(100)
    assert fetched.is_empty
    assert fetched.take_records(1) == []


def test_a_batch_that_cannot_be_decoded_stays_and_fails_again(fetched):
    damaged = batch(T1, 20, b"x")
    fetched.add_batches([damaged._replace(records=damaged.records[:2])])
    for _ in range(2):
        with pytest.raises(DamageError):
            fetched.decode_batches(100)
    assert values(fetched.ready) == b"abcd"
    assert fetched.first_offset(T1) == 7
