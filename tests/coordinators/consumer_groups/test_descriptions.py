"""What an operator sees of a group."""

from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.answers import DescribedGroup, GroupOverview
from stablelog.coordinators.consumer_groups.classic_group import ClassicGroup
from stablelog.coordinators.consumer_groups.consumer_protocol.group import ConsumerGroup
from stablelog.coordinators.consumer_groups.consumer_protocol.model import DescribedConsumerGroup
from stablelog.coordinators.consumer_groups.descriptions import (
    describe_classic_group,
    describe_consumer_group,
    overviews,
)
from tests.coordinators.consumer_groups.test_coordinator import (
    SUBSCRIPTION,
    a_coordinator,
    a_join,
    with_a_member,
)


def test_people_see_the_subscriptions_of_a_stable_group_only() -> None:
    coordinator = a_coordinator()
    membership = with_a_member(coordinator)
    (described,) = coordinator.describe(["g"]).answer
    assert described.members[0].metadata == SUBSCRIPTION
    assert described.protocol_name == "range"

    coordinator.join(a_join(member_id=membership.member_id, fresh_id="2"), "join", now_ms=0)
    (described,) = coordinator.describe(["g"]).answer
    assert described.state == "CompletingRebalance"
    assert described.members[0].metadata == b""
    assert described.protocol_name == ""


def test_a_group_of_the_other_kind_and_a_missing_one_are_not_found() -> None:
    classic, consumer = ClassicGroup("g"), ConsumerGroup("g")
    for group in (consumer, None):
        assert describe_classic_group("g", group) == DescribedGroup(ErrorCode.group_id_not_found, "g", "Dead")
    for other in (classic, None):
        assert describe_consumer_group("g", other) == DescribedConsumerGroup(
            ErrorCode.group_id_not_found, "g", "Dead"
        )


def test_a_consumer_group_is_described_with_its_epochs() -> None:
    group = ConsumerGroup("g")
    group.epoch, group.target_epoch = 5, 4
    described = describe_consumer_group("g", group)
    assert (described.code, described.state, described.members) == (ErrorCode.none, "Empty", ())
    assert (described.epoch, described.target_epoch, described.assignor) == (5, 4, "uniform")


def test_a_group_that_only_keeps_offsets_has_no_protocol() -> None:
    assert describe_classic_group("g", ClassicGroup("g")) == DescribedGroup(
        ErrorCode.none, "g", "Empty", "", "", ()
    )


def test_a_list_has_the_groups_of_the_states_and_types_whatever_the_case_of_the_names() -> None:
    classic, consumer = ClassicGroup("a"), ConsumerGroup("b")
    both = [GroupOverview("a", "", "Empty", "classic"), GroupOverview("b", "consumer", "Empty", "consumer")]
    groups = [classic, consumer]
    assert list(overviews(groups, (), ())) == both
    assert list(overviews(groups, ["EMPTY"], ["Consumer"])) == both[1:]
    assert list(overviews(groups, (), ["CLASSIC"])) == both[:1]
    assert list(overviews(groups, ["stable"], ())) == []
