"""The settings of the coordinator, and the answers without more."""

from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.answers import (
    CommittingMember,
    FetchedOffset,
    GroupConfig,
    GroupDecision,
    JoinAnswer,
    JoinRequest,
    OffsetCommit,
)
from tests.coordinators.consumer_groups.test_coordinator import HOUR_MS, a_join


def test_what_is_not_said_is_kafkas_default() -> None:
    assert GroupConfig() == GroupConfig(
        initial_rebalance_delay_ms=3_000,
        session_timeout_ms_min=6_000,
        session_timeout_ms_max=30 * 60_000,
        group_size_max=2**31 - 1,
        offsets_retention_ms=7 * 24 * HOUR_MS,
        offsets_check_interval_ms=10 * 60_000,
        offset_metadata_size_max=4096,
        group_metadata_size_max=1_000_000,
        new_member_join_timeout_ms=5 * 60_000,
    )
    code = ErrorCode.unknown_member_id
    assert JoinAnswer(code) == JoinAnswer(code, "", -1, None, None, "", False, ())
    assert FetchedOffset(code) == (code, -1, -1, "")
    assert OffsetCommit(5) == (5, -1, None)
    assert CommittingMember() == ("", -1, None)
    assert a_join(knows_member_id_required=True).knows_skip_assignment
    assert JoinRequest(
        group_id="g",
        member_id="",
        fresh_id="1",
        protocol_type="",
        protocols=(),
        session_timeout_ms=1,
        rebalance_timeout_ms=1,
    ).knows_member_id_required


def test_a_consumer_group_has_the_times_of_its_settings_or_those_of_all() -> None:
    times: dict[str, tuple[int, int]] = {"fast": (6_000, 1_000)}
    config = GroupConfig(
        consumer_session_timeout_ms=45_000, heartbeat_interval_ms=5_000, consumer_times=times
    )
    assert config.times_of("fast") == (6_000, 1_000)
    assert config.times_of("other") == (45_000, 5_000)
    times["other"] = (7_000, 2_000)
    assert config.times_of("other") == (7_000, 2_000), "the caller may change the entries at any time"


def test_two_decisions_share_nothing() -> None:
    decision = GroupDecision(None)
    decision.records.append((b"key", None))
    assert (GroupDecision(None).records, GroupDecision(None).answers) == ([], [])
