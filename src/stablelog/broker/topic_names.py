"""Names of topics: which names are valid, and which names belong to internal topics of the broker."""

from kio.schema.errors import ErrorCode

from stablelog.coordinators.log_names import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    is_coordinator_log,
)
from stablelog.errors import RefusedError
from stablelog.types import TOPIC_NAME_RULE, TOPIC_NAME_SIZE_MAX, is_topic_name

OFFSETS_PARTITION = (CONSUMER_OFFSETS_TOPIC, 0)  # The partition of the offsets log that the broker writes to.
REMOTE_LOG_METADATA_TOPIC = "__remote_log_metadata"
NAME_SIZE_MAX = TOPIC_NAME_SIZE_MAX


def is_internal(name: str) -> bool:
    """Return whether a topic of this name is internal, so that only the broker writes to it."""
    return name == REMOTE_LOG_METADATA_TOPIC or is_coordinator_log(name)


def check_not_reserved(name: str) -> None:
    """Refuse a name for a new topic if it is, or may later become, the name of an internal topic.

    Raises:
        RefusedError: the name is reserved; the error has the code INVALID_TOPIC_EXCEPTION.
    """
    # The name of a commit log with `_` in place of `.` is refused, too: in metrics the two names would be equal.
    if is_internal(name) or without_dots(name).startswith(f"{TRANSACTION_STATE_TOPIC}_"):
        raise RefusedError(
            ErrorCode.invalid_topic_exception,
            f"{name!r} is reserved for the broker's internal topics: choose another name",
        )


def check_clients_may_write(name: str) -> None:
    """Refuse a client's write to an internal topic, or its change or deletion.

    Raises:
        RefusedError: the topic is internal; the error has the code INVALID_TOPIC_EXCEPTION.
    """
    if is_internal(name):
        raise RefusedError(
            ErrorCode.invalid_topic_exception,
            f"{name} is an internal topic of the broker, which clients cannot change",
        )


def check_topic_name(name: str) -> None:
    """Refuse a topic name that is not valid in Kafka.

    Raises:
        RefusedError: the name is not valid; the error has the code INVALID_TOPIC_EXCEPTION.
    """
    if not is_topic_name(name):
        raise RefusedError(
            ErrorCode.invalid_topic_exception,
            f"{name[:NAME_SIZE_MAX]!r} is not a valid topic name: {TOPIC_NAME_RULE}",
        )


def without_dots(name: str) -> str:
    """Return a topic's name as metrics show it: with `_` in place of `.`."""
    return name.replace(".", "_")
