"""The names of the coordinators' logs: the topics in which the coordinators store their records."""

from stablelog.wire.extension.transaction_groups import DEFAULT_GROUP, is_group_name

TRANSACTION_STATE_TOPIC = "__transaction_state"
CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"


def commit_log_of(group: str) -> str:
    """Return the name of the topic that is the commit log of a transaction group."""
    return f"{TRANSACTION_STATE_TOPIC}.{group}" if group else TRANSACTION_STATE_TOPIC


def group_of_log(name: str) -> str | None:
    """Return the transaction group whose commit log has this name; None if this is not the name of a commit log."""
    if name == TRANSACTION_STATE_TOPIC:
        return DEFAULT_GROUP
    stem, _, group = name.partition(".")
    return group if stem == TRANSACTION_STATE_TOPIC and group and is_group_name(group) else None


def is_coordinator_log(name: str) -> bool:
    """Whether a topic of this name is the log of a coordinator."""
    return name == CONSUMER_OFFSETS_TOPIC or group_of_log(name) is not None
