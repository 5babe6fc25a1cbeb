"""Names of the internal topics in which the coordinators store their records: commit logs and the offsets log."""

from stablelog.wire.extension.transaction_groups import DEFAULT_GROUP, is_group_name

TRANSACTION_STATE_TOPIC = "__transaction_state"
CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"


def commit_log_of(group: str) -> str:
    """Return the name of the topic that is the commit log of a transaction group (topics whose commits have one order):
    the log with the records of the group's transactions.
    """
    return f"{TRANSACTION_STATE_TOPIC}.{group}" if group else TRANSACTION_STATE_TOPIC


def group_of_log(name: str) -> str | None:
    """Return the name of the transaction group (topics whose commits have one order) whose commit log is the topic
    `name`: the log with the records of the group's transactions; None if the topic is not a commit log.
    """
    if name == TRANSACTION_STATE_TOPIC:
        return DEFAULT_GROUP
    stem, _, group = name.partition(".")
    return group if stem == TRANSACTION_STATE_TOPIC and group and is_group_name(group) else None


def is_coordinator_log(name: str) -> bool:
    """Return whether the topic `name` is the log of a coordinator: a commit log (`__transaction_state` or one of other
    transaction groups) or the offsets log (`__consumer_offsets`).
    """
    return name == CONSUMER_OFFSETS_TOPIC or group_of_log(name) is not None
