"""Compressed records that are garbage or a bomb."""

import random
import tracemalloc

import cramjam
import pytest

from stablelog.batch import compression
from stablelog.batch.compression import (
    LZ4_HEADER,
    XERIAL_HEADER,
    XERIAL_MAGIC,
    check_framing,
    compress,
    decompress,
)
from stablelog.batch.header import Codec
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.errors import DamageError, DecompressedSizeError


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_bomb_costs_no_more_than_the_limit(codec):
    bomb = compress(codec, bytes(64 << 20))
    tracemalloc.start()
    with pytest.raises(DamageError, match="more than"):
        decompress(codec, bomb, 1 << 20)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_garbage_is_corrupt_and_nothing_else(codec):
    chance = random.Random(codec)
    whole = compress(codec, b"a sentence that repeats itself " * 20)
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            decompress(codec, bytes(data[: chance.randint(0, len(data))]), 1 << 16)
        except DamageError:
            continue


PLAIN = {
    "nothing": b"",
    "one byte": b"x",
    "one block": b"word " * 1000,
    "bytes that cannot be compressed": random.Random(1).randbytes(200_000),
    "several blocks": b"ab" * 100_000,
}


@pytest.mark.parametrize("plain", PLAIN.values(), ids=PLAIN)
def test_an_lz4_frame_has_independent_blocks_which_java_demands(plain):
    """Of a frame with other flags, Kafka's Java client says "Dependent block stream is unsupported"."""
    packed = compress(Codec.LZ4, plain)
    assert packed[:7] == bytes.fromhex("04224d18 60 40 82")
    assert decompress(Codec.LZ4, packed) == plain
    at, sizes = 7, []
    while size := int.from_bytes(packed[at : at + 4], "little"):
        sizes.append(size & 0x7FFF_FFFF)
        at += 4 + sizes[-1]
    assert at + 4 == len(packed)
    assert len(sizes) == -(-len(plain) // (64 << 10))
    assert max(sizes, default=0) <= 64 << 10


def lz4(plain, **options):
    """A frame by another maker."""
    maker = cramjam.lz4.Compressor(**options)
    maker.compress(plain)
    return bytes(maker.finish())


PLAIN = b"a sentence that repeats itself " * 10_000
SKIPPABLE = bytes.fromhex("502a4d18 03000000") + b"abc"
# Only the Java client is so strict: `decompress` reads all of these.
NOT_FOR_JAVA = {
    "blocks that depend on each other": (Codec.LZ4, lz4(PLAIN, block_linked=True)),
    "two frames": (Codec.LZ4, compress(Codec.LZ4, PLAIN) * 2),
    "a skippable frame": (Codec.LZ4, SKIPPABLE + compress(Codec.LZ4, PLAIN)),
    "xerial framing of version 0": (
        Codec.SNAPPY,
        XERIAL_HEADER.pack(XERIAL_MAGIC, 0, 0) + compress(Codec.SNAPPY, PLAIN)[XERIAL_HEADER.size :],
    ),
    "a part of a header of xerial framing": (Codec.SNAPPY, XERIAL_MAGIC + bytes(3)),
}


@pytest.mark.parametrize("case", NOT_FOR_JAVA)
def test_a_frame_that_the_java_client_cannot_read_is_refused(case):
    codec, packed = NOT_FOR_JAVA[case]
    decompress(codec, packed)
    with pytest.raises(DamageError, match=r"lz4|xerial"):
        check_framing(codec, packed)


@pytest.mark.parametrize("is_checked", [False, True])
@pytest.mark.parametrize("content_size", [b"", len(PLAIN).to_bytes(8, "little")])
@pytest.mark.parametrize("plain", [b"", b"x", PLAIN, random.Random(1).randbytes(200_000)])
def test_frames_of_other_makers_are_accepted_whole_and_refused_in_part(plain, content_size, is_checked):
    packed = lz4(plain, content_checksum=is_checked, block_linked=False)
    if content_size:  # the decompressor would verify this field; here only its place matters
        packed = packed[:4] + bytes([packed[4] | 8]) + packed[5:6] + content_size + packed[6:]
    check_framing(Codec.LZ4, packed)
    for wrong in (packed[:-1], packed + b"x", packed[:10], LZ4_HEADER[:5], b""):
        with pytest.raises(DamageError):
            check_framing(Codec.LZ4, wrong)


@pytest.mark.parametrize("codec", Codec)
def test_what_stablelog_compresses_has_the_framing_of_the_java_client(codec):
    for plain in (b"", b"x", PLAIN):
        check_framing(codec, compress(codec, plain))
    check_framing(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(PLAIN)))


def test_the_limit_against_bombs_does_not_hold_for_records_that_are_not_compressed(monkeypatch):
    """The broker accepts them up to max.message.bytes, and a reader gets as many bytes as it decodes."""
    monkeypatch.setattr(compression, "SIZE_MAX", 1000)
    record = Record(0, 0, None, bytes(2000))
    assert decode_records(encode_batch([record])) == [record]
    with pytest.raises(DecompressedSizeError, match="more than 1000 bytes"):
        decode_records(encode_batch([record], codec=Codec.ZSTD))
    with pytest.raises(DecompressedSizeError):
        decompress(Codec.NONE, bytes(2000), 1000)
