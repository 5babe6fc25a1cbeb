"""The filter drops what an aborted transaction wrote, and nothing of the next transaction of its producer."""

import pytest

from stablelog.batch.aborted import AbortedFilter
from stablelog.batch.markers import Marker, MarkerType, encode_marker
from stablelog.errors import DamageError


def marker(kind):
    return encode_marker(
        Marker(kind, 0), base_offset=0, leader_epoch=0, producer_id=7, producer_epoch=0, timestamp_ms=1
    )


def test_a_transaction_is_dropped_from_its_first_batch_to_its_abort_marker():
    aborted = AbortedFilter()
    assert aborted.is_idle
    aborted.add([(7, 5)], 0)
    assert not aborted.is_idle
    assert not aborted.drops_batch(7, 4)
    assert aborted.drops_batch(7, 5)
    assert not aborted.drops_batch(8, 6)
    aborted.process_control(marker(MarkerType.ABORT), 0, 7, 9)
    assert not aborted.drops_batch(7, 10)
    assert aborted.is_idle


def test_only_an_abort_marker_ends_it_and_no_marker_of_another_producer_is_read():
    aborted = AbortedFilter()
    aborted.add([(7, 5)], 0)
    aborted.process_control(marker(MarkerType.COMMIT), 0, 7, 6)
    aborted.process_control(b"no batch", 0, 8, 7)
    assert aborted.drops_batch(7, 8)
    with pytest.raises(DamageError):
        aborted.process_control(b"no batch", 0, 7, 9)


def test_a_transaction_that_is_listed_again_or_ended_before_the_data_has_no_effect():
    aborted = AbortedFilter()
    aborted.add([(7, 5), (7, 5), (8, 2, 9)], 10)
    assert not aborted.drops_batch(8, 12)
    aborted.process_control(marker(MarkerType.ABORT), 0, 7, 13)
    aborted.add([(7, 5)], 14)
    assert aborted.is_idle
