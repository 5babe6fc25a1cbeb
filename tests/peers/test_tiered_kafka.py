"""The requests of Apache Kafka to its remote tier during a read-committed backfill."""

import contextlib

import pytest

from peers import apache_kafka, backfill, tiered_kafka
from peers.tiered_kafka import Kind
from tests.java.dump import SHORT_LIVED

pytestmark = [pytest.mark.java, pytest.mark.filterwarnings("ignore"), pytest.mark.extended]

SEGMENTS = 10
ABORTED = (2, 5, 8)
# One of each kind for each segment. Kafka asks for a transaction index also where none was stored.
INDEXES = {Kind.OFFSET_INDEX: SEGMENTS, Kind.TIME_INDEX: SEGMENTS, Kind.TRANSACTION_INDEX: SEGMENTS}


@pytest.fixture
def kafka():
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(tiered_kafka.serve(SHORT_LIVED))
        except apache_kafka.NotAvailableError as missing:
            pytest.skip(str(missing))
        yield running


def indexes(counts):
    return {kind: count for kind, count in counts.requests.items() if kind is not Kind.SEGMENT}


def test_kafka_requests_three_indexes_of_each_segment_with_and_without_aborts(kafka):
    """One test, so that one process starts Kafka."""
    without = tiered_kafka.count_backfill(kafka, "without", SEGMENTS)
    assert indexes(without) == INDEXES
    assert without.missing == {Kind.TRANSACTION_INDEX: SEGMENTS}
    assert without.requests[Kind.SEGMENT] >= SEGMENTS

    aborts = tiered_kafka.count_backfill(kafka, "aborts", SEGMENTS, ABORTED)
    assert indexes(aborts) == INDEXES
    assert aborts.missing == {Kind.TRANSACTION_INDEX: SEGMENTS - len(ABORTED)}
    assert aborts.requests[Kind.SEGMENT] >= SEGMENTS

    again = tiered_kafka.count_read(kafka, "aborts", backfill.committed_count(SEGMENTS, ABORTED))
    assert indexes(again) == {}, "Kafka keeps the indexes in a cache on its disk"
    assert again.requests[Kind.SEGMENT] >= SEGMENTS
