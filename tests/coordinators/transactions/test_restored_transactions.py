"""What a restore decides about the transactions of a group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablelog.coordinators.transactions.commit_sequences import FIRST_SEQUENCE
from stablelog.coordinators.transactions.joint.records import JointState, encode_joint
from stablelog.coordinators.transactions.partition_set import PartitionSet
from stablelog.coordinators.transactions.records import (
    TransactionGroupState,
    decode_group,
    decode_transaction,
    encode_group,
    encode_transaction,
    group_key,
    joint_key,
    transaction_key,
)
from stablelog.coordinators.transactions.restored_transactions import (
    PRODUCER_ID_GAP,
    SEQUENCE_GAP,
    CommitLog,
    Pair,
    restored_records,
    torn_commits,
)
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.coordinators.transactions.transaction import TransactionMetadata

NOW_MS = 1_800_000_000_000
PLACES = [("t", 0), ("t", 1), ("u", 0)]


def pair(name, txn):
    return Pair(transaction_key(name), encode_transaction(txn))


def txn_of(state, producer_id=5, *, sequence=-1, places=()):
    return TransactionMetadata(
        producer_id, 3, 60_000, state, PartitionSet(places), commit_sequence=sequence, last_producer_epoch=2
    )


def log_of(*pairs, group=""):
    log = CommitLog(group)
    log.read_records(pairs)
    return log


@pytest.mark.parametrize(
    "state",
    [
        TransactionState.EMPTY,
        TransactionState.ONGOING,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    ],
)
def test_each_transactional_id_gets_a_new_producer_id_and_no_transaction(state):
    places = PLACES if state is TransactionState.ONGOING else ()
    log = log_of(pair("a", txn_of(state, places=places)), pair("b", txn_of(TransactionState.EMPTY, 9)))
    records, numbers = restored_records([log], NOW_MS)
    found = [decode_transaction(value) for _, value in records[""][:2]]
    assert [txn.state for txn in found] == [TransactionState.EMPTY] * 2
    assert [txn.producer_id for txn in found] == [numbers.producer_ids_end, numbers.producer_ids_end + 1]
    assert numbers.producer_ids_end >= 10 + PRODUCER_ID_GAP
    assert not any(txn.partitions for txn in found)


@pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
def test_a_decision_stays_and_its_producer_is_refused_after_it(state):
    sequence = 4 if state is TransactionState.PREPARE_COMMIT else -1
    before = txn_of(state, sequence=sequence, places=PLACES)
    records, numbers = restored_records([log_of(pair("a", before))], NOW_MS)
    after = decode_transaction(records[""][0].value)
    assert (after.state, after.producer_id, after.producer_epoch) == (state, 5, 3)
    assert after.partitions == before.partitions
    assert after.client == (numbers.producer_ids_end, 0)
    assert after.last_producer_epoch == -1, "no request with the old epoch gets an answer"


def test_a_deleted_transactional_id_stays_deleted():
    log = log_of(pair("a", txn_of(TransactionState.EMPTY)), Pair(transaction_key("a"), None))
    records, _ = restored_records([log], NOW_MS)
    assert [key for key, _ in records[""]] == [group_key("")]


@given(
    st.lists(st.integers(1, 50), max_size=5),
    st.lists(st.integers(0, 10**6), max_size=5),
    st.integers(FIRST_SEQUENCE, 100),
    st.integers(0, 10**6),
)
def test_numbers_continue_above_all_that_are_known(sequences, ids, next_sequence, ids_end):
    pairs = [
        pair(f"p{n}", txn_of(TransactionState.PREPARE_COMMIT, sequence=one, places=PLACES))
        for n, one in enumerate(sequences)
    ]
    pairs += [pair(f"e{n}", txn_of(TransactionState.EMPTY, one)) for n, one in enumerate(ids)]
    pairs.append(Pair(group_key(""), encode_group(TransactionGroupState(ids_end, next_sequence))))
    other = log_of(pair("x", txn_of(TransactionState.EMPTY, 7)), group="other")
    records, numbers = restored_records([log_of(*pairs), other], NOW_MS)
    for group in ("", "other"):
        key, value = records[group][-1]
        assert key == group_key(group)
        state = decode_group(value)
        assert state == (numbers.next_producer_id, numbers.commit_sequences[group])
    assert numbers.commit_sequences[""] > max([*sequences, next_sequence - 1]) + SEQUENCE_GAP - 1
    assert numbers.producer_ids_end > max([*ids, ids_end - 1, 7]) + PRODUCER_ID_GAP - 1
    taken = [
        decode_transaction(value).client.producer_id for group in records.values() for _, value in group[:-1]
    ]
    assert len(set(taken)) == len(taken)
    assert all(numbers.producer_ids_end <= one < numbers.next_producer_id for one in taken)


@pytest.mark.extended
@given(st.lists(st.sets(st.sampled_from(PLACES), min_size=1), max_size=8), st.data())
def test_the_torn_commits_are_those_that_are_partly_there(commits, data):
    log = log_of(
        *(
            pair(f"a{n}", txn_of(TransactionState.PREPARE_COMMIT, n, sequence=n + 1, places=sorted(places)))
            for n, places in enumerate(commits)
        )
    )
    # Each partition has the commits up to some one.
    last = {place: data.draw(st.integers(0, len(commits)), label=str(place)) for place in PLACES}
    found = torn_commits(log, lambda at, txn: txn.commit_sequence <= last[at])
    expected = []
    for n, places in enumerate(commits):
        there = {place for place in places if n + 1 <= last[place]}
        if there and there != places:
            expected.append((f"a{n}", n + 1, tuple(sorted(there)), tuple(sorted(places - there))))
    assert [tuple(one) for one in found] == expected


def test_a_joint_commit_is_torn_if_only_some_of_its_children_are_decided():
    """The copied log ends between the decisions."""
    decided = txn_of(TransactionState.PREPARE_COMMIT, 5, sequence=7, places=[("t", 0)])
    accepted, other = (txn_of(TransactionState.ONGOING, number, places=[("t", 1)]) for number in (6, 8))
    joint = JointState(last_version=0, commit_sequence=7, accepted=((6, 3),))
    key = Pair(joint_key("", "k"), encode_joint(joint))
    log = log_of(key, pair("a", decided), pair("b", accepted), pair("other", other))
    for has, expected in ((True, [("a", 7, (("t", 0),), ()), ("b", 7, (), (("t", 1),))]), (False, [])):
        assert torn_commits(log, lambda at, txn, has=has: has) == expected
    assert log_of(key).sequence_end == 8
