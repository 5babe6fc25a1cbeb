"""The batches that a reader has fetched: each is checked before its records are used."""

import pytest

from stablelog.batch.header import write_crc
from stablelog.batch.markers import Marker, MarkerType, encode_marker
from stablelog.batch.records import Record, encode_batch
from stablelog.client.core.batches import read_batches
from stablelog.errors import DamageError

TARGET = "t", 3


def batch(base_offset, count=2):
    return encode_batch([Record(0, 0, None, b"v")] * count, base_offset=base_offset)


def marker(base_offset):
    return encode_marker(
        Marker(MarkerType.COMMIT, 0),
        base_offset=base_offset,
        leader_epoch=0,
        producer_id=1,
        producer_epoch=0,
        timestamp_ms=0,
    )


def undecodable(base_offset):
    """A batch whose CRC is right and whose records are no records."""
    found = bytearray(batch(base_offset))
    found[61] = 0xFF
    write_crc(found)
    return bytes(found)


def read(content, offset=0, **options):
    return [
        (header.base_offset, records and [one.offset for one in records])
        for header, records in read_batches(TARGET, content, offset, **options)
    ]


def test_the_records_of_each_batch_are_decoded_and_a_marker_has_none():
    assert read(batch(0) + marker(2) + batch(3)) == [(0, [0, 1]), (2, []), (3, [3, 4])]


@pytest.mark.parametrize(("offset", "first"), [(0, 0), (1, 0), (2, 2), (3, 2), (4, None)])
def test_batches_that_end_at_or_before_the_offset_are_left_out(offset, first):
    assert [base for base, _ in read(batch(0) + batch(2), offset)] == [
        base for base in (0, 2) if first is not None and base >= first
    ]


def test_a_part_of_the_next_batch_is_passed_over():
    assert read(batch(0) + batch(2)[:-1]) == [(0, [0, 1])]


def test_a_batch_that_has_changed_is_refused_by_its_partition_and_offset():
    content = bytearray(batch(0) + batch(2))
    content[-1] ^= 1
    found = read_batches(TARGET, bytes(content), 0)
    assert next(found)[0].base_offset == 0
    with pytest.raises(
        DamageError, match=r"^t-3, offset 2: the CRC of the batch is wrong: .* Restore the log file"
    ):
        next(found)


def test_records_that_their_producer_has_written_wrongly_are_refused_with_how_to_go_on():
    with pytest.raises(
        DamageError,
        match=r"^t-3, offset 2: the 2 records of the batch cannot be decoded: .* To leave such records out, set skip_unreadable=True$",
    ):
        read(batch(0) + undecodable(2))


def test_they_are_left_out_on_demand_and_the_log_says_how_many(caplog):
    assert read(undecodable(0) + batch(2), skips_unreadable=True) == [(0, None), (2, [2, 3])]
    assert "t-3, offset 0: the 2 records of the batch cannot be decoded" in caplog.text
    assert "They are left out" in caplog.text


def test_a_damaged_batch_is_refused_although_unreadable_records_are_left_out():
    content = bytearray(undecodable(0))
    content[-1] ^= 1
    with pytest.raises(DamageError, match="CRC"):
        read(bytes(content), skips_unreadable=True)


def test_bytes_that_are_no_batch_are_refused_by_the_offset_after_the_last_batch():
    with pytest.raises(DamageError, match=r"^t-3, offset 2: "):
        read(batch(0) + bytes(100))
