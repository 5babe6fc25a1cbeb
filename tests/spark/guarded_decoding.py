"""Decodes damaged batches with forbidden memory behind every buffer; prints how many were refused.

One byte read or written too far ends the process. Run by test_decoder.
"""

import ctypes
import mmap
import random
import sys

import numpy as np

from stablelog.batch.header import HEADER, Codec
from stablelog.batch.records import Record, encode_batch
from stablelog.errors import Corrupt
from stablelog.spark.columns.arrow_schema import NAMES, arrow_schema
from stablelog.spark.columns.builder import ColumnBuilder
from stablelog.spark.columns.decoder import Decoder

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_arenas = {}


def guarded(name, size):
    """An array whose end is the last byte that may be touched; one for each name and number of pages, for ever."""
    pages = -(-size // PAGE) or 1
    if (name, pages) not in _arenas:
        private_anonymous = 0x22
        address = _libc.mmap(None, (pages + 1) * PAGE, 3, private_anonymous, -1, 0)
        assert _libc.mprotect(address + pages * PAGE, PAGE, 0) == 0
        _arenas[name, pages] = address
    start = _arenas[name, pages] + pages * PAGE - size
    return np.frombuffer((ctypes.c_char * size).from_address(start), np.uint8)


class GuardedBuffer:
    """What the builder takes for an Arrow buffer: it is filled, and never made into a column."""

    def __init__(self, name, size):
        self.array = guarded(name, size)
        self.address = self.array.ctypes.data


class GuardedBuilder(ColumnBuilder):
    def _buffer(self, name, size):
        self._buffers[name] = buffer = GuardedBuffer(name, size)
        return buffer.address

    def take(self):
        self._allocate(self.bytes_max)
        return iter(())

    def _begin_offsets(self, name):
        self._buffers[name].array[:4] = 0


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
    schemas = [
        arrow_schema(names) for names in (NAMES, ["value"], ["key", "headers"], ["timestamp"], ["offset"])
    ]
    for _ in range(count):
        data = damaged(rng)
        given = guarded("data", len(data))
        given[:] = np.frombuffer(data, np.uint8)
        for schema in schemas:
            decoder = Decoder("t", 0, builder=GuardedBuilder(schema, 7, 200), check_crc=False)
            try:
                list(decoder.feed(memoryview(given), 0, 1 << 60))
            except Corrupt:
                refused += 1
    print(refused)


main(int(sys.argv[1]))
