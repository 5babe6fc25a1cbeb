"""The summary of a sealed segment: what is written is read, and every changed byte is found."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.indexes.summary import SUMMARY, VERSION, Summary

NAMES = [field.name for field in fields(Summary)]
CRC, NUMBER = some.integers(0, 2**32 - 1), some.integers(-1, 2**63 - 1)


def summary(**changes):
    """A summary with a different value in each field."""
    return Summary(**{**{name: number for number, name in enumerate(NAMES, start=1)}, **changes})


@given(some.fixed_dictionaries({name: CRC if name.endswith("crc") else NUMBER for name in NAMES}))
def test_a_summary_is_read_as_it_was_written(values):
    content = Summary(**values).encode()
    assert Summary.decode(content) == Summary(**values)
    assert len(content) == SUMMARY.size == 118


def test_an_empty_segment_has_no_times_and_no_aborts():
    empty = Summary(5, 5)
    assert (empty.first_timestamp, empty.max_timestamp, empty.least_aborted_offset) == (-1, -1, -1)


def test_the_index_files_stand_in_the_order_of_their_suffixes():
    one = summary(
        index_size=1, timeindex_size=2, txnindex_size=3, index_crc=4, timeindex_crc=5, txnindex_crc=6
    )
    assert one.index_files == ((1, 2, 3), (4, 5, 6))


def test_each_changed_byte_after_the_version_is_damage():
    content = summary().encode()
    for at in range(2, len(content)):
        with pytest.raises(DamageError, match="the CRC of a segment summary does not match its bytes"):
            Summary.decode(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


@pytest.mark.parametrize("size", [0, 1, 117, 119])
def test_another_size_is_damage_and_told(size):
    content = (summary().encode() + b"\0")[:size]
    with pytest.raises(
        (DamageError, UnknownFormatError), match=rf"{size} bytes; it must have 118|of version 0"
    ):
        Summary.decode(content)


def test_a_later_version_is_refused_and_one_that_no_release_will_write_is_damage():
    content = summary().encode()[2:]
    with pytest.raises(UnknownFormatError, match=rf"^a segment summary of version {VERSION + 1}"):
        Summary.decode((VERSION + 1).to_bytes(2) + content)
    with pytest.raises(DamageError, match="has version -1; only version 1 is known"):
        Summary.decode(b"\xff\xff" + content)
