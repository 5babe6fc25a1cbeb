"""The errors with which producers are refused, in the words and codes that their version knows."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.refusals import (
    INIT_KNOWS_FENCED,
    PRODUCE_KNOWS_ABORTABLE,
    TXN_KNOWS_FENCED,
    abort_only_refusal,
    code_for_produce,
    code_for_version,
    code_without_fenced,
    fenced_refusal,
    id_mapping_refusal,
    tv1_refusal,
)
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.coordinators.transactions.transaction import ProducerIdAndEpoch, TransactionMetadata

FENCED, OLD = ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch
TXN = TransactionMetadata(5, 2, 60_000, TransactionState.EMPTY)


def test_the_versions_from_which_a_response_may_say_that_a_producer_was_fenced_are_kafkas():
    assert (INIT_KNOWS_FENCED, TXN_KNOWS_FENCED, PRODUCE_KNOWS_ABORTABLE) == (4, 2, 11)


def test_a_version_that_does_not_know_that_a_producer_was_fenced_gets_the_older_code():
    assert [code_for_version(FENCED, version, 2) for version in (0, 1, 2, 3)] == [OLD, OLD, FENCED, FENCED]
    assert code_without_fenced(FENCED) is OLD


@pytest.mark.parametrize("code", [ErrorCode.none, ErrorCode.invalid_txn_state, OLD])
def test_every_other_code_is_known_to_all_versions(code):
    assert code_for_version(code, 0, 2) is code
    assert code_without_fenced(code) is code


@pytest.mark.parametrize(
    ("code", "version", "said"),
    [
        (ErrorCode.concurrent_transactions, None, ErrorCode.concurrent_transactions),
        (ErrorCode.concurrent_transactions, 12, ErrorCode.not_enough_replicas),
        (ErrorCode.transaction_abortable, 10, ErrorCode.invalid_txn_state),
        (ErrorCode.transaction_abortable, 11, ErrorCode.transaction_abortable),
        (FENCED, 12, OLD),
        (FENCED, None, FENCED),
        (ErrorCode.none, 3, ErrorCode.none),
    ],
)
def test_a_produce_response_has_codes_after_which_a_producer_does_the_right_thing(code, version, said):
    assert code_for_produce(code, version) is said


def test_a_fenced_producer_is_told_who_holds_the_id():
    refused = fenced_refusal("tx", ProducerIdAndEpoch(5, 1), TXN)
    assert refused.code is FENCED
    assert str(refused) == "tx: producer 5 with epoch 1 was fenced; 5 with epoch 2 holds the id"


def test_a_producer_of_another_id_is_told_whose_the_transactional_id_is():
    refused = id_mapping_refusal("tx", ProducerIdAndEpoch(4, 1), TXN)
    assert refused.code is ErrorCode.invalid_producer_id_mapping
    assert str(refused) == "tx belongs to producer 5, not 4"


def test_a_commit_that_lacks_a_partition_is_told_to_abort():
    refused = abort_only_refusal("tx")
    assert refused.code is ErrorCode.invalid_txn_state
    assert str(refused) == "the transaction of tx was refused a partition: it can only be aborted"


def test_a_client_of_the_first_transaction_version_is_told_what_to_change():
    refused = tv1_refusal()
    assert refused.code is ErrorCode.policy_violation
    assert "use a client that supports it, or turn the setting off" in str(refused)
