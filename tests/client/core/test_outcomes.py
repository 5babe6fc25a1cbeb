"""The outcomes of a transaction, and the errors that name them."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.joint import JointCommit
from stablelog.client.core.keys import WriterKey
from stablelog.client.core.outcomes import (
    WritingState,
    abort_error,
    aborted_error,
    is_decision,
    is_silence,
    lost_outcome,
    naming_group,
    shared_key_error,
    undecided_on_error,
    unknown_outcome,
)
from stablelog.errors import (
    AuthenticationError,
    OutcomeUnknownError,
    RefusedError,
    TransactionAbortedError,
    UnavailableError,
)
from stablelog.wire.extension.transaction_groups import crossing_in_words


@pytest.mark.parametrize(
    ("cause", "is_repeatable"),
    [
        (None, True),
        (KeyError("mine"), True),
        (UnavailableError("away"), True),
        (aborted_error("it was late"), True),
        (RefusedError(ErrorCode.producer_fenced, "fenced"), True),
        (RefusedError(ErrorCode.out_of_order_sequence_number, "lost"), True),
        (RefusedError(ErrorCode.message_too_large, "large"), False),
        (AuthenticationError(ErrorCode.sasl_authentication_failed, "who?"), False),
        (RefusedError(ErrorCode.invalid_producer_epoch, "fenced"), True),
        (RefusedError(ErrorCode.invalid_producer_id_mapping, "expired"), True),
        (RefusedError(ErrorCode.concurrent_transactions, "busy"), True),
        (RefusedError(ErrorCode.invalid_txn_state, "ended"), True),
        (RefusedError(ErrorCode.transaction_abortable, "to be aborted"), True),
        (RefusedError(ErrorCode.unknown_producer_id, "lost"), True),
    ],
)
def test_an_abort_says_whether_the_same_records_can_be_committed(cause, is_repeatable):
    failure = abort_error(cause)
    assert isinstance(failure, RefusedError)
    assert isinstance(failure, UnavailableError) == is_repeatable
    assert failure is cause or failure.__cause__ is cause


def test_the_error_of_an_abort_that_is_known_stays_the_same_object():
    aborted = aborted_error("it was late")
    assert abort_error(aborted) is aborted


def test_the_code_of_a_refusal_and_its_words_are_kept_if_the_records_can_be_committed_again():
    failure = abort_error(RefusedError(ErrorCode.producer_fenced, "fenced"))
    assert (failure.code, str(failure)) == (ErrorCode.producer_fenced, "fenced")


def test_an_abort_that_the_program_has_asked_for_is_told_as_one():
    assert str(abort_error(None)) == "the transaction was aborted: abort() was called"
    assert str(abort_error(None, is_cancelled=True)) == "the transaction was aborted: it was cancelled"
    assert str(abort_error(KeyError("mine"))) == "the transaction was aborted: KeyError: 'mine'"


@pytest.mark.parametrize(
    ("cause", "is_silent"),
    [
        (UnavailableError("away"), True),
        (aborted_error("late"), False),
        (KeyError("mine"), False),
        (None, False),
    ],
)
def test_only_a_broker_that_does_not_respond_is_silent(cause, is_silent):
    assert is_silence(cause) is is_silent


@pytest.mark.parametrize(
    ("refused", "is_decided"),
    [
        (RefusedError(ErrorCode.message_too_large, "large"), True),
        (RefusedError(ErrorCode.unknown_server_error, "broken off"), False),
        (RefusedError(ErrorCode.topic_authorization_failed, "no right"), False),
        (RefusedError(ErrorCode.group_authorization_failed, "no right"), False),
        (RefusedError(ErrorCode.cluster_authorization_failed, "no right"), False),
        (RefusedError(ErrorCode.transactional_id_authorization_failed, "no right"), False),
        (RefusedError(ErrorCode.unsupported_version, "another broker"), False),
        (AuthenticationError(ErrorCode.message_too_large, "who?"), False),
    ],
)
def test_a_refusal_decides_only_if_the_broker_has_looked_at_the_transaction(refused, is_decided):
    assert is_decision(refused) is is_decided


def test_an_unknown_outcome_says_how_to_learn_it_unless_nobody_can_tell_it_any_more():
    assert "Call commit() of this transaction again to learn the outcome" in str(
        unknown_outcome("what", KeyError("x"))
    )
    assert "Another call of commit() cannot help: read the topics" in str(lost_outcome("gone"))


def test_a_batch_of_a_topic_outside_the_transaction_names_the_group_of_the_transaction():
    refused = RefusedError(ErrorCode.topic_authorization_failed, "no right")
    assert str(naming_group(refused, "g")) == "the transaction was begun with group='g': no right"
    crossing = crossing_in_words("g/me", "t", "bank")
    told = str(naming_group(RefusedError(ErrorCode.topic_authorization_failed, f"t-0: {crossing}: so"), "g"))
    assert told == (
        "the transaction was begun with group='g': it belongs to transaction group 'g', and topic 't' to transaction "
        "group 'bank'. Use client.transaction(group='bank')"
    )
    other = RefusedError(ErrorCode.message_too_large, "large")
    assert naming_group(other, "g") is other


def test_an_outcome_in_doubt_is_not_final():
    finals = {WritingState.COMMITTED, WritingState.ABORTED}
    assert {state for state in WritingState if state.is_final} == finals


def test_a_key_with_a_later_version_of_another_writer_says_nothing_of_this_transaction():
    key = WriterKey("", "name", 3)
    later = shared_key_error(key, JointCommit(-1, already=True))
    assert isinstance(later, OutcomeUnknownError)
    assert "another writer uses the key 'name' of this transaction, and has committed a later version" in str(
        later
    )
    same = shared_key_error(key, JointCommit(0, already=True))
    assert isinstance(same, TransactionAbortedError)
    assert "and has committed version 3" in str(same)


@pytest.mark.parametrize(
    "failure", [RefusedError(ErrorCode.producer_fenced, "fenced"), UnavailableError("away")]
)
def test_an_error_that_decides_nothing_leaves_the_outcome_open(failure):
    with pytest.raises(OutcomeUnknownError) as unknown, undecided_on_error():
        raise failure
    assert str(unknown.value).startswith(f"it is unknown whether the transaction is committed: {failure}")
    assert unknown.value.__cause__ is failure
    with pytest.raises(KeyError), undecided_on_error():
        raise KeyError
