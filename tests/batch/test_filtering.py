import pytest

from stablelog.batch.filtering import filler, raw_records, with_records, without_records
from stablelog.batch.header import DELETE_HORIZON, Codec, crc_holds, read_header
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.errors import DamageError

RECORDS = [
    Record(40, 1000, b"a", b"1", (("name \u00e9", b"\xff"),)),
    Record(41, 1007, b"b", None, (("null", None),)),
    Record(42, 1003, None, b"", ()),
]


def batch(codec=Codec.NONE, **more):
    return encode_batch(
        RECORDS,
        base_offset=40,
        leader_epoch=3,
        codec=codec,
        producer_id=5,
        producer_epoch=2,
        base_sequence=7,
        transactional=True,
        **more,
    )


def kept(data, *offsets, horizon_ms=None):
    header = read_header(data)
    records = [record for record in raw_records(data, header) if record.offset in offsets]
    return with_records(header, records, horizon_ms)


@pytest.mark.parametrize("codec", Codec)
def test_records_that_stay_are_what_they_were_and_so_is_the_batch(codec):
    whole = batch(codec)
    part = kept(whole, 40, 42)
    before, header = read_header(whole), read_header(part)
    assert crc_holds(part, 0, header)
    assert decode_records(part) == [RECORDS[0], RECORDS[2]]
    assert header.max_timestamp == 1003
    same = ("base_offset", "last_offset_delta", "leader_epoch", "attributes", "producer_id", "base_sequence")
    assert [getattr(header, name) for name in same] == [getattr(before, name) for name in same]


def test_if_all_stay_nothing_changes():
    assert kept(batch(), 40, 41, 42) == batch()


def test_a_delete_horizon_takes_the_place_of_the_base_timestamp_and_records_keep_their_times():
    part = kept(batch(), 41, horizon_ms=9_000_000)
    header = read_header(part)
    assert header.attributes & DELETE_HORIZON
    assert header.base_timestamp == 9_000_000
    assert decode_records(part) == [RECORDS[1]]
    assert raw_records(part, header)[0].is_tombstone
    assert decode_records(kept(part, 41)) == [RECORDS[1]]


def test_an_emptied_batch_still_says_whose_it_is():
    header = read_header(without_records(read_header(batch(Codec.ZSTD))))
    assert (header.record_count, header.base_timestamp, header.size) == (0, -1, 61)
    assert (header.base_offset, header.last_offset, header.last_sequence) == (40, 42, 9)
    assert header.is_transactional
    assert header.codec is Codec.NONE
    assert decode_records(without_records(header)) == []


def test_a_filler_takes_offsets_and_is_nobodys():
    header = read_header(filler(10, 25, 3))
    assert (header.base_offset, header.next_offset, header.leader_epoch) == (10, 25, 3)
    assert not header.has_producer
    assert not header.is_transactional
    assert crc_holds(filler(10, 25, 3), 0, header)


def test_what_is_no_record_is_found_out():
    data = bytearray(batch())
    for at in (61, 64, 65):
        changed = data.copy()
        changed[at] = 0xFF
        with pytest.raises(DamageError):
            raw_records(changed, read_header(changed))
