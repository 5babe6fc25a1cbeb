"""Compressed records that are garbage or a bomb."""

import random
import tracemalloc

import pytest

from stablelog.batch.compression import compress, decompress
from stablelog.batch.header import Codec
from stablelog.errors import DamageError


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
