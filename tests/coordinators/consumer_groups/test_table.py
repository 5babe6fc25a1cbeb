"""The offsets log in memory: the records of the table give the same table."""

import pytest

from stablelog.coordinators.consumer_groups.answers import (
    OffsetCommit,
)
from stablelog.coordinators.consumer_groups.classic_group import ClassicGroup, Due
from stablelog.coordinators.consumer_groups.consumer_protocol.group import ConsumerGroup
from stablelog.coordinators.consumer_groups.records import (
    GroupValue,
    OffsetValue,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
    read_offset_value,
)
from stablelog.coordinators.consumer_groups.table import GroupTable
from stablelog.errors import DamageError
from tests.coordinators.consumer_groups.test_coordinator import T0, a_coordinator, fetched


def test_records_of_other_kinds_of_group_are_passed_over() -> None:
    coordinator = a_coordinator()
    coordinator.table.replay(b"\x00\x04\x00\x01g", b"whatever")
    coordinator.table.replay(b"\x00\x0f\x00\x01g", None)
    assert coordinator.list_groups().answer == []


def test_a_record_that_cannot_be_read_changes_nothing() -> None:
    coordinator = a_coordinator()
    coordinator.commit_offsets("g", {T0: OffsetCommit(1)}, now_ms=0)
    before = list(coordinator.table.live_state().rest)
    for key in (encode_group_key("g"), encode_offset_key("g", "t", 0), encode_offset_key("h", "t", 0)):
        with pytest.raises(DamageError, match=r"the metadata of a group|a committed offset"):
            coordinator.table.replay(key, b"\x00\x03nonsense")
    assert list(coordinator.table.live_state().rest) == before
    assert len(coordinator.list_groups().answer) == 1


def test_a_tombstone_of_a_group_leaves_offsets_that_are_still_there() -> None:
    coordinator = a_coordinator()
    coordinator.table.replay(
        encode_group_key("g"), encode_group_value(GroupValue("consumer", 3, None, None, 0, ()))
    )
    coordinator.table.replay(encode_offset_key("g", "t", 0), encode_offset_value(OffsetValue(1, -1, "", 0)))
    coordinator.table.replay(encode_group_key("g"), None)
    assert fetched(coordinator) == {T0: 1}
    (listed,) = coordinator.list_groups().answer
    assert listed.protocol_type == ""
    coordinator.table.replay(encode_group_key("nobody"), None)
    assert len(coordinator.list_groups().answer) == 1


def offset_of(group_id: str, index: int, offset: int = 1) -> tuple[bytes, bytes | None]:
    coordinator = a_coordinator()
    coordinator.commit_offsets(group_id, {("t", index): OffsetCommit(offset)}, now_ms=0)
    (record,) = coordinator.table.live_state().rest
    return record


def test_a_missing_group_is_made_as_one_that_only_keeps_offsets() -> None:
    table = GroupTable()
    group = table.get_or_create("g")
    assert isinstance(group, ClassicGroup)
    assert group.protocol_type is None
    assert table.get_or_create("g") is group


def test_a_group_that_is_forgotten_leaves_no_deadline_and_keeps_its_offsets() -> None:
    table = GroupTable()
    assert table.replay(*offset_of("g", 0)) is table.groups["g"]
    group = table.groups["g"]
    table.deadlines.set(group.alarm(Due.OFFSETS), 5)
    table.forget(group)
    assert (table.groups, table.deadlines.next_ms()) == ({}, None)
    assert not table.is_unused("g")


def test_an_offset_that_is_removed_has_a_tombstone() -> None:
    table = GroupTable()
    table.replay(*offset_of("g", 0))
    assert table.remove_offset("g", ("t", 0)) == (offset_of("g", 0)[0], None)
    assert table.is_unused("g")


def test_an_offset_of_an_open_transaction_counts_as_one_of_the_group() -> None:
    table = GroupTable()
    table.replay(*offset_of("g", 0), producer_id=7)
    assert dict(table.offsets.committed("g")) == {}
    assert not table.is_unused("g")


def test_the_records_of_a_table_give_the_same_table() -> None:
    table = GroupTable()
    group = ConsumerGroup("c")
    for record in (*group.records(), offset_of("c", 0), offset_of("s", 1, 5), offset_of("s", 2, 6)):
        table.replay(*record)
    records = list(table.live_state().rest)
    other = GroupTable()
    for record in records:
        other.replay(*record)
    assert list(other.live_state().rest) == records
    assert {name: type(found) for name, found in other.groups.items()} == {
        "c": ConsumerGroup,
        "s": ClassicGroup,
    }


def test_pending_offsets_come_in_the_order_of_the_log_behind_all_others() -> None:
    table = GroupTable()
    table.replay(*offset_of("g", 0, 1))
    table.replay(*offset_of("g", 0, 2), producer_id=7)
    table.replay(*offset_of("g", 0, 3))
    state = table.live_state()
    assert list(state.rest) == []
    ((*records,),) = state.ordered
    found = [(one.producer_id, read_offset_value(one.record[1] or b"").offset) for one in records]
    assert found == [(7, 2), (None, 3)]


def test_a_consumer_group_takes_the_place_of_a_classic_one_and_its_tombstone_gives_it_back() -> None:
    table = GroupTable()
    table.replay(*offset_of("g", 0))
    group = ConsumerGroup("g")
    for record in group.records():
        table.replay(*record)
    assert isinstance(table.groups["g"], ConsumerGroup)
    table.replay(encode_group_key("g"), None)
    assert isinstance(table.groups["g"], ConsumerGroup), (
        "the tombstone of the classic group that it has replaced"
    )
    for record in group.tombstones():
        table.replay(*record)
    assert isinstance(table.groups["g"], ClassicGroup), "which keeps the offsets"


def test_a_record_of_a_member_that_is_gone_makes_no_group() -> None:
    table = GroupTable()
    for key, _ in ConsumerGroup("g").tombstones():
        table.replay(key, None)
    assert table.groups == {}


def test_a_later_generation_takes_the_place_of_the_group_and_of_its_deadlines() -> None:
    table = GroupTable()
    value = encode_group_value(GroupValue("consumer", 3, None, None, 0, ()))
    table.replay(encode_group_key("g"), value)
    table.deadlines.set(table.groups["g"].alarm(Due.OFFSETS), 5)
    table.replay(encode_group_key("g"), encode_group_value(GroupValue("consumer", 4, None, None, 0, ())))
    group = table.groups["g"]
    assert isinstance(group, ClassicGroup)
    assert group.generation == 4
    assert table.deadlines.next_ms() is None
    assert list(table.live_state().rest) == [(encode_group_key("g"), group.recorded)]
