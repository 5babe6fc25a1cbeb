"""The outcomes of a transaction of the native client, and the errors that name them.

A program tells three outcomes apart. `TransactionAbortedError`: nothing is committed, and the program can write the
transaction again. `OutcomeUnknownError`: the program has to call `commit` again. Any other error is final.
"""

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
        commit_sequence: the number of the commit in its transaction group; -1 if nothing was written, and at Apache Kafka,
            which does not number commits.
        first: the position of the record that was written first; None if nothing was written.
        last: the position of the record that was written last.
    """

    commit_sequence: int
    first: Position | None
    last: Position | None


class WritingState(Enum):
    """What the client knows of a transaction."""

    OPEN = auto()
    IN_DOUBT = auto()  # the commit was requested, and the client does not have its complete result yet
    COMMITTED = auto()
    ABORTED = auto()


UNDECIDED: Final = "whether the transaction is committed"
Outcome = Committed | RefusedError | DataLossError
FailureT = TypeVar("FailureT", RefusedError, DataLossError)


def aborted(why: str) -> TransactionAbortedError:
    """Return the error of a transaction that is aborted and can be written again."""
    return TransactionAbortedError(ErrorCode.transaction_abortable, f"the transaction was aborted: {why}")


def failure_of(cause: BaseException | None) -> RefusedError:
    """Return the error of a transaction that is aborted because of `cause`; None if the program has asked for the
    abort. It is a `TransactionAbortedError`, unless the broker refuses the same records again.
    """
    if isinstance(cause, RefusedError):
        if isinstance(cause, TransactionAbortedError) or cause.code not in REPEATABLE:
            return cause
        failure = TransactionAbortedError(cause.code, str(cause))
    else:
        failure = aborted("it was cancelled" if cause is None else f"{type(cause).__name__}: {cause}")
    failure.__cause__ = cause
    return failure


def is_silence(cause: BaseException | None) -> bool:
    """Whether no broker has responded, so that a request for the abort would wait in vain."""
    return isinstance(cause, UnavailableError) and not isinstance(cause, TransactionAbortedError)


def decides(refused: RefusedError) -> bool:
    """Whether the broker has looked at the transaction before it refused the request."""
    return not isinstance(refused, AuthenticationError) and refused.code not in UNHEARD | BROKEN_OFF


def unknown(what: str, failure: BaseException) -> OutcomeUnknownError:
    """Return the error of a commit that was requested and whose outcome is unknown. `what` is unknown."""
    return OutcomeUnknownError(
        f"it is unknown {what}: {failure}. Call commit() of this transaction again to learn the outcome. Do not write its "
        "records again before"
    )


def unknown_for_ever(why: str) -> OutcomeUnknownError:
    """Return the error of a commit whose outcome the broker can no longer tell."""
    return OutcomeUnknownError(
        f"it is unknown whether the transaction is committed: {why}. Another call of commit() cannot help: read the "
        "topics to see whether its records are there"
    )


def key_shared(key: WriterKey, found: joint.JointCommit) -> TransactionAbortedError | OutcomeUnknownError:
    """Return the error for a key under which another client, such as one in a cloned machine, has committed."""
    sharing = f"another writer uses the key {key.name!r} of this transaction, and has committed"
    if found.commit_sequence < 0:
        return unknown_for_ever(f"{sharing} a later version")
    return aborted(f"{sharing} version {key.version}")


def naming_group(failure: Exception, group: str) -> Exception:
    """Return the error of a batch. If the topic may not be in the transaction, its message names the group."""
    if not isinstance(failure, RefusedError) or failure.code is not ErrorCode.topic_authorization_failed:
        return failure
    return RefusedError(failure.code, f"the transaction was begun with group={group!r}: {failure}")
