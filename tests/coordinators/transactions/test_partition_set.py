"""The set of partitions of a transaction."""

from hypothesis import given
from hypothesis import strategies as st

from stablelog.coordinators.transactions.partition_set import NO_PARTITIONS, PartitionSet

PARTITIONS = st.frozensets(st.tuples(st.sampled_from(["a", "b", "a-1"]), st.integers(0, 30)))


@given(PARTITIONS, PARTITIONS)
def test_a_set_with_added_partitions_is_a_set_in_order_whatever_was_asked_before(
    first: frozenset[tuple[str, int]], more: frozenset[tuple[str, int]]
) -> None:
    before = PartitionSet(first)
    order = before.in_order
    after = before.adding(more)
    assert after == first | more
    assert hash(after) == hash(first | more)
    assert after.in_order == sorted(first | more)
    assert before.in_order is order
    assert order == sorted(first)


def test_the_empty_set_has_no_order() -> None:
    assert NO_PARTITIONS.in_order == []
    assert not NO_PARTITIONS
