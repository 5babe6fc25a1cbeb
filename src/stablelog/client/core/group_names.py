"""The valid names of transaction groups."""

from stablelog.errors import UsageError
from stablelog.wire.extension.transaction_groups import NAME_RULE, is_group_name


def check_group(group: str | None) -> None:
    """Check the name of a transaction group; raise UsageError if it is not valid. None is valid: it means that the
    group of the topics is used.
    """
    if group is not None and not is_group_name(group):
        raise UsageError(
            f"the transaction group {group!r} is not valid: {NAME_RULE}, or empty for the default group"
        )
