"""The names of topics: which names are valid, and which belong to the broker."""

import re

from kio.schema.errors import ErrorCode

from stablelog.errors import Refused
from stablelog.wire.extension.transaction_groups import DEFAULT_GROUP, is_group_name

TRANSACTION_STATE_TOPIC = "__transaction_state"
CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"
NAME_SIZE_MAX = 249

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def commit_log_of(group: str) -> str:
    """The topic that is the commit log of a transaction group."""
    return f"{TRANSACTION_STATE_TOPIC}.{group}" if group else TRANSACTION_STATE_TOPIC


def group_of_log(name: str) -> str | None:
    """The transaction group whose commit log has this name; None if the name is not that of a commit log."""
    if name == TRANSACTION_STATE_TOPIC:
        return DEFAULT_GROUP
    stem, _, group = name.partition(".")
    return group if stem == TRANSACTION_STATE_TOPIC and group and is_group_name(group) else None


def is_internal(name: str) -> bool:
    """Whether the broker keeps its own state in a topic of this name."""
    return name == CONSUMER_OFFSETS_TOPIC or group_of_log(name) is not None


def check_not_internal(name: str) -> None:
    """Refuse a name that the broker uses itself, now or possibly later.

    Raises:
        Refused: invalid_topic_exception.
    """
    # A name with `_` in place of `.` is refused, too: metrics could not distinguish the two.
    if is_internal(name) or without_dots(name).startswith(f"{TRANSACTION_STATE_TOPIC}_"):
        raise Refused(ErrorCode.invalid_topic_exception, f"{name!r} is a name for the broker's own topics")


def check_not_own(name: str) -> None:
    """Refuse a client's change of a topic in which the broker keeps its own state.

    Raises:
        Refused: invalid_topic_exception.
    """
    if is_internal(name):
        raise Refused(ErrorCode.invalid_topic_exception, f"{name} is the broker's own")


def check_topic_name(name: str) -> None:
    """Refuse a name that Kafka would refuse.

    Raises:
        Refused: invalid_topic_exception.
    """
    if not name or len(name) > NAME_SIZE_MAX or name in {".", ".."} or not _LEGAL_NAME.fullmatch(name):
        raise Refused(
            ErrorCode.invalid_topic_exception,
            f"{name[:NAME_SIZE_MAX]!r} is no topic name: 1 to {NAME_SIZE_MAX} characters from a-z A-Z 0-9 . _ -, and not . or ..",
        )


def without_dots(name: str) -> str:
    """The name as it appears in metrics, which do not distinguish `.` and `_`."""
    return name.replace(".", "_")
