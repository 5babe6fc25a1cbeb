"""Records of a transaction: their batches, their positions, and that an interrupted write leaves nothing."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.batch.header import Codec, headers_in
from stablelog.batch.records import decode_records
from stablelog.client.core import record_buffer
from stablelog.client.core.positions import BatchOffsets, Position
from stablelog.client.core.record_buffer import ManyRecords, RecordBuffer
from stablelog.errors import RefusedError, UsageError
from tests.scale import examples

TARGETS = [("t", 0), ("t", 1)]


@pytest.fixture
def buffer(monkeypatch):
    monkeypatch.setattr(record_buffer, "BATCH_SIZE_MAX", 100)
    return made()


def made(partitions=2):
    buffer = RecordBuffer()
    buffer.partition_counts["t"] = partitions
    return buffer


def add(buffer, value, partition=0, key=None):
    return buffer.add_record("t", value, key, (), partition, 0)


def values(batches):
    """The values of batches, by partition."""
    found = {}
    for records, batch in batches:
        built = batch.build(Codec.NONE)
        ((_, header),) = headers_in(memoryview(built))
        decoded = decode_records(built)
        assert header.record_count == header.last_offset_delta + 1 == len(decoded)
        found.setdefault(records.target, []).append([record.value for record in decoded])
    return found


@pytest.mark.parametrize("before", [0, 1])
def test_a_record_whose_write_was_interrupted_can_be_taken_back(buffer, before):
    for _ in range(before):
        add(buffer, b"kept")
    last = buffer.last
    add(buffer, bytes(200))
    assert buffer.is_due
    buffer.remove_after(last)
    assert not buffer.is_due
    assert buffer.last == buffer.first == last
    place = add(buffer, b"next")
    assert place[1] == before
    assert values(buffer.take_all_batches()) == {("t", 0): [[b"kept"] * before + [b"next"]]}


def test_a_record_of_an_earlier_write_is_not_taken_back(buffer):
    first = add(buffer, b"1")
    buffer.remove_after(first)
    assert buffer.first == buffer.last == first
    assert values(buffer.take_all_batches()) == {("t", 0): [[b"1"]]}


def test_a_large_record_has_a_batch_of_its_own(buffer):
    """The limit of a topic is that of a batch: a record must not be refused because of the records before it."""
    for value in (b"small", bytes(200), b"next"):
        add(buffer, value)
    assert values(buffer.take_due_batches()) == {("t", 0): [[b"small"], [bytes(200)]]}
    assert not buffer.is_due
    assert values(buffer.take_all_batches()) == {("t", 0): [[b"next"]]}


def test_all_is_sent_if_there_is_too_much(buffer, monkeypatch):
    monkeypatch.setattr(record_buffer, "BUFFERED_SIZE_MAX", 100)
    add(buffer, bytes(60), 0)
    assert not buffer.is_due
    add(buffer, bytes(60), 1)
    assert buffer.is_due
    assert values(buffer.take_due_batches()) == {target: [[bytes(60)]] for target in TARGETS}
    assert not buffer.is_due


def test_what_readers_would_not_decompress_is_not_compressed(buffer, monkeypatch):
    monkeypatch.setattr(record_buffer, "COMPRESSED_SIZE_MAX", 1000)
    add(buffer, bytes(900), 0)
    add(buffer, bytes(1001), 1)
    codecs = [
        header.codec for one in buffer.take_all_batches() for _, header in headers_in(one.build(Codec.ZSTD))
    ]
    assert codecs == [Codec.ZSTD, Codec.NONE]


@pytest.mark.extended
@given(
    records=st.lists(
        st.tuples(st.integers(0, 2), st.binary(max_size=60), st.booleans(), st.booleans()), max_size=60
    ),
    size_max=st.integers(20, 300),
)
@settings(max_examples=examples(100), deadline=None)
def test_each_record_is_where_a_model_of_the_log_has_it(records, size_max):
    """The model appends the batches to a list for each partition. Some writes are interrupted, some batches are sent early."""
    original = record_buffer.BATCH_SIZE_MAX
    record_buffer.BATCH_SIZE_MAX = size_max
    try:
        buffer, places, logs, bases, numbers = made(3), [], {}, {}, itertools.count()

        def send(batches):
            for one in batches:
                log = logs.setdefault(one.records.target, [None] * 7)  # others have written, too
                number, decoded = next(numbers), decode_records(one.build(Codec.NONE))
                assert len(decoded) == 1 or one.batch.size <= size_max
                bases[number] = len(log)
                one.records.add_sent_batch(number, len(decoded))
                log += [record.value for record in decoded]

        for partition, value, is_interrupted, is_flushed in records:
            if buffer.is_due:
                send(buffer.take_due_batches())
            last = buffer.last
            place = add(buffer, value, partition)
            if is_interrupted:
                buffer.remove_after(last)
            else:
                places.append((place, value))
            if is_flushed:
                send(buffer.take_all_batches())
        send(buffer.take_all_batches())
    finally:
        record_buffer.BATCH_SIZE_MAX = original
    assert (buffer.first, buffer.last) == ((places[0][0], places[-1][0]) if places else (None, None))
    for one in buffer.partitions.values():
        one.offsets = BatchOffsets(one.firsts, [bases[number] for number in one.batch_numbers])
    found = [(one.position(number), value) for (one, number), value in places]
    assert all(logs[position[:2]][position.offset] == value for position, value in found)
    assert (
        len({position for position, _ in found}) == len(found) == sum(len(log) - 7 for log in logs.values())
    )
    # A batch whose offset the broker did not name leaves the positions of its records unknown, and no others.
    for one in buffer.partitions.values():
        lost = one.batch_numbers[len(one.batch_numbers) // 2] if one.batch_numbers else None
        known = [-1 if number == lost else bases[number] for number in one.batch_numbers]
        one.offsets = BatchOffsets(one.firsts, known)
    for (one, number), (position, _) in zip((place for place, _ in places), found, strict=True):
        batch = max(at for at, first in enumerate(one.firsts) if first <= number)
        is_lost = batch == len(one.batch_numbers) // 2
        assert one.position(number) == (Position(*one.target, -1) if is_lost else position)


def test_many_records_are_those_of_single_writes(buffer):
    keys, contents = [b"%d" % n for n in range(40)], [b"v%d" % n for n in range(40)]
    single = made()
    places = [
        single.add_record("t", value, key, {"h": "1"}, None, 7)
        for key, value in zip(keys, contents, strict=True)
    ]
    many, sent = ManyRecords(contents, keys, {"h": "1"}, None, 7), []
    add(buffer, b"before")
    while not many.add_to(buffer, "t"):
        sent += buffer.take_due_batches()
    sent += buffer.take_all_batches()
    wanted, found = values(single.take_all_batches()), values(sent)
    found["t", 0][0].remove(b"before")
    for target in TARGETS:
        assert list(itertools.chain(*found[target])) == list(itertools.chain(*wanted[target]))
    for records in (*single.partitions.values(), *buffer.partitions.values()):
        records.offsets = range(1000)
    shifted = [one.position(number + (one.target == ("t", 0))) for one, number in places]
    assert many.positions() == shifted


@pytest.mark.parametrize(
    ("given_values", "given_keys", "error", "words"),
    [
        ([b"a", 7], None, TypeError, r"values\[1\] must be bytes"),
        ([b"a", "\ud800"], None, UsageError, r"values\[1\] is no text that UTF-8 can encode"),
        ([b"a", b"b"], [b"k", 1.5], TypeError, r"keys\[1\] must be bytes"),
        ([b"a", b"b"], [b"k"], UsageError, "2 values and 1 keys"),
        (b"ab", None, TypeError, "values must be a list"),
        ("ab", None, TypeError, "values must be a list"),
        (None, None, TypeError, "values must be a list"),
    ],
)
def test_one_bad_record_of_many_is_named_before_any_is_written(given_values, given_keys, error, words):
    with pytest.raises(error, match=words):
        ManyRecords(given_values, given_keys, (), None, 0)


def test_many_records_for_a_partition_that_does_not_exist(buffer):
    with pytest.raises(RefusedError, match="has no partition 2, only 0 to 1"):
        ManyRecords([b"a"], None, (), 2, 0).check(buffer, "t")


def test_the_place_of_an_appended_batch_is_that_of_the_first_one_whose_offset_is_known(buffer):
    for partition in (0, 1):
        add(buffer, b"v", partition)
    assert buffer.appended_place() is None
    for number, (records, batch) in enumerate([*buffer.take_all_batches(), *buffer.take_all_batches()]):
        records.add_sent_batch(number, batch.count)
    assert buffer.appended_place() is None
    buffer.base_offsets[0] = -1  # the broker has the batch and no longer knows its offset
    buffer.base_offsets[1] = 0
    assert buffer.appended_place() == (("t", 1), 0)
    buffer.base_offsets[0] = 5
    assert buffer.appended_place() == (("t", 0), 5)
