"""The outcomes of a transaction, and the errors that name them."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.outcomes import aborted, failure_of
from stablelog.errors import (
    AuthenticationError,
    RefusedError,
    UnavailableError,
)


@pytest.mark.parametrize(
    ("cause", "is_repeatable"),
    [
        (None, True),
        (KeyError("mine"), True),
        (UnavailableError("away"), True),
        (aborted("it was late"), True),
        (RefusedError(ErrorCode.producer_fenced, "fenced"), True),
        (RefusedError(ErrorCode.out_of_order_sequence_number, "lost"), True),
        (RefusedError(ErrorCode.message_too_large, "large"), False),
        (AuthenticationError(ErrorCode.sasl_authentication_failed, "who?"), False),
    ],
)
def test_an_abort_says_whether_the_same_records_can_be_committed(cause, is_repeatable):
    failure = failure_of(cause)
    assert isinstance(failure, RefusedError)
    assert isinstance(failure, UnavailableError) == is_repeatable
    assert failure is cause or failure.__cause__ is cause
