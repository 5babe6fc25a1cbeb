"""The valid names of transaction groups."""

from stablelog.errors import UsageError
from stablelog.wire.extension.transaction_groups import NAME_RULE, is_group_name


def check_group(group: str | None) -> None:
    """Raise UsageError for an invalid name of a transaction group. None is valid: it stands for the group of the
    topics.
    """
    if group is not None and not is_group_name(group):
        raise UsageError(
            f"the transaction group {group!r} is not valid: {NAME_RULE}, or empty for the default group"
        )
