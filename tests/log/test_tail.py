"""What follows damage in a log file: real batches are found, and what a client wrote to look like one is not."""

import os
import struct

import pytest

from stablelog.batch.header import HEADER
from stablelog.batch.records import Record, encode_batch
from stablelog.log.recovery.tail import batches_behind
from stablelog.testing.sim_disk import SimDisk
from tests.log.timeline import DIRECTORY

PATH = DIRECTORY / f"{0:020d}.log"


class CountingFile:
    """A file that counts the bytes that are read from it."""

    def __init__(self, content):
        self.disk = SimDisk()
        self.disk.make_dir(DIRECTORY)
        self.file = self.disk.open(PATH, create=True)
        self.file.append(content)
        self.read_size = 0

    @property
    def size(self):
        return self.file.size

    def read(self, position, size):
        found = self.file.read(position, size)
        self.read_size += len(found)
        return found


def batch(offset, value):
    return encode_batch([Record(0, 1, b"k", value, ())], base_offset=offset, leader_epoch=1)


def offsets(file, position, end_offset):
    return [header.base_offset for _, header in batches_behind(file, position, end_offset)]


def test_a_batch_in_a_record_of_the_damaged_batch_is_not_taken_for_what_follows():
    inner = batch(2**31 - 10, b"inner")
    first = batch(0, b"a")
    damaged = bytearray(batch(1, b"xx" + inner))
    damaged[30] ^= 1
    log = first + damaged + b"".join(batch(2 + place, b"v%d" % place) for place in range(50))
    assert offsets(CountingFile(log), len(first), 1) == list(range(2, 52))


@pytest.mark.parametrize("bits", [0x01, 0x80])
def test_where_the_length_is_damaged_a_batch_that_others_follow_is_preferred(bits):
    inner = batch(2**31 - 10, b"inner")
    first = batch(0, b"a")
    damaged = bytearray(batch(1, b"xx" + inner + b"yy"))
    damaged[9] ^= bits
    log = first + damaged + b"".join(batch(2 + place, b"v%d" % place) for place in range(50))
    assert offsets(CountingFile(log), len(first), 1) == list(range(2, 52))


def test_headers_that_a_client_wrote_into_a_value_do_not_make_the_search_long():
    crafted = struct.pack(">qi", 5, 6 << 20) + bytes(4) + b"\2"
    first = batch(0, b"a")
    damaged = bytearray(batch(1, crafted * 1000))
    damaged[9] ^= 1
    log = first + damaged + b"".join(batch(2 + place, os.urandom(1 << 20)) for place in range(8))
    file = CountingFile(log)
    assert offsets(file, len(first), 1) == list(range(2, 10))
    assert file.read_size < 10 * len(log)


@pytest.mark.parametrize("torn", [0, 1, HEADER.size - 1, HEADER.size, 90])
def test_the_last_batch_is_found_whatever_a_crash_left_behind_it(torn):
    damaged = bytearray(batch(0, b"a"))
    damaged[9] ^= 1
    log = bytes(damaged) + batch(1, b"b" * 100) + batch(2, b"c" * 100)[:torn]
    assert offsets(CountingFile(log), 0, 0) == [1]


def test_a_file_is_read_from_its_beginning_batch_by_batch():
    log = b"".join(batch(place, b"v" * 1000) for place in range(1000))
    file = CountingFile(log)
    assert offsets(file, -1, 0) == list(range(1000))
    assert file.read_size < 2 * len(log)
