"""Checks of a batch against the state of its producer."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.header import SEQUENCE_MAX, read_header
from stablelog.batch.records import Record, encode_batch
from stablelog.errors import RefusedError
from stablelog.log.producer_state.producer import NO_TXN, KeptBatch, ProducerEntry
from stablelog.log.producer_state.sequence_checks import check_epoch, check_sequence, find_repeated

TEMPLATE = read_header(
    encode_batch([Record(0, 0, b"k", b"v")], producer_id=7, producer_epoch=2, base_sequence=0)
)


def header(sequence, *, epoch=2, count=1, transactional=False):
    return TEMPLATE._replace(
        producer_epoch=epoch,
        base_sequence=sequence,
        last_offset_delta=count - 1,
        record_count=count,
        attributes=0x10 if transactional else 0,
    )


def producer(*kept, txn_first_offset=NO_TXN):
    return ProducerEntry(7, 2, batches=list(kept), txn_first_offset=txn_first_offset)


def code_of(call, *args):
    with pytest.raises(RefusedError) as refused:
        call(*args)
    return refused.value.code


def test_a_batch_repeats_a_kept_one_only_with_the_same_sequences_and_epoch():
    kept = KeptBatch(last_sequence=4, last_offset=14, offset_delta=2, timestamp_ms=0)
    assert find_repeated(producer(kept), header(2, count=3)) is kept
    for other in (header(2, count=2), header(3, count=2), header(2, count=3, epoch=3)):
        assert find_repeated(producer(kept), other) is None


def test_a_transactional_batch_repeats_only_batches_of_the_open_transaction():
    kept = KeptBatch(last_sequence=4, last_offset=14, offset_delta=0, timestamp_ms=0)
    repeated = header(4, transactional=True)
    assert find_repeated(producer(kept, txn_first_offset=14), repeated) is kept
    assert find_repeated(producer(kept, txn_first_offset=15), repeated) is None
    assert find_repeated(producer(kept), repeated) is None
    assert find_repeated(producer(kept, txn_first_offset=14), header(4)) is None


def test_an_old_epoch_is_refused():
    check_epoch(producer(), header(0, epoch=2))
    assert code_of(check_epoch, producer(), header(0, epoch=1)) is ErrorCode.invalid_producer_epoch


@pytest.mark.parametrize(("last", "following"), [(4, 5), (SEQUENCE_MAX, 0)])
def test_a_sequence_follows_the_last_one_and_0_follows_the_greatest(last, following):
    one = producer(KeptBatch(last, 14, 0, 0))
    check_sequence(one, header(following))
    wrong = ErrorCode.out_of_order_sequence_number
    assert code_of(check_sequence, one, header(following + 1)) is wrong
    assert code_of(check_sequence, one, header(last)) is wrong


def test_a_new_epoch_begins_with_sequence_0():
    one = producer(KeptBatch(4, 14, 0, 0))
    check_sequence(one, header(0, epoch=3))
    assert code_of(check_sequence, one, header(5, epoch=3)) is ErrorCode.out_of_order_sequence_number


def test_a_producer_writes_nothing_outside_its_open_transaction():
    one = producer(KeptBatch(4, 14, 0, 0), txn_first_offset=14)
    check_sequence(one, header(5, transactional=True))
    assert code_of(check_sequence, one, header(5)) is ErrorCode.invalid_txn_state
