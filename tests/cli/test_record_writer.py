"""The writer of `stablelog produce`: which batches it makes of which records, and when it sends them."""

from contextlib import nullcontext

import pytest

from stablelog.batch.header import Codec
from stablelog.batch.records import decode_records
from stablelog.cli import record_writer
from stablelog.cli.record_input import BadRecordError, InputRecord, read_lines
from stablelog.cli.record_writer import RecordWriter, WriteTarget
from stablelog.errors import UnavailableError
from stablelog.wire.partitioning import partition_for


class Sent:
    """A producer that acknowledges each batch. `batches` has the partition and the values of each."""

    def __init__(self):
        self.batches = []
        self.record_count = 0
        self.flushed = 0

    def append(self, _topic, partition, batch):
        records = decode_records(batch)
        self.batches.append((partition, [record.value for record in records]))
        self.record_count += len(records)

    def flush(self):
        self.flushed += 1


class Gone(Sent):
    """A producer whose broker is gone: no batch is acknowledged."""

    def append(self, *_batch):
        raise UnavailableError("no batch was acknowledged")


def writer(producer, **more):
    target = WriteTarget(producer, None, "127.0.0.1:1", "t", 3, [0, 1, 2], None, Codec.NONE, None)
    return RecordWriter(target._replace(**more), nullcontext(), lambda _count: None)


def test_records_are_read_no_further_than_to_the_first_batch_that_is_given_up():
    records = read_lines([b"x\n"] * 1000, None)
    with pytest.raises(UnavailableError, match="11 of 11 records were not written to t: no batch was ackn"):
        writer(Gone(), batch_size_max=450).write_records(records)
    assert next(records).place == "line 12"


def test_a_key_has_the_partition_of_kafkas_java_producer():
    producer, keys = Sent(), [b"%d" % n for n in range(20)]
    assert writer(producer).write_records(InputRecord("", key, key) for key in keys) == 20
    assert sorted(producer.batches) == [
        (index, [key for key in keys if partition_for(key, 3) == index]) for index in range(3)
    ]


def test_records_without_a_key_fill_a_batch_of_one_partition_and_then_go_to_the_next():
    producer = Sent()
    writer(producer, keyless=[2, 0], batch_size_max=450).write_records(
        InputRecord("", None, b"x") for _ in range(40)
    )
    assert [len(values) for _, values in producer.batches] == [10, 10, 10, 10]
    partitions = [partition for partition, _ in producer.batches]
    assert partitions in ([2, 0, 2, 0], [0, 2, 0, 2])


def test_a_record_that_is_larger_than_the_topic_allows_is_named_and_those_before_it_are_written():
    producer = Sent()
    made = writer(producer, batch_size_max=450)
    with pytest.raises(
        BadRecordError, match=r"line 2: the record takes 1070 bytes, which is more than max\.me"
    ):
        made.write_records(read_lines([b"a\n", b"x" * 1000, b"b\n"], None))
    assert made.wait_until_written() == 1
    assert [values for _, values in producer.batches] == [[b"a"]]


def test_a_batch_is_made_before_the_timestamps_of_its_records_differ_by_more_than_it_can_store():
    producer, far = Sent(), [1 - (1 << 63), (1 << 63) - 1]
    assert writer(producer).write_records(InputRecord("", None, b"%d" % one, 0, one) for one in far) == 2
    assert producer.batches == [(0, [b"%d" % far[0]]), (0, [b"%d" % far[1]])]


def test_records_are_sent_before_the_input_is_waited_for_and_flushed_if_it_is_silent():
    producer = Sent()
    made = writer(producer)
    waits = []

    def silent(seconds):
        waits.append(seconds)
        return False

    def records():
        made.send_before_input(silent)
        assert (producer.batches, waits) == ([], [])  # there is nothing to send
        yield InputRecord("", None, b"a")
        made.send_before_input(lambda _seconds: True)
        assert producer.batches == []  # there is more
        made.send_before_input(silent)
        assert [values for _, values in producer.batches] == [[b"a"]]
        assert producer.flushed == 1

    assert made.write_records(records()) == 1


def test_records_that_have_waited_are_sent_though_there_is_more_input():
    producer = Sent()
    made = writer(producer, linger_s=0.0)

    def records():
        yield InputRecord("", None, b"a")
        made.send_before_input(lambda _seconds: True)
        assert [values for _, values in producer.batches] == [[b"a"]]
        assert producer.flushed == 0

    assert made.write_records(records()) == 1


def test_a_record_that_readers_would_not_decompress_is_not_compressed(monkeypatch):
    sizes = []

    class Sizes(Sent):
        def append(self, topic, partition, batch):
            sizes.append(len(batch))
            super().append(topic, partition, batch)

    monkeypatch.setattr(record_writer, "COMPRESSED_SIZE_MAX", 400_000)
    lines = [b"x" * 399_000 + b"\n", b"y" * 400_000 + b"\n"]
    writer(Sizes(), codec=Codec.GZIP).write_records(read_lines(lines, None))
    small, large = sizes
    assert small < 10_000
    assert large > 400_000
