"""The default partition of a record with a key: the one that Kafka's Java producer chooses.

Source: the default partitioner of Kafka's Java producer (murmur2).
"""

from struct import Struct
from typing import Final

_SEED: Final = 0x9747B28C
_MIX: Final = 0x5BD1E995
_LOW_32: Final = 0xFFFFFFFF


def _words(count: int) -> Struct:
    return Struct(f"<{count}I")


_WORDS: Final = [_words(count) for count in range(17)]  # for keys of up to 67 bytes


def murmur2(key: bytes) -> int:
    """Return Kafka's hash of a key (murmur2), 0 to 2^32 - 1."""
    size = len(key)
    count = size >> 2
    mixed = _SEED ^ size
    for word in (_WORDS[count] if count < len(_WORDS) else _words(count)).unpack_from(key):
        word = word * _MIX & _LOW_32
        mixed = (mixed * _MIX & _LOW_32) ^ ((word ^ word >> 24) * _MIX & _LOW_32)
    if size & 3:
        mixed = (mixed ^ int.from_bytes(key[count << 2 :], "little")) * _MIX & _LOW_32
    mixed = (mixed ^ mixed >> 13) * _MIX & _LOW_32
    return mixed ^ mixed >> 15


def partition_for(key: bytes, partition_count: int) -> int:
    """Return the partition that Kafka's Java producer chooses for a record with this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
