"""What a producer says of each refusal: whether the transaction has ended, and what to do."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.batch_queue import PendingBatch
from stablelog.client.core.producer_errors import ENDED, LOST_BATCH, producer_error, too_large_error
from stablelog.errors import ProducerFencedError


def message(code, transactional_id="x"):
    return str(producer_error(code, "appending to t-0", transactional_id, 1500))


@pytest.mark.parametrize("code", sorted(ENDED), ids=lambda code: code.name)
def test_a_transaction_that_has_ended_is_named_with_its_timeout(code):
    assert message(code).startswith(
        f"the transaction of 'x' has ended: appending to t-0 was refused ({code.name.replace('_', ' ')}). "
    )
    assert "its timeout of 1500 ms" in message(code)


def test_a_fenced_producer_has_an_error_of_its_own():
    for code in (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch):
        assert isinstance(producer_error(code, "w", "x", 1), ProducerFencedError)
    assert not isinstance(producer_error(ErrorCode.transaction_abortable, "w", "x", 1), ProducerFencedError)


@pytest.mark.parametrize("code", sorted(LOST_BATCH), ids=lambda code: code.name)
def test_a_lost_batch_is_to_be_written_again(code):
    assert message(code).startswith("the transaction of 'x' has lost a batch: appending to t-0 was refused (")
    assert message(code).endswith(". Abort it and write it again")


def test_any_other_refusal_names_the_work_and_the_transactional_id():
    code = ErrorCode.topic_authorization_failed
    assert message(code) == "appending to t-0 for 'x': topic authorization failed"


def test_a_producer_without_transactions_has_none_to_name():
    code = ErrorCode.out_of_order_sequence_number
    assert message(code, None) == "appending to t-0: out of order sequence number"


@pytest.mark.parametrize("transactional_id", ["x", None])
def test_a_timeout_that_is_too_great_names_the_setting_of_the_broker(transactional_id):
    found = message(ErrorCode.invalid_transaction_timeout, transactional_id)
    assert found.startswith(
        "the transaction timeout of 1500 ms is greater than transaction.max.timeout.ms of the broker"
    )


def test_a_batch_that_is_too_large_is_told_with_its_bytes_and_records():
    error = too_large_error(
        ErrorCode.message_too_large, "appending to t-0", PendingBatch(0, "t", 0, bytearray(70), 0, 3)
    )
    assert error.code is ErrorCode.message_too_large
    assert "a batch of 70 bytes (records: 3) is more than max.message.bytes of t allows" in str(error)
