"""Decodes damaged batches with forbidden memory behind every buffer; prints how many were refused.

One byte read or written too far ends the process. Run by test_decoder.
"""

import ctypes
import functools
import itertools
import mmap
import random
import sys

import numpy as np
import pyarrow as pa

from stablelog.batch.header import HEADER, Codec
from stablelog.batch.records import Record, encode_batch
from stablelog.errors import DamageError, UsageError
from stablelog.spark.columns.builder import TYPES, ColumnBuilder
from stablelog.spark.columns.decoder import Decoder

PAGE = mmap.PAGESIZE
KEPT = 64  # arenas of one size, which are used in turn: more than a builder has buffers
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


@functools.cache
def arenas(pages):
    """Addresses of memory of so many pages, each with a forbidden page behind it."""
    found = []
    for _ in range(KEPT):
        private_anonymous = 0x22
        found.append(_libc.mmap(None, (pages + 1) * PAGE, 3, private_anonymous, -1, 0))
        assert _libc.mprotect(found[-1] + pages * PAGE, PAGE, 0) == 0
    return itertools.cycle(found)


def guarded(size):
    """An array whose end is the last byte that may be touched."""
    pages = -(-size // PAGE) or 1
    start = next(arenas(pages)) + pages * PAGE - size
    return np.frombuffer((ctypes.c_char * size).from_address(start), np.uint8)


def damaged(rng):
    """A batch or two, some bytes of them changed, and cut so that all is read to the end."""
    records = [
        Record(
            0,
            rng.randrange(1 << 41),
            rng.choice([None, b"", b"key"]),
            rng.choice([None, b"", rng.randbytes(rng.randrange(90))]),
            (("n", rng.choice([None, b"v"])),) * rng.randrange(3),
        )
        for _ in range(rng.randrange(1, 9))
    ]
    batch = bytearray(encode_batch(records, codec=rng.choice([Codec.NONE, Codec.NONE, Codec.LZ4])))
    for _ in range(rng.randrange(4)):
        batch[rng.randrange(21, len(batch))] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    for _ in range(rng.randrange(3)):  # a size that is a little too large, near the end of all
        at = rng.randrange(max(HEADER.size, len(batch) - 12), len(batch))
        batch[at] = (batch[at] + rng.choice([1, 2, 2, 4])) & 0xFF
    if rng.random() < 0.3:  # a batch that ends too early
        del batch[max(HEADER.size, len(batch) - rng.randrange(1, 5)) :]
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    return bytes(batch)


def main(count):
    rng, refused = random.Random(7), 0
    for _ in range(count):
        data = damaged(rng)
        given = guarded(len(data))
        given[:] = np.frombuffer(data, np.uint8)
        for names in (TYPES, ["value"], ["key", "headers"], ["timestamp"], ["offset"]):
            builder = ColumnBuilder(names, 7, 200, allocate=lambda size: pa.py_buffer(guarded(size)))
            decoder = Decoder("t", 0, builder, check_crc=False)
            try:
                list(decoder.feed(memoryview(given), 0, 1 << 60))
            except (DamageError, UsageError):  # a time that a timestamp of Spark cannot hold is refused, too
                refused += 1
    print(refused)


main(int(sys.argv[1]))
