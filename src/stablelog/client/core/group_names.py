"""The names of transaction groups, as a program may give them."""

from stablelog.errors import UsageError
from stablelog.wire.extension.transaction_groups import NAME_RULE, is_group_name


def check_group(group: str | None) -> None:
    """Raise UsageError if no transaction group can have this name. None stands for the group of the topics."""
    if group is not None and not is_group_name(group):
        raise UsageError(
            f"the transaction group {group!r} is not valid: {NAME_RULE}, or empty for the default group"
        )
