"""Which transaction group does a transactional id belong to?

The one that stands before the first slash: `payments/worker-3` belongs to `payments`. Whoever has no name of a group
there belongs to the default group, whose name is empty.
"""

import re
from typing import Final

DEFAULT_GROUP: Final = ""
# What a topic's name is made of, so that a log can be called after it.
NAME_PATTERN: Final = r"[a-zA-Z0-9._-]{1,100}"
NAME_RULE: Final = "1 to 100 characters from a-z A-Z 0-9 . _ -"
_OF_ID: Final = re.compile(f"({NAME_PATTERN})/")
_NAME: Final = re.compile(NAME_PATTERN)


def group_of(transactional_id: str) -> str:
    """The transaction group that the id belongs to."""
    found = _OF_ID.match(transactional_id)
    return found[1] if found else DEFAULT_GROUP


def is_group_name(name: str) -> bool:
    """Whether a group can have this name; that of the default group is one, too."""
    return name == DEFAULT_GROUP or _NAME.fullmatch(name) is not None


def group_in_words(group: str) -> str:
    """The group as a sentence names it."""
    return f"transaction group {group!r}" if group else "the default transaction group"
