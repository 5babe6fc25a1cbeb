"""The meaning of error codes in responses: whether a retry can resolve the error, and which error the program gets."""

from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.errors import ProducerFencedError, RefusedError, UnavailableError

# Errors that occur while the cluster changes, for example while a leader moves. The client requests metadata and
# retries.
RETRIABLE_CODES: Final = frozenset(
    {
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.replica_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.offset_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.concurrent_transactions,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
    }
)

# The broker has failed while it carried out the request. It may have carried it out.
BROKEN_OFF: Final = frozenset({ErrorCode.unknown_server_error})

# The broker accepts no more requests of the producer: a later producer has its transactional id.
FENCED_CODES: Final = frozenset({ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch})


class RetriableError(Exception):
    """A failure after which a retry may succeed. `Cluster.retrying` catches this error and retries, so a program never
    gets it.
    """


class ClosedError(UnavailableError):
    """The broker has closed the connection, or its bytes are not a response of Kafka's protocol. A retry may help,
    unless client and listener have different security protocols.

    Args:
        address: "host:port" of the broker.
        message: the text of the error for the user.
    """

    def __init__(self, address: str, message: str) -> None:
        super().__init__(message)
        self.address = address


class UnknownTopicOrPartitionError(RefusedError):
    """The topic or partition does not exist, according to a Metadata response. If a leader responds to another request
    with the same error code, this error is not raised, and the request is retried: the leader may only not know the
    partition yet.
    """

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.unknown_topic_or_partition, message)


def is_retriable(error: Exception) -> bool:
    """Whether a retry can resolve the error."""
    if isinstance(error, RefusedError):
        return error.code in RETRIABLE_CODES and not isinstance(error, UnknownTopicOrPartitionError)
    return isinstance(error, RetriableError | UnavailableError)


def refused_error(code: ErrorCode, message: str) -> RefusedError:
    """Return the exception for an error code in a response: a `ProducerFencedError` if the code says that the producer
    is fenced, otherwise a `RefusedError`.
    """
    return ProducerFencedError(code, message) if code in FENCED_CODES else RefusedError(code, message)


def code_in_words(code: ErrorCode) -> str:
    """Return the name of an error code in words, such as "unknown topic or partition"."""
    return code.name.replace("_", " ")


def check(code: ErrorCode, what: str, message: str | None = None) -> None:
    """Check the error code of a response, and raise an exception if it is not `none`.

    Args:
        code: the error code.
        what: the work of the request in words, for the message of the exception, such as "creating topic orders".
        message: the broker's message about the error; None or empty if there is none.

    Raises:
        RefusedError: the response has an error. The message has the text of the broker, or, if the broker sent none,
            the name of the error code in words.
    """
    if code is not ErrorCode.none:
        raise refused_error(code, f"{what}: {message or _explained(code)}")


def _explained(code: ErrorCode) -> str:
    """Return an explanation of an error code, for a response in which the broker sent no message. If a right is
    missing, the explanation also says what to do.
    """
    resource, is_denied, _ = code.name.partition("_authorization_failed")
    if is_denied:
        return f"this user lacks a right to the {resource.replace('_', ' ')}: ask for an ACL"
    return code_in_words(code)
