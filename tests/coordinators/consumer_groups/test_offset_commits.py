"""Who may commit offsets of a group, and which offsets can be committed."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.answers import (
    NO_MEMBER,
    CommittingMember,
    FetchedOffset,
    OffsetCommit,
)
from stablelog.coordinators.consumer_groups.classic_group import (
    ClassicGroup,
    ClassicGroupState,
    ClassicMember,
)
from stablelog.coordinators.consumer_groups.consumer_protocol.group import ConsumerGroup
from stablelog.coordinators.consumer_groups.consumer_protocol.model import CurrentAssignment, Subscription
from stablelog.coordinators.consumer_groups.offset_commits import (
    check_committer,
    fetched_offsets,
    valid_offsets,
)
from stablelog.coordinators.consumer_groups.offsets import OffsetAndMetadata
from stablelog.coordinators.consumer_groups.records import OffsetValue
from stablelog.errors import RefusedError

OPERATOR = NO_MEMBER
MISSING = ErrorCode.group_id_not_found
T0, T1 = ("t", 0), ("t", 1)


def a_classic_group(state=ClassicGroupState.STABLE):
    """A group of the member "a" in generation 3."""
    group = ClassicGroup("g")
    group.add(ClassicMember("a", None, "c", "/h", 10, 20, (("range", b""),)), "consumer")
    group.state, group.generation = state, 3
    return group


def a_consumer_group():
    """A group of the member "a" in epoch 3."""
    group = ConsumerGroup("g")
    told = {"instance_id": None, "rack_id": None, "client_id": "c", "client_host": "h", "pattern": None}
    group.set_subscription("a", Subscription(**told, topics=("t",), rebalance_timeout_ms=1, assignor=None))
    group.set_current("a", CurrentAssignment(3, 2))
    return group


def code_of(group, committer, *, is_transactional=False, group_id="g"):
    groups = {} if group is None else {"g": group}
    try:
        check_committer(groups, group_id, committer, MISSING, is_transactional=is_transactional)
    except RefusedError as refused:
        return ErrorCode(refused.code).name
    return "none"


@pytest.mark.parametrize("make", [a_classic_group, a_consumer_group])
def test_a_member_commits_in_its_generation_or_epoch(make):
    assert code_of(make(), CommittingMember("a", 3)) == "none"
    assert code_of(make(), CommittingMember("a", 3), is_transactional=True) == "none"


@pytest.mark.parametrize(
    ("make", "committer", "plain", "transactional"),
    [
        (a_classic_group, CommittingMember("a", 2), "illegal_generation", "illegal_generation"),
        (a_classic_group, CommittingMember("b", 3), "unknown_member_id", "unknown_member_id"),
        (a_classic_group, OPERATOR, "unknown_member_id", "none"),
        (a_consumer_group, CommittingMember("a", 2), "stale_member_epoch", "illegal_generation"),
        (a_consumer_group, CommittingMember("b", 3), "unknown_member_id", "unknown_member_id"),
        (a_consumer_group, OPERATOR, "unknown_member_id", "none"),
    ],
)
def test_of_a_group_with_members_nobody_else_commits_but_transactional_clients_that_name_no_member(
    make, committer, plain, transactional
):
    assert code_of(make(), committer) == plain
    assert code_of(make(), committer, is_transactional=True) == transactional


@pytest.mark.parametrize(
    "group", [ClassicGroup("g"), ConsumerGroup("g"), None], ids=["classic", "consumer", "none"]
)
def test_of_a_group_without_members_anyone_commits_that_names_no_member(group):
    assert code_of(group, OPERATOR) == "none"


def test_a_member_of_a_group_that_does_not_exist_gets_the_code_that_its_version_knows():
    assert code_of(None, CommittingMember("a", 0)) == "group_id_not_found"


def test_a_member_that_has_not_synced_yet_is_told_to_do_so():
    group = a_classic_group(ClassicGroupState.COMPLETING_REBALANCE)
    assert code_of(group, CommittingMember("a", 3)) == "rebalance_in_progress"
    assert code_of(group, CommittingMember("a", 3), is_transactional=True) == "none"


def test_a_group_id_that_does_not_fit_into_a_record_is_refused():
    assert code_of(None, OPERATOR, group_id="g" * 32_000) == "none"
    assert code_of(None, OPERATOR, group_id="ä" * 16_001) == "invalid_group_id"


def valid(commits, *, expire_ms=-1):
    codes = {}
    found = dict(valid_offsets(commits, codes, metadata_size_max=4, expire_ms=expire_ms, now_ms=7))
    return found, codes


def test_an_offset_is_committed_at_the_brokers_time_with_its_epoch_and_metadata():
    found, codes = valid({T0: OffsetCommit(5, 3, "here"), T1: OffsetCommit(6)})
    assert found == {T0: OffsetValue(5, 3, "here", 7, -1), T1: OffsetValue(6, -1, "", 7, -1)}
    assert codes == {T0: ErrorCode.none, T1: ErrorCode.none}


def test_an_offset_with_too_much_metadata_is_refused_and_the_others_are_committed():
    found, codes = valid({T0: OffsetCommit(5, metadata="äää"), T1: OffsetCommit(6, metadata="ää")})
    assert found.keys() == {T1}
    assert codes == {T0: ErrorCode.offset_metadata_too_large, T1: ErrorCode.none}


@pytest.mark.parametrize("expire_ms", [0, 9])
def test_an_offset_with_an_expiry_of_its_own_has_no_leader_epoch(expire_ms):
    found, _ = valid({T0: OffsetCommit(5, 3)}, expire_ms=expire_ms)
    assert found == {T0: OffsetValue(5, -1, "", 7, expire_ms)}


def test_the_answer_to_a_fetch_has_the_offsets_that_are_stable():
    committed = {T0: OffsetAndMetadata(OffsetValue(7, 3, "m", 0), 1)}
    known, unstable = (
        FetchedOffset(ErrorCode.none, 7, 3, "m"),
        FetchedOffset(ErrorCode.unstable_offset_commit),
    )
    assert fetched_offsets(committed, set(), None) == {T0: known}
    assert fetched_offsets(committed, {T0, T1}, None) == {T0: unstable, T1: unstable}
    assert fetched_offsets(committed, {T1}, [T0, ("u", 0)]) == {
        T0: known,
        ("u", 0): FetchedOffset(ErrorCode.none),
    }
