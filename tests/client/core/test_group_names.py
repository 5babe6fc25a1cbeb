"""The names of transaction groups, as a program may give them."""

import pytest

from stablelog.client.core.group_names import check_group
from stablelog.errors import UsageError
from stablelog.wire.extension.transaction_groups import NAME_RULE


@pytest.mark.parametrize("group", [None, "", "orders", "A-1_b.c"])
def test_a_name_or_none_or_the_default_group_is_accepted(group):
    check_group(group)


@pytest.mark.parametrize("group", ["a b", "ü", "a/b", "x" * 1000])
def test_another_name_is_refused_with_the_rule(group):
    with pytest.raises(UsageError) as refused:
        check_group(group)
    assert str(refused.value).startswith(f"the transaction group {group!r} is not valid: {NAME_RULE}")
