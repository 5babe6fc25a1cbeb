"""Reads of an open log by offset: where they begin, and which offsets are refused."""

import pytest

from stablelog.batch.header import headers_in
from stablelog.errors import OffsetOutOfRangeError
from stablelog.log.files.restored import Restored
from stablelog.log.offset_read import read_from_offset
from stablelog.log.partition import Isolation
from tests.log.timeline import write

COMMITTED, UNCOMMITTED = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED


def offsets(log, start, isolation, size_max=1 << 20):
    found = read_from_offset(log.partition, start, size_max, isolation, at_least_one=True)
    return [header.base_offset for _, header in headers_in(b"".join(found.buffers))]


def test_a_read_begins_with_the_batch_of_its_offset_and_ends_where_its_isolation_ends():
    log = write("- - P1 -")
    assert offsets(log, 1, UNCOMMITTED) == [1, 2, 3]
    assert offsets(log, 1, COMMITTED) == [1]


def test_a_read_that_begins_at_the_end_is_empty():
    log = write("- -")
    assert offsets(log, 2, UNCOMMITTED) == []


@pytest.mark.parametrize("start", [1, 5])
def test_an_offset_outside_the_log_is_refused_with_the_offsets_that_there_are(start):
    log = write("- - - -")
    log.partition.deletion.delete_records(2)
    with pytest.raises(
        OffsetOutOfRangeError, match=rf"offset {start} is not in the log of .*offsets 2 to 4 \(exclusive\)"
    ):
        offsets(log, start, UNCOMMITTED)


def test_an_offset_that_was_lost_with_a_disk_is_refused_with_the_end_of_what_was_restored():
    log = write("- - - -")
    log.partition.restored = Restored(((4, 10),), 0, -1, 1, 0)
    with pytest.raises(OffsetOutOfRangeError, match=r"ends at offset 4, and new records begin at 10"):
        offsets(log, 7, UNCOMMITTED)
