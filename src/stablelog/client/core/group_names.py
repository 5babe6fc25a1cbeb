"""The valid names of transaction groups. A transaction group is a set of topics whose commits have one order."""

from stablelog.errors import UsageError
from stablelog.wire.extension.transaction_groups import NAME_RULE, is_group_name


def check_group(group: str | None) -> None:
    """Check the name of a transaction group (the topics whose commits have one order); raise UsageError if it is not
    valid. None is valid: it stands for the group to which the topics of the call belong.
    """
    if group is not None and not is_group_name(group):
        raise UsageError(
            f"the transaction group {group!r} is not valid: {NAME_RULE}, or empty for the default group"
        )
