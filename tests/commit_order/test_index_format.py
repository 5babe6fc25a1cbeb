"""The rows and the summary of a commit index: what is written is read, and every damaged summary is refused."""

import struct
from dataclasses import fields

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as some

from stablelog.commit_order.extents import LONG_COUNT
from stablelog.commit_order.index_format import (
    CRC,
    ENTRY,
    NO_PRODUCER,
    OPEN,
    SUMMARY,
    VERSION,
    CommitSummary,
    CommittedRange,
    Entry,
)
from stablelog.errors import DamageError, UnknownFormatError

OFFSETS = some.integers(-1, 2**63 - 1)
CRCS = some.integers(0, 2**32 - 1)


def summary(**changes):
    """A summary with a different value in each field."""
    values = {field.name: number for number, field in enumerate(fields(CommitSummary), start=1)}
    return CommitSummary(**{**values, "open": ((7, 31), (9, 35)), **changes})


def with_crc(content):
    return content + CRC.pack(crc32c(content))


def entry(**changes):
    """An entry with a different value in each field."""
    values = {name: 10 + number for number, name in enumerate(Entry._fields)}
    return Entry(**{**values, **changes})


@given(
    some.tuples(*[CRCS if "crc" in one.name else OFFSETS for one in fields(CommitSummary)[:-1]]), some.data()
)
def test_a_summary_is_read_as_it_was_written(values, data):
    opened = data.draw(some.lists(some.tuples(OFFSETS, OFFSETS), max_size=3))
    written = CommitSummary(*values, tuple(opened))
    content = written.encode()
    assert CommitSummary.decode(content) == written
    assert len(content) == SUMMARY.size + len(opened) * OPEN.size + CRC.size


def test_each_changed_byte_and_each_torn_end_of_a_summary_is_damage():
    content = summary().encode()
    for at in range(len(content)):
        with pytest.raises(DamageError, match="its CRC or its size is wrong"):
            CommitSummary.decode(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(DamageError, match="its CRC or its size is wrong"):
            CommitSummary.decode(content[:at])


@pytest.mark.parametrize("count", [-1, 1, 3])
def test_a_summary_with_another_count_of_open_transactions_than_it_has_is_damage(count):
    head = bytearray(summary().encode()[: -CRC.size])
    head[SUMMARY.size - 4 : SUMMARY.size] = count.to_bytes(4, signed=True)
    with pytest.raises(
        DamageError, match=rf"of version {VERSION} has {len(head) + 4} bytes, which is no possible"
    ):
        CommitSummary.decode(with_crc(head))


@pytest.mark.parametrize("version", [0, VERSION - 1, VERSION + 1])
def test_a_summary_of_another_form_is_refused_with_its_version(version):
    content = with_crc(version.to_bytes(2) + summary().encode()[2 : -CRC.size])
    with pytest.raises(UnknownFormatError, match=rf"^a commit summary of version {version}") as refused:
        CommitSummary.decode(content)
    assert (refused.value.found, refused.value.known) == (version, VERSION)


def test_a_version_that_no_release_will_write_is_damage():
    with pytest.raises(DamageError, match="a commit summary of version -1 has"):
        CommitSummary.decode(with_crc(struct.pack(">h", -1) + summary().encode()[2 : -CRC.size]))


def test_a_row_of_the_file_of_entries_has_the_fields_of_an_entry():
    assert Entry(*ENTRY.unpack(ENTRY.pack(*entry()))) == entry()


def test_an_entry_of_a_transaction_shows_its_positions_its_commit_sequence_and_its_time():
    one = entry(start=100, record_count=7, latest_sequence=5, latest_ms=1000, producer_id=0)
    assert one.end == 107
    assert not one.is_outside
    assert one.committed == CommittedRange(100, 107, 5, 1000)


def test_records_outside_transactions_have_no_commit_sequence():
    one = entry(producer_id=NO_PRODUCER, latest_sequence=5)
    assert one.is_outside
    assert one.committed.commit_sequence == -1


@pytest.mark.parametrize(
    ("producer_id", "log_start", "is_torn"), [(1, 13, False), (1, 14, True), (-1, 14, False)]
)
def test_a_transaction_is_torn_if_it_began_before_the_log_start(producer_id, log_start, is_torn):
    assert entry(producer_id=producer_id, first_offset=13).is_torn(log_start) is is_torn


def test_a_transaction_is_long_from_a_number_of_extents_on():
    assert not entry(extent_count=LONG_COUNT - 1).is_long
    assert entry(extent_count=LONG_COUNT).is_long
