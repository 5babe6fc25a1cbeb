"""Records of the coordinators' logs in words."""

import struct
import uuid

import pytest

from stablelog.batch.records import Record, encode_batch
from stablelog.coordinators.consumer_groups.consumer_protocol import records as consumer_records
from stablelog.coordinators.consumer_groups.consumer_protocol.model import (
    CurrentAssignment,
    MemberState,
    Subscription,
)
from stablelog.coordinators.consumer_groups.consumer_protocol.records import ConsumerKey, GroupEpochs
from stablelog.coordinators.consumer_groups.records import (
    GroupValue,
    MemberValue,
    OffsetValue,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from stablelog.coordinators.transactions.joint.records import JointState, encode_joint
from stablelog.coordinators.transactions.log_ends import LogEnds
from stablelog.coordinators.transactions.partition_set import PartitionSet
from stablelog.coordinators.transactions.records import (
    TransactionGroupState,
    encode_group,
    encode_transaction,
    group_key,
    joint_key,
    transaction_key,
)
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.coordinators.transactions.transaction import TransactionMetadata
from stablelog.log.opening import open_partition
from stablelog.log.partition import LogConfig
from stablelog.ops.coordinator_records import describe_commit_record, describe_offsets_record, describer_of
from stablelog.ops.inspect import inspect_file
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import DATA


def test_the_state_of_a_transaction():
    txn = TransactionMetadata(
        7,
        3,
        60_000,
        TransactionState.PREPARE_COMMIT,
        PartitionSet({("t", 1), ("t", 0)}),
        update_ms=5,
        start_ms=4,
        transaction_version=1,
        commit_sequence=9,
        transaction_epoch=3,
        ends=LogEnds.from_offsets(2, [("t", 0), ("t", 1)], [10, 0]),
    )
    assert describe_commit_record(transaction_key("a"), encode_transaction(txn)) == (
        {"transactional_id": "a"},
        {
            "producer_id": 7,
            "producer_epoch": 3,
            "timeout_ms": 60_000,
            "state": "PrepareCommit",
            "partitions": ["t-0", "t-1"],
            "update_ms": 5,
            "start_ms": 4,
            "transaction_version": 1,
            "commit_sequence": 9,
            "transaction_epoch": 3,
            "ends": {"t-0": "10 in leader epoch 2", "t-1": "0 in leader epoch 2"},
        },
    )


def test_the_other_kinds_of_the_commit_log():
    assert describe_commit_record(group_key("g"), encode_group(TransactionGroupState(1000, 7))) == (
        {"transaction_group": "g"},
        {"producer_ids_end": 1000, "commit_sequence_next": 7},
    )
    key, state = describe_commit_record(joint_key("g", "query"), encode_joint(JointState(4, 7, run="r")))
    assert key == {"joint_commit": {"group": "g", "key": "query"}}
    assert state == {"last_version": 4, "commit_sequence": 7, "run": "r"}


def test_a_committed_offset():
    key = encode_offset_key("g", "t", 3)
    told = describe_offsets_record(key, encode_offset_value(OffsetValue(5, 2, "note", 99)))
    assert told == (
        {"group": "g", "partition": "t-3"},
        {"offset": 5, "leader_epoch": 2, "metadata": "note", "commit_ms": 99},
    )
    assert describe_offsets_record(key, None) == ({"group": "g", "partition": "t-3"}, None)


def test_a_consumer_group_and_its_members():
    topic = uuid.UUID(int=7)
    partitions = frozenset({(topic, 1), (topic, 0)})
    subscription = Subscription(
        instance_id=None,
        rack_id=None,
        client_id="c",
        client_host="h",
        topics=("t",),
        pattern=None,
        rebalance_timeout_ms=9,
        assignor="range",
    )
    current = CurrentAssignment(3, 2, MemberState.UNREVOKED, frozenset(), partitions)
    told = {
        ConsumerKey(3, "g"): (
            consumer_records.encode_group_epochs(GroupEpochs(5, 6)),
            {"epoch": 5, "topics_hash": 6},
        ),
        ConsumerKey(5, "g", "m"): (
            consumer_records.encode_subscription(subscription),
            {
                "client_id": "c",
                "client_host": "h",
                "topics": ["t"],
                "rebalance_timeout_ms": 9,
                "assignor": "range",
            },
        ),
        ConsumerKey(6, "g"): (consumer_records.encode_target_epoch(4), {"target_epoch": 4}),
        ConsumerKey(7, "g", "m"): (
            consumer_records.encode_target(partitions),
            {"target": {str(topic): [0, 1]}},
        ),
        ConsumerKey(8, "g", "m"): (
            consumer_records.encode_current(current),
            {
                "epoch": 3,
                "previous_epoch": 2,
                "state": "unrevoked",
                "assigned": {},
                "revoking": {str(topic): [0, 1]},
            },
        ),
    }
    for key, (value, fields) in told.items():
        named, content = describe_offsets_record(consumer_records.encode_consumer_key(key), value)
        assert named == ({"group": "g", "member": "m"} if key.member_id else {"group": "g"})
        assert content == fields


def test_a_group_with_what_its_members_read():
    topics = struct.pack(">hih1s", 0, 1, 1, b"t")
    assignment = topics + struct.pack(">iii", 2, 0, 4) + struct.pack(">i", -1)
    member = MemberValue("m", None, "client", "/host", 300, 45, topics + b"\xff\xff\xff\xff", assignment)
    value = encode_group_value(GroupValue("consumer", 2, "range", "m", 8, (member,)))
    key, state = describe_offsets_record(encode_group_key("g"), value)
    assert key == {"group": "g"}
    assert (state["generation"], state["leader_id"]) == (2, "m")
    (told,) = state["members"]
    assert told["subscription"] == ["t"]
    assert told["assignment"] == ["t-0", "t-4"]
    connect = encode_group_value(GroupValue("connect", 2, "range", "m", 8, (member,)))
    _, state = describe_offsets_record(encode_group_key("g"), connect)
    assert state["members"][0]["assignment"] == assignment.hex(), "only consumers' assignments can be read"


@pytest.mark.parametrize("describe", [describe_commit_record, describe_offsets_record])
def test_what_cannot_be_read_is_shown_as_it_is(describe):
    assert describe(b"", b"x") is None
    assert describe(struct.pack(">h", 99), b"x") is None
    key = transaction_key("a") if describe is describe_commit_record else encode_offset_key("g", "t", 0)
    _, state = describe(key, b"\0\x63rest")
    assert state.endswith(b"\0\x63rest".hex())


def test_only_the_coordinators_logs_are_decoded():
    assert describer_of("__transaction_state-12") is describe_commit_record
    assert describer_of("__consumer_offsets-0") is describe_offsets_record
    assert describer_of("orders-0") is None
    assert describer_of("tables") is None


def test_a_segment_of_the_commit_log_with_a_tombstone_and_a_marker():
    disk, directory = SimDisk(), DATA / "__consumer_offsets-0"
    disk.make_dir(directory)
    partition = open_partition(
        disk, directory, LogConfig(), topic="__consumer_offsets", partition=0, clean=False, now_ms=0
    )
    entries = [(encode_offset_key("g", "t", 0), encode_offset_value(OffsetValue(5, -1, "", 1)))]
    entries += [(encode_offset_key("g", "t", 1), None), (b"\0\x63", b"of another kind")]
    partition.append(encode_batch([Record(0, 1, key, value) for key, value in entries]), now_ms=0)
    partition.close(clean=True)
    table = inspect_file(disk, directory / f"{0:020d}.log", records=True)
    assert table.problem is None
    keys, values = ([row[place] for row in table.rows] for place in (2, 3))
    assert keys[:2] == [{"group": "g", "partition": "t-0"}, {"group": "g", "partition": "t-1"}]
    assert values == [{"offset": 5, "commit_ms": 1}, None, "of another kind"]
