"""The time for which a key of joint commits is known."""

from stablelog.coordinators.transactions.joint.records import FOR_EVER, JointState
from stablelog.coordinators.transactions.joint.table import JointTable
from stablelog.coordinators.transactions.records import joint_key
from stablelog.wire.extension.children import child_id, child_of

UNUSED_MS = 1000
CHILD = child_id("k", 1, "r", 0, 0)
NAME = child_of(CHILD).name  # type: ignore[union-attr]


def table(state: JointState) -> JointTable:
    made = JointTable(UNUSED_MS)
    made.put(NAME, state, [])
    return made


def forgotten(joints: JointTable, now_ms: int) -> list[bytes]:
    """The keys that are forgotten at this time, as the commit log is told of them."""
    records: list[tuple[bytes, bytes | None]] = []
    joints.forget_expired(now_ms, 10, records)
    assert all(value is None for _, value in records)
    assert len(joints) == 1 - len(records)
    return [key for key, _ in records]


def test_a_key_without_a_commit_is_forgotten_when_it_was_not_used_for_long() -> None:
    joints = table(JointState(open_version=1, update_ms=500))
    assert not joints.may_be_expired(UNUSED_MS + 499)
    assert forgotten(joints, UNUSED_MS + 499) == []
    assert joints.may_be_expired(UNUSED_MS + 500)
    changes = joints.change_count
    assert forgotten(joints, UNUSED_MS + 500) == [joint_key(*NAME)]
    assert joints.change_count > changes


def test_a_committed_key_is_known_for_its_retention() -> None:
    joints = table(JointState(last_version=1, commit_sequence=3, retention_ms=5000, update_ms=500))
    assert forgotten(joints, 5499) == []
    assert forgotten(joints, 5500) == [joint_key(*NAME)]
    assert forgotten(table(JointState(last_version=1, retention_ms=FOR_EVER, update_ms=0)), 10**15) == []


def test_a_key_that_was_used_again_is_known_from_then_on() -> None:
    joints = table(JointState(open_version=1, update_ms=0))
    joints.put(NAME, JointState(open_version=2, update_ms=700), [])
    assert forgotten(joints, 1000) == []
    assert forgotten(joints, 1700) == [joint_key(*NAME)]


def test_a_key_is_known_as_long_as_it_has_children() -> None:
    joints = table(JointState(open_version=1, update_ms=0))
    joints.add_child_id(CHILD)
    assert forgotten(joints, UNUSED_MS) == []
    assert joints.children(NAME) == [(CHILD, child_of(CHILD))]
    assert not joints.may_be_expired(UNUSED_MS), "it is looked at again later"
    joints.remove_child_id(CHILD)
    assert joints.children(NAME) == []
    assert forgotten(joints, UNUSED_MS + 1) == [joint_key(*NAME)]


def test_after_a_start_with_an_earlier_clock_a_key_expires_in_time() -> None:
    joints, read = table(JointState(open_version=1, update_ms=10**6)), JointTable(UNUSED_MS)
    for _, value in joints.records():
        read.replay(NAME, value)
    read.finish_replay(now_ms=0)
    assert forgotten(read, UNUSED_MS - 1) == []
    assert forgotten(read, UNUSED_MS) == [joint_key(*NAME)]
