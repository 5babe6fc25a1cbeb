"""Another codec of a batch changes neither its records nor what stands in its header besides the codec."""

import pytest

from stablelog.batch import compression
from stablelog.batch.header import HEADER, LOG_APPEND_TIME, Codec, crc_holds, read_header
from stablelog.batch.recompression import recompress
from stablelog.batch.records import Record, decode_records, encode_batch

RECORDS = [Record(0, 1_000, b"k", b"value " * 50), Record(0, 2_000, None, None, (("h", b"x"),))]
PRODUCER = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 5, "transactional": True}
CHANGED = ("batch_length", "crc", "attributes")


def plain_of(batch):
    """The records of a batch without compression, as its header and their bytes."""
    return read_header(batch), bytes(batch[HEADER.size :])


@pytest.mark.parametrize("codec", Codec)
def test_the_records_and_all_other_fields_of_the_header_stay(codec):
    batch = encode_batch(RECORDS, base_offset=40, leader_epoch=3, **PRODUCER)
    header, plain = plain_of(batch)
    found = recompress(header, plain, codec)
    after = read_header(found)
    assert after.codec is codec
    assert after.size == len(found)
    assert crc_holds(found, 0, after)
    assert decode_records(found) == decode_records(batch)
    for name in set(header._fields) - set(CHANGED):
        assert getattr(after, name) == getattr(header, name), name


def test_the_other_attributes_stay():
    header, plain = plain_of(encode_batch(RECORDS, **PRODUCER))
    of_gzip = header._replace(attributes=header.attributes | LOG_APPEND_TIME | Codec.GZIP)
    after = read_header(recompress(of_gzip, plain, Codec.LZ4))
    assert (after.codec, after.is_transactional, after.is_log_append_time) == (Codec.LZ4, True, True)


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_comes_back_from_another_codec_to_the_byte(codec):
    batch = encode_batch(RECORDS, base_offset=40)
    header, plain = plain_of(batch)
    compressed = recompress(header, plain, codec)
    assert recompress(read_header(compressed), plain, Codec.NONE) == batch


def test_records_that_readers_would_not_decompress_are_not_compressed_anew(monkeypatch):
    monkeypatch.setattr(compression, "SIZE_MAX", 1000)
    for size, codec in ((500, Codec.ZSTD), (2000, Codec.NONE)):
        batch = encode_batch([Record(0, 0, None, bytes(size))])
        found = recompress(*plain_of(batch), Codec.ZSTD)
        assert read_header(found).codec is codec
        assert decode_records(found) == decode_records(batch)
