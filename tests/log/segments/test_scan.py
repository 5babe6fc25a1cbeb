"""The scanner of a log file: every batch, whatever is read at once, and what it says of bytes that are none."""

from functools import partial

import pytest

from stablelog.batch.header import HEADER
from stablelog.batch.records import Record, encode_batch
from stablelog.errors import DamageError
from stablelog.log.segments import scan
from stablelog.log.segments.scan import TornError, check_crc, scan_batches


def batch_at(offset, size):
    return encode_batch([Record(offset, 0, None, bytes(size), ())], base_offset=offset, leader_epoch=0)


BATCHES = [batch_at(at, size) for at, size in enumerate([10, 400, 10, 900, 20])]
CONTENT = b"".join(BATCHES)
BEGINS = [sum(map(len, BATCHES[:at])) for at in range(len(BATCHES))]


def read(position, size):
    return CONTENT[position : position + size]


@pytest.mark.parametrize("size", [1, 61, 70, 500, 1 << 20])
def test_every_batch_is_met_whatever_is_read_at_once(monkeypatch, size):
    monkeypatch.setattr(scan, "BATCHES_READ_SIZE", size)
    monkeypatch.setattr(scan, "HEADERS_READ_SIZE", size)
    for first in range(len(BATCHES)):
        found = list(scan_batches(read, BEGINS[first], len(CONTENT)))
        assert [bytes(batch) for _, _, batch in found] == BATCHES[first:]
        assert [position for position, _, _ in found] == BEGINS[first:]
        heads = list(scan_batches(read, BEGINS[first], len(CONTENT), with_bodies=False))
        assert [(at, header) for at, header, _ in heads] == [(at, header) for at, header, _ in found]
        assert [bytes(head) for _, _, head in heads] == [one[: HEADER.size] for one in BATCHES[first:]]


def test_bodies_are_not_read_for_headers(monkeypatch):
    monkeypatch.setattr(scan, "HEADERS_READ_SIZE", HEADER.size)
    sizes = []

    def noting(position, size):
        sizes.append(size)
        return read(position, size)

    assert len(list(scan_batches(noting, 0, len(CONTENT), with_bodies=False))) == len(BATCHES)
    assert sizes == [HEADER.size] * len(BATCHES)


@pytest.mark.parametrize("scanned", [scan_batches, partial(scan_batches, with_bodies=False)])
def test_a_file_that_ends_inside_a_batch_is_torn_behind_the_whole_ones(scanned):
    for end in range(BEGINS[1] + 1, BEGINS[2]):
        found = []
        with pytest.raises(TornError, match=f"a torn batch at byte {BEGINS[1]}: "):
            found.extend(position for position, _, _ in scanned(read, 0, end))
    assert [at for at, _, _ in scanned(read, 0, BEGINS[1])] == [0]


@pytest.mark.parametrize("size", [61, 1 << 20])
def test_damage_is_named_by_its_place_in_the_file(monkeypatch, size):
    monkeypatch.setattr(scan, "BATCHES_READ_SIZE", size)
    damaged = bytearray(CONTENT)
    damaged[BEGINS[2] + 16] = 1
    with pytest.raises(DamageError, match=f"batch at byte {BEGINS[2]} has magic 1"):
        list(scan_batches(lambda position, size: bytes(damaged[position : position + size]), 0, len(damaged)))


def test_a_file_that_has_become_shorter_is_torn():
    with pytest.raises(TornError):
        list(
            scan_batches(
                lambda position, size: read(position, size)[: len(CONTENT) - 1 - position], 0, len(CONTENT)
            )
        )


def test_a_batch_whose_crc_does_not_hold_is_named():
    _, header, batch = next(scan_batches(read, 0, len(CONTENT)))
    check_crc(header, batch, 0)
    changed = bytearray(batch)
    changed[-1] ^= 1
    with pytest.raises(
        DamageError, match="the CRC of the batch at offset 0, byte 7, does not match its bytes"
    ):
        check_crc(header, changed, 7)
