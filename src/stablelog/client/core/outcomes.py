"""The outcomes of a transaction of the native client, and the errors by which a program learns of them.

A program has to distinguish three kinds of error. After `TransactionAbortedError` nothing is committed, and the program
can write the transaction again. After `OutcomeUnknownError` it has to call `commit` again. Any other error is final.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeVar

from kio.schema.errors import ErrorCode

from stablelog.client.core import joint
from stablelog.client.core.keys import LOST, WriterKey
from stablelog.client.core.positions import Position
from stablelog.client.responses import BROKEN_OFF
from stablelog.errors import (
    AuthenticationError,
    DataLossError,
    OutcomeUnknownError,
    RefusedError,
    TransactionAbortedError,
    UnavailableError,
)
from stablelog.wire.extension.transaction_groups import group_in_words, group_of_topic_in

# The broker refuses a batch or the commit with these codes because the transaction has ended, or has lost a batch. The
# same records can be committed in another transaction.
REPEATABLE: Final = LOST | {
    ErrorCode.invalid_txn_state,
    ErrorCode.transaction_abortable,
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.unknown_producer_id,
}
# Refusals that say nothing about the transaction: the broker does not look at it.
UNHEARD: Final = frozenset(
    {
        ErrorCode.unsupported_version,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.group_authorization_failed,
        ErrorCode.topic_authorization_failed,
        ErrorCode.transactional_id_authorization_failed,
    }
)


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a commit.

    Attributes:
        commit_sequence: the number of the commit in its transaction group (the topics whose commits have one order); -1
            if nothing was written, and at Apache Kafka, which does not number commits.
        first: the position of the record that was written first; None if nothing was written.
        last: the position of the record that was written last.
    """

    commit_sequence: int
    first: Position | None
    last: Position | None


class WritingState(Enum):
    """What the client knows of the outcome of a transaction: that it is open, committed, aborted or in doubt."""

    OPEN = auto()
    IN_DOUBT = auto()  # the commit was requested, and the client does not have its complete result yet
    COMMITTED = auto()
    ABORTED = auto()

    @property
    def is_final(self) -> bool:
        """Whether the outcome is known."""
        return self in (WritingState.COMMITTED, WritingState.ABORTED)


UNDECIDED: Final = "whether the transaction is committed"
Outcome = Committed | RefusedError | DataLossError
FailureT = TypeVar("FailureT", RefusedError, DataLossError)


def aborted_error(why: str) -> TransactionAbortedError:
    """Return the error for a transaction that is aborted and can be written again. The message contains the reason
    (`why`).
    """
    return TransactionAbortedError(ErrorCode.transaction_abortable, f"the transaction was aborted: {why}")


def overdue_error(timeout_s: float) -> TransactionAbortedError:
    """Return the error for a transaction that is aborted because its timeout has passed."""
    return aborted_error(f"it was open for longer than its timeout of {timeout_s:g} s")


def abort_error(cause: BaseException | None, *, is_cancelled: bool = False) -> RefusedError:
    """Return the error for a transaction that is aborted because of `cause`. `cause` is None if the program has called
    `abort`, or, with `is_cancelled`, if a call was cancelled. The error is a `TransactionAbortedError`, unless the broker
    would refuse the same records again.
    """
    if isinstance(cause, RefusedError):
        if isinstance(cause, TransactionAbortedError) or cause.code not in REPEATABLE:
            return cause
        failure = TransactionAbortedError(cause.code, str(cause))
    elif cause is None:
        failure = aborted_error("it was cancelled" if is_cancelled else "abort() was called")
    else:
        failure = aborted_error(f"{type(cause).__name__}: {cause}")
    failure.__cause__ = cause
    return failure


def is_silence(cause: BaseException | None) -> bool:
    """Return whether an error, for which a transaction is aborted, means that no broker responds. The client then sends
    no request for the abort, because it would wait in vain for that response, too; the transaction's timeout aborts it.
    """
    return isinstance(cause, UnavailableError) and not isinstance(cause, TransactionAbortedError)


def is_decision(refused: RefusedError) -> bool:
    """Whether a broker's refusal is a decision about the transaction. Otherwise the broker has refused the request
    before it looked at the transaction.
    """
    return not isinstance(refused, AuthenticationError) and refused.code not in UNHEARD | BROKEN_OFF


def unknown_outcome(what: str, failure: BaseException) -> OutcomeUnknownError:
    """Return the error for a commit that was requested and whose outcome is unknown. The message names what is unknown
    (`what`) and the last failure.
    """
    return OutcomeUnknownError(
        f"it is unknown {what}: {failure}. Call commit() of this transaction again to learn the outcome. Do not write its "
        "records again before"
    )


@contextmanager
def undecided_on_error() -> Iterator[None]:
    """Context manager around requests that end a transaction. If the broker refuses them or does not respond, it is
    unknown whether the transaction is committed; the error that is raised says so. It has no value.

    Raises:
        OutcomeUnknownError: in place of RefusedError and UnavailableError.
    """
    try:
        yield
    except (RefusedError, UnavailableError) as failure:
        raise unknown_outcome(UNDECIDED, failure) from failure


def lost_outcome(why: str) -> OutcomeUnknownError:
    """Return the error for a commit whose outcome the broker has forgotten, so that the client can never learn whether
    the transaction was committed.
    """
    return OutcomeUnknownError(
        f"it is unknown whether the transaction is committed: {why}. Another call of commit() cannot help: read the "
        "topics to see whether its records are there"
    )


def shared_key_error(
    key: WriterKey, found: joint.JointCommit
) -> TransactionAbortedError | OutcomeUnknownError:
    """Return the error for a transaction whose key, which identifies its commit for the broker, another client uses as
    well: that client has committed (`found`) under the version that this transaction has, and the broker commits each
    version once. This happens if a virtual machine was cloned with a running client.
    """
    sharing = f"another writer uses the key {key.name!r} of this transaction, and has committed"
    if found.commit_sequence < 0:
        return lost_outcome(f"{sharing} a later version")
    return aborted_error(f"{sharing} version {key.version}")


def naming_group(failure: Exception, group: str) -> Exception:
    """Return the error to raise for a refused batch: `failure`, or, if the broker refused the batch because its topic
    belongs to another transaction group (topics whose commits have one order) than the transaction, an error that also
    names the group of the transaction, and the argument that begins a transaction in the topic's group.
    """
    if not isinstance(failure, RefusedError) or failure.code is not ErrorCode.topic_authorization_failed:
        return failure
    reason = str(failure)
    crossed = group_of_topic_in(reason)
    if crossed is not None:
        topic, theirs = crossed
        reason = (
            f"it belongs to {group_in_words(group)}, and topic {topic!r} to {group_in_words(theirs)}. Use "
            f"client.transaction(group={theirs!r})"
        )
    return RefusedError(failure.code, f"the transaction was begun with group={group!r}: {reason}")
