"""The set of partitions of a transaction."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablelog.coordinators.transactions import partition_set
from stablelog.coordinators.transactions.log_ends import LogEnds
from stablelog.coordinators.transactions.partition_set import (
    NO_PARTITIONS,
    PartitionSet,
    encode_partitions,
)
from stablelog.coordinators.transactions.records import decode_transaction, encode_transaction
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.coordinators.transactions.transaction import TransactionMetadata
from stablelog.types import TopicPartition

PARTITIONS = st.frozensets(st.tuples(st.sampled_from(["a", "b", "a-1"]), st.integers(0, 30)))


@pytest.mark.extended
@given(PARTITIONS, PARTITIONS)
def test_a_set_with_added_partitions_is_a_set_in_order_whatever_was_asked_before(
    first: frozenset[tuple[str, int]], more: frozenset[tuple[str, int]]
) -> None:
    before = PartitionSet(first)
    order = before.in_order
    after = before.with_added(more)
    assert after == first | more
    assert hash(after) == hash(first | more)
    assert after.in_order == sorted(first | more)
    assert before.in_order is order
    assert order == sorted(first)


def test_the_empty_set_has_no_order() -> None:
    assert NO_PARTITIONS.in_order == []
    assert not NO_PARTITIONS


def test_the_partitions_of_a_transaction_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision of a transaction in thousands of topics would otherwise hold the event loop for milliseconds."""
    encoded: list[Sequence[TopicPartition]] = []

    def counted(partitions: Sequence[TopicPartition]) -> bytes:
        encoded.append(partitions)
        return encode_partitions(partitions)

    monkeypatch.setattr(partition_set, "encode_partitions", counted)
    partitions = PartitionSet(("t", index) for index in range(3))
    txn = TransactionMetadata(1, 1, 1, TransactionState.ONGOING, partitions, update_ms=1, start_ms=1)
    records = [
        encode_transaction(txn),
        encode_transaction(txn._replace(state=TransactionState.PREPARE_COMMIT)),
        encode_transaction(
            txn._replace(
                state=TransactionState.PREPARE_ABORT,
                ends=LogEnds.from_offsets(1, partitions.in_order, [5, 6, 7]),
            )
        ),
    ]
    assert encoded == [partitions.in_order]
    for record in records:
        assert decode_transaction(record).partitions == partitions
    in_other_order = partitions.in_order[::-1]
    other = decode_transaction(
        encode_transaction(
            txn._replace(
                state=TransactionState.PREPARE_ABORT, ends=LogEnds.from_offsets(1, in_other_order, [5, 6, 7])
            )
        )
    )
    assert other.ends["t", 2].end_offset == 5
