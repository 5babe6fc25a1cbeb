import struct
from typing import Any

from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.answers import (
    CommittingMember,
    GroupConfig,
    GroupDecision,
    JoinAnswer,
    JoinRequest,
    OffsetCommit,
    SyncAnswer,
    SyncRequest,
)
from stablelog.coordinators.consumer_groups.coordinator import (
    TICK_ALARMS_MAX,
    GroupCoordinator,
)
from stablelog.coordinators.consumer_groups.joining import STRING_SIZE_MAX

T0, T1 = ("t", 0), ("t", 1)
HOUR_MS = 3_600_000
SUBSCRIPTION = struct.pack(">hih1si", 0, 1, 1, b"t", -1)


def a_coordinator(**settings: int) -> GroupCoordinator:
    return GroupCoordinator(GroupConfig(**{"initial_rebalance_delay_ms": 0, **settings}))


def a_join(**fields: Any) -> JoinRequest:
    return JoinRequest(
        **{
            "group_id": "g",
            "member_id": "",
            "fresh_id": "1",
            "protocol_type": "consumer",
            "protocols": (("range", SUBSCRIPTION),),
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "client_id": "A",
            "knows_member_id_required": False,
            **fields,
        }
    )


def answered(decision: GroupDecision[Any]) -> Any:
    ((_, answer),) = decision.answers
    return answer


def with_a_member(coordinator: GroupCoordinator, now_ms: int = 0) -> CommittingMember:
    """Let a member join and be stable."""
    joined = answered(coordinator.join(a_join(), "join", now_ms=now_ms))
    sync = SyncRequest(
        group_id="g",
        member_id=joined.member_id,
        generation=joined.generation,
        assignments={joined.member_id: b"work"},
    )
    assert answered(coordinator.sync(sync, "sync", now_ms=now_ms)).assignment == b"work"
    return CommittingMember(joined.member_id, joined.generation)


def fetched(
    coordinator: GroupCoordinator, group_id: str = "g", **options: bool
) -> dict[tuple[str, int], Any]:
    answer = coordinator.fetch_offsets(group_id, None, **options).answer
    return {p: one.code if one.code is not ErrorCode.none else one.offset for p, one in answer.items()}


def test_an_older_member_is_fenced_and_offsets_are_unstable_until_the_marker() -> None:
    """Scenario 47: given an old group member, TxnOffsetCommit v3 is fenced; a stable OffsetFetch returns 88 until the
    marker; of a mix of plain and transactional commits the later one is kept.
    """
    coordinator = a_coordinator()
    old = with_a_member(coordinator)
    coordinator.tick(20_000)  # its session is over
    new = with_a_member(coordinator, 20_000)

    def commit_in_transaction(membership: CommittingMember, offset: int) -> ErrorCode:
        decision = coordinator.txn_commit_offsets("g", {T0: OffsetCommit(offset)}, membership, now_ms=20_000)
        coordinator.txn_offsets_appended(7, decision.records, now_ms=20_000)
        return decision.answer[T0]

    assert commit_in_transaction(old, 1) is ErrorCode.illegal_generation
    assert commit_in_transaction(old._replace(member_id="gone"), 1) is ErrorCode.unknown_member_id
    assert commit_in_transaction(old._replace(group_instance_id="i"), 1) is ErrorCode.unknown_member_id
    assert commit_in_transaction(new, 2) is ErrorCode.none
    assert commit_in_transaction(CommittingMember(), 3) is ErrorCode.none
    assert fetched(coordinator) == {}
    assert ErrorCode.unstable_offset_commit.value == 88
    assert fetched(coordinator, require_stable=True) == {T0: ErrorCode.unstable_offset_commit}

    coordinator.commit_offsets("g", {T0: OffsetCommit(4)}, new, now_ms=20_000)
    coordinator.txn_ended(7, commit=True)
    assert fetched(coordinator, require_stable=True) == {T0: 4}


def test_a_transactional_commit_changes_nothing_before_its_batch_is_in_the_log() -> None:
    coordinator = a_coordinator()
    decision = coordinator.txn_commit_offsets("g", {T0: OffsetCommit(1)}, now_ms=0)
    assert decision.answer == {T0: ErrorCode.none}
    assert coordinator.list_groups().answer == []
    assert coordinator.next_deadline_ms() is None

    coordinator.txn_offsets_appended(7, decision.records, now_ms=0)
    assert fetched(coordinator, require_stable=True) == {T0: ErrorCode.unstable_offset_commit}


def test_a_group_id_must_be_there_and_fit_into_a_record() -> None:
    coordinator = a_coordinator()
    long = "g" * 40_000
    for group_id in ("", long):
        refused = JoinAnswer(ErrorCode.invalid_group_id)
        assert answered(coordinator.join(a_join(group_id=group_id), "token", now_ms=0)) == refused
        sync = SyncRequest(group_id=group_id, member_id="m", generation=1)
        assert answered(coordinator.sync(sync, "token", now_ms=0)) == SyncAnswer(ErrorCode.invalid_group_id)
        assert coordinator.heartbeat(group_id, "m", 1, now_ms=0).answer is ErrorCode.invalid_group_id
        assert coordinator.leave(group_id, [], now_ms=0).answer.code is ErrorCode.invalid_group_id
    codes = coordinator.commit_offsets(long, {T0: OffsetCommit(1)}, now_ms=0).answer
    assert codes == {T0: ErrorCode.invalid_group_id}
    assert STRING_SIZE_MAX == 32_000
    longest = "g" * STRING_SIZE_MAX
    for group_id, code in ((longest, ErrorCode.none), (f"{longest}g", ErrorCode.invalid_group_id)):
        assert coordinator.commit_offsets(group_id, {T0: OffsetCommit(1)}, now_ms=0).answer == {T0: code}
        joined = answered(coordinator.join(a_join(group_id=group_id), "token", now_ms=0))
        assert joined.code is code
    # As in Kafka, offsets of the group without a name can be kept.
    assert coordinator.commit_offsets("", {T0: OffsetCommit(1)}, now_ms=0).answer == {T0: ErrorCode.none}
    assert fetched(coordinator, "") == {T0: 1}


def test_an_offset_keeps_its_epoch_and_metadata() -> None:
    coordinator = a_coordinator()
    coordinator.commit_offsets("g", {T0: OffsetCommit(5, 3, "here"), T1: OffsetCommit(6)}, now_ms=0)
    offsets = coordinator.fetch_offsets("g", [T0, T1]).answer
    assert offsets[T0][1:] == (5, 3, "here")
    assert offsets[T1][1:] == (6, -1, "")


def test_one_tick_does_a_bounded_amount_of_work() -> None:
    coordinator = a_coordinator()
    for number in range(TICK_ALARMS_MAX + 10):
        coordinator.join(a_join(group_id=f"g{number}"), number, now_ms=0)

    coordinator.tick(10_000)  # every session is over
    deadline_ms = coordinator.next_deadline_ms()
    assert deadline_ms is not None
    assert deadline_ms <= 10_000

    coordinator.tick(10_000)
    assert coordinator.next_deadline_ms() == 600_000
    assert {group.state for group in coordinator.list_groups().answer} == {"Empty"}


def test_a_commit_of_a_member_of_a_group_that_is_not_there_is_refused_in_words_that_the_client_knows() -> (
    None
):
    coordinator = a_coordinator()
    for knows, code in (
        ({}, ErrorCode.group_id_not_found),
        ({"knows_missing_group": True}, ErrorCode.group_id_not_found),
        ({"knows_missing_group": False}, ErrorCode.illegal_generation),
    ):
        commits, member = {T0: OffsetCommit(1)}, CommittingMember("m", 0)
        decision = coordinator.commit_offsets("nobody", commits, member, now_ms=0, **knows)
        assert (decision.answer, decision.records) == ({T0: code}, [])
    assert coordinator.list_groups().answer == []


def test_nothing_is_due_where_nothing_is() -> None:
    coordinator = a_coordinator()
    assert coordinator.next_deadline_ms() is None
    decision = coordinator.tick(10**15)
    assert not decision.records
    assert not decision.answers
    assert list(coordinator.table.live_state().rest) == []


def test_heartbeats_cost_no_memory() -> None:
    coordinator = a_coordinator()
    membership = with_a_member(coordinator)
    size = len(coordinator.table.deadlines)
    for now_ms in range(0, 50_000, 5):
        answer = coordinator.heartbeat("g", membership.member_id, membership.generation, now_ms=now_ms).answer
        assert answer is ErrorCode.none
    assert len(coordinator.table.deadlines) <= size + 1
