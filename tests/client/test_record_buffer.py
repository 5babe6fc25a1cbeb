"""Records of a transaction: an interrupted write leaves nothing, wherever it is interrupted."""

import pytest

from stablelog.client.core import record_buffer
from stablelog.client.core.record_buffer import RecordBuffer


@pytest.fixture
def buffer(monkeypatch):
    monkeypatch.setattr(record_buffer, "BATCH_SIZE_MAX", 100)
    buffer = RecordBuffer()
    buffer.partition_counts["t"] = 2
    return buffer


def add(buffer, value, partition=0):
    buffer.add("t", None, value, (), partition, 0)


@pytest.mark.parametrize("before", [0, 1])
def test_a_record_whose_write_was_interrupted_can_be_taken_back(buffer, before):
    for _ in range(before):
        add(buffer, b"kept")
    add(buffer, bytes(200))
    assert buffer.is_due
    buffer.take_back(before)
    assert not buffer.is_due
    assert buffer.order == [("t", 0)] * before
    assert buffer.unsent() == [("t", 0)] * before
    add(buffer, b"next")
    assert [record.value for record in buffer.take(("t", 0))] == [b"kept"] * before + [b"next"]


def test_a_record_of_an_earlier_write_is_not_taken_back(buffer):
    add(buffer, b"1")
    buffer.take_back(1)
    assert [record.value for record in buffer.take(("t", 0))] == [b"1"]


def test_what_readers_would_not_decompress_is_not_compressed(buffer, monkeypatch):
    monkeypatch.setattr(record_buffer, "COMPRESSED_SIZE_MAX", 1000)
    add(buffer, bytes(900))
    assert buffer.may_compress(("t", 0))
    add(buffer, bytes(1001), 1)
    assert not buffer.may_compress(("t", 1))
