"""Whether an EndTxn request ends the producer's transaction or repeats the request that ended it."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.end_requests import event_of_end_request, is_first_since_start
from stablelog.coordinators.transactions.partition_set import PartitionSet
from stablelog.coordinators.transactions.producer_ids import ProducerIds
from stablelog.coordinators.transactions.records import encode_transaction, transaction_key
from stablelog.coordinators.transactions.states import TransactionEvent, TransactionState
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.coordinators.transactions.transaction import TV1, TV2, ProducerIdAndEpoch, TransactionMetadata
from stablelog.errors import RefusedError
from stablelog.wire.extension.children import child_id

Event, State = TransactionEvent, TransactionState
EMPTY = TransactionMetadata(5, 2, 60_000, State.EMPTY)
OPEN = EMPTY._replace(state=State.ONGOING, partitions=PartitionSet({("t", 0)}))
# Ended with transaction version 2, so that the producer has the next epoch; and with version 1.
DONE = EMPTY._replace(
    state=State.COMPLETE_COMMIT,
    producer_epoch=3,
    previous_producer_id=5,
    last_producer_epoch=2,
    transaction_version=2,
)
DONE_V1 = EMPTY._replace(state=State.COMPLETE_COMMIT, transaction_version=1)
CHILD = child_id("k", 0, "r", 0, 0)


def a_table():
    return TransactionTable("", 1000, ProducerIds(10), lambda: lambda: True)


def event(txn, shown, *, commit=True, version=TV2, transactional_id="a", table=None):
    return event_of_end_request(
        table or a_table(), transactional_id, txn, ProducerIdAndEpoch(*shown), commit=commit, version=version
    )


@pytest.mark.parametrize(
    ("txn", "version", "commit", "found"),
    [
        (OPEN, TV2, True, Event.COMMIT),
        (OPEN, TV2, False, Event.ABORT),
        (OPEN, TV1, True, Event.COMMIT),
        (OPEN, TV1, False, Event.ABORT),
        (EMPTY, TV2, True, Event.COMMIT),
        (EMPTY, TV2, False, Event.ABORT_NOTHING),
        (EMPTY, TV1, False, Event.ABORT),
        (DONE, TV2, True, Event.COMMIT),
        (DONE, TV2, False, Event.ABORT_NOTHING),
        (DONE_V1, TV1, True, Event.COMMIT_AGAIN),
        (DONE_V1, TV1, False, Event.ABORT_AGAIN),
    ],
)
def test_a_request_with_the_present_identity_ends_a_transaction_or_with_version_1_repeats_the_end(
    txn, version, commit, found
):
    assert event(txn, txn.client, commit=commit, version=version) is found


def test_with_version_2_the_former_epoch_tells_a_repetition():
    assert event(DONE, (5, 2)) is Event.COMMIT_AGAIN
    assert event(DONE, (5, 2), commit=False) is Event.ABORT_AGAIN


@pytest.mark.parametrize(
    "txn",
    [
        DONE._replace(last_producer_epoch=-1),
        DONE._replace(transaction_version=1),
        DONE._replace(state=State.ONGOING),
        DONE._replace(state=State.EMPTY),
    ],
    ids=["fenced for good", "ended with version 1", "a transaction has begun since", "nothing has ended"],
)
def test_the_former_epoch_is_fenced_unless_the_producer_may_ask_again(txn):
    with pytest.raises(
        RefusedError, match="producer 5 with epoch 2 was fenced; 5 with epoch 3 holds the id"
    ) as why:
        event(txn, (5, 2))
    assert why.value.code is ErrorCode.producer_fenced


def test_the_epoch_of_a_child_ends_with_its_transaction_also_with_version_1():
    done = DONE._replace(transaction_version=1)
    assert event(done, (5, 2), version=TV1, commit=False, transactional_id=CHILD) is Event.ABORT_AGAIN


def test_another_producer_is_refused():
    with pytest.raises(RefusedError, match="a belongs to producer 5, not 6") as why:
        event(OPEN, (6, 2))
    assert why.value.code is ErrorCode.invalid_producer_id_mapping


def test_a_transaction_that_was_refused_a_partition_can_only_be_aborted():
    table = a_table()
    table.put("a", OPEN, [])
    for txn in (OPEN, DONE):
        table.abort_only["a"] = txn.client
        with pytest.raises(RefusedError, match="was refused a partition: it can only be aborted"):
            event(txn, txn.client, table=table)
    table.abort_only["a"] = OPEN.client
    assert event(OPEN, OPEN.client, commit=False, table=table) is Event.ABORT
    assert event(EMPTY, EMPTY.client, commit=False, version=TV1, table=table) is Event.ABORT_NOTHING


def test_after_a_start_a_request_of_version_1_waits_until_it_is_known_what_it_ends():
    table = a_table()
    decided = OPEN._replace(state=State.PREPARE_COMMIT, transaction_epoch=2)
    table.replay(transaction_key("a"), encode_transaction(decided))
    table.finish_replay(0, 0)
    with pytest.raises(RefusedError, match="the last transaction of a is being completed; try again") as why:
        event(table.require_state("a"), (5, 2), version=TV1, table=table)
    assert why.value.code is ErrorCode.concurrent_transactions


@pytest.mark.parametrize(
    ("txn", "version", "epoch", "is_first"),
    [(DONE_V1, TV1, 1, True), (DONE_V1, TV1, 0, False), (DONE_V1, TV2, 1, False), (OPEN, TV1, 1, False)],
)
def test_the_first_repetition_of_version_1_since_the_start_is_recorded(txn, version, epoch, is_first):
    assert is_first_since_start(txn._replace(settled_epoch=0), version, epoch) is is_first
