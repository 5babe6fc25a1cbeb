"""What a pin keeps from deletion, and what is no pin."""

import re
from pathlib import Path

import pytest

from stablelog.errors import DamageError, UnknownFormatError
from stablelog.tier.pins import Pin, decode_pin, encode_pin

FORMATS = Path(__file__).parents[2] / "docs" / "reference" / "formats.md"
PIN = Pin(100, 200, "a query")


def test_a_pin_is_read_as_it_was_written():
    assert decode_pin(encode_pin(PIN)) == PIN


def test_the_example_of_the_documents_is_a_pin():
    (example,) = re.findall(r'^Example: `(\{"version": 1, "start".*\})`$', FORMATS.read_text(), re.M)
    pin = decode_pin(example.encode())
    assert pin == Pin(0, 5000, "Spark query 1f0c")
    assert encode_pin(pin) == example.encode()


@pytest.mark.parametrize(
    ("base_offset", "end_offset", "protects"),
    [(0, 100, False), (0, 101, True), (150, 160, True), (199, 300, True), (200, 300, False), (0, 900, True)],
)
def test_a_pin_protects_the_segments_that_overlap_it(base_offset, end_offset, protects):
    assert PIN.protects(base_offset, end_offset) is protects


def test_a_pin_without_offsets_protects_nothing():
    assert not Pin(100, 100, "").protects(100, 200)
    assert not Pin(100, 100, "").protects(0, 100)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"version": 1}',
        b'{"version": 1, "start": 5, "end": 4, "reader": ""}',
        b'{"version": 1, "start": -1, "end": 4, "reader": ""}',
        b'{"version": 0, "start": 0, "end": 4, "reader": ""}',
        b'{"version": 1, "start": "x", "end": 4, "reader": ""}',
    ],
)
def test_a_damaged_pin_is_refused(content):
    with pytest.raises(DamageError, match="a pin"):
        decode_pin(content)


def test_a_pin_of_a_later_release_is_refused():
    with pytest.raises(UnknownFormatError, match="a pin of version 2"):
        decode_pin(b'{"version": 2, "start": 0, "end": 4, "reader": ""}')
