"""The transaction group to which a transactional id belongs: the producers and topics whose commits have one order.

The part before the first slash names the group: `payments/worker-3` belongs to `payments`. An id without a valid group
name there belongs to the default group, whose name is empty.
"""

import re
from typing import Final

DEFAULT_GROUP: Final = ""
TRANSACTIONAL_ID_SIZE_MAX: Final = 1024  # The maximum number of characters of a transactional id.
# A group's name may have only the characters of topic names, because the name of its commit log contains the group's
# name.
NAME_PATTERN: Final = r"[a-zA-Z0-9._-]{1,100}"
NAME_RULE: Final = "1 to 100 characters from a-z A-Z 0-9 . _ -"
_OF_ID: Final = re.compile(f"({NAME_PATTERN})/")
_NAME: Final = re.compile(NAME_PATTERN)
# The last text of this form: the transactional id, in which anything may stand, precedes it.
_OF_TOPIC: Final = re.compile(
    "(?s:.*) by the name before its first slash, and "
    f"topic '([^']+)' to (?:transaction group '({NAME_PATTERN})'|the default transaction group)"
)


def group_of(transactional_id: str) -> str:
    """Return the name of the transaction group (topics and producers whose commits have one order) to which a
    transactional id belongs: the part of the id before the first slash. If no valid name stands there, return the empty
    name of the default group.
    """
    found = _OF_ID.match(transactional_id)
    return found[1] if found else DEFAULT_GROUP


def is_group_name(name: str) -> bool:
    """Return whether a transaction group (topics and producers whose commits have one order) can have this name. The
    empty name is that of the default group.
    """
    return name == DEFAULT_GROUP or _NAME.fullmatch(name) is not None


def group_in_words(group: str) -> str:
    """Return words for a transaction group (topics whose commits have one order) in a message, such as "the default
    transaction group".
    """
    return f"transaction group {group!r}" if group else "the default transaction group"


def crossing_in_words(transactional_id: str, topic: str, topic_group: str) -> str:
    """Return the first words of a broker's refusal of a write to a topic of another transaction group (topics whose
    commits have one order) than the transaction. `group_of_topic_in` reads the topic's group from them.
    """
    return (
        f"transactional id {transactional_id!r} belongs to {group_in_words(group_of(transactional_id))} by the name "
        f"before its first slash, and topic {topic!r} to {group_in_words(topic_group)}"
    )


def group_of_topic_in(message: str) -> tuple[str, str] | None:
    """Return the topic and its transaction group (topics whose commits have one order) from a message that contains the
    text of `crossing_in_words`; None for any other message.
    """
    found = _OF_TOPIC.match(message)
    return (found[1], found[2] or DEFAULT_GROUP) if found else None
