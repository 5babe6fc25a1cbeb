"""The state of one producer in a partition."""

import pytest

from stablelog.log.producer_state.producer import NO_TXN, KeptBatch, ProducerEntry


@pytest.mark.parametrize(
    ("last", "delta", "first"), [(9, 4, 5), (0, 0, 0), (1, 2, 2**31 - 1), (2**31 - 1, 3, 2**31 - 4)]
)
def test_the_first_sequence_of_a_batch_is_counted_back_and_wraps(last, delta, first):
    assert KeptBatch(last, 100, delta, 0).first_sequence == first


def test_the_first_offset_of_a_batch_is_counted_back():
    assert KeptBatch(9, 100, 4, 0).first_offset == 96


def test_a_producer_without_a_batch_in_its_epoch_has_no_sequence():
    assert ProducerEntry(1, 0).last_sequence == -1


def test_the_last_sequence_is_that_of_the_last_batch():
    assert ProducerEntry(1, 0, batches=[KeptBatch(3, 10, 0, 0), KeptBatch(4, 11, 0, 0)]).last_sequence == 4


def test_a_new_producer_has_no_open_transaction_and_no_batches_of_another():
    one, other = ProducerEntry(1, 0), ProducerEntry(2, 0)
    one.batches.append(KeptBatch(0, 0, 0, 0))
    assert (other.batches, other.txn_first_offset) == ([], NO_TXN)


def test_whether_the_state_is_packed_makes_no_difference_to_it():
    assert ProducerEntry(1, 0, is_packed=True) == ProducerEntry(1, 0)
    assert "packed" not in repr(ProducerEntry(1, 0))
