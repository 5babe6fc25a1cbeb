"""Consumer groups: list, describe, committed offsets, delete."""

import io
import uuid

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from stablelog.client.core.admin.groups import (
    CommittedOffset,
    Group,
    ListedGroup,
    Member,
    commit_offsets,
    committed_offsets,
    delete_group,
    delete_offsets,
    describe_group,
    list_groups,
    remove_committed,
)
from stablelog.errors import RefusedError, UnavailableError
from stablelog.wire.api import ApiKey
from tests.client.core.scripted import NONE, Brokers, part, reply

CLASSIC_ONLY = {ApiKey.CONSUMER_GROUP_DESCRIBE: -1}


def listed(*groups):
    def answer(request):
        return reply(
            request,
            error_code=NONE,
            groups=tuple(
                part(
                    request,
                    "ListedGroup",
                    group_id=name,
                    protocol_type="consumer",
                    group_state=state,
                    group_type=kind,
                )
                for name, kind, state in groups
            ),
        )

    return answer


def test_the_groups_of_all_brokers_are_listed_in_the_order_of_their_ids():
    answers = [listed(("c", "Consumer", "Stable")), listed(("a", "Classic", "Empty")), listed()]
    brokers = Brokers({"ListGroups": answers})
    assert brokers.run(list_groups(brokers.cluster())) == [
        ListedGroup("a", "classic", "Empty"),
        ListedGroup("c", "consumer", "Stable"),
    ]
    assert [host for host, _ in brokers.requests("ListGroups")] == ["one", "two", "three"]


def consumer_group(code=NONE):
    def answer(request):
        topics = (
            part(request, "TopicPartitions", topic_id=uuid.UUID(int=7), topic_name="t", partitions=(0, 2)),
        )
        assignment = part(request, "Assignment", topic_partitions=topics)
        member = part(
            request,
            "Member",
            member_id="m",
            instance_id="i",
            member_epoch=3,
            client_id="c",
            client_host="/h",
            assignment=assignment,
            target_assignment=assignment,
        )
        group = part(
            request,
            "DescribedGroup",
            error_code=code,
            error_message="no right",
            group_id="g",
            group_state="Stable",
            group_epoch=3,
            assignment_epoch=3,
            assignor_name="uniform",
            members=(member,),
        )
        return reply(request, groups=(group,))

    return answer


def assigned(**partitions):
    """The assignment of a member, as the consumers of the classic protocol encode it."""
    from kio.schema.consumer_protocol_assignment.v0.data import ConsumerProtocolAssignment, TopicPartition

    data = io.BytesIO(b"\0\0")
    data.seek(2)
    topics = tuple(TopicPartition(topic=name, partitions=indexes) for name, indexes in partitions.items())
    entity_writer(ConsumerProtocolAssignment)(
        data, ConsumerProtocolAssignment(assigned_partitions=topics, user_data=None)
    )
    return data.getvalue()


def classic_group(assignment=b"", protocol_type="consumer", code=NONE):
    def answer(request):
        member = part(
            request,
            "DescribedGroupMember",
            member_id="m",
            client_id="c",
            client_host="/h",
            member_metadata=b"",
            member_assignment=assignment,
        )
        group = part(
            request,
            "DescribedGroup",
            error_code=code,
            group_id="g",
            group_state="Stable",
            protocol_type=protocol_type,
            protocol_data="range",
            members=(member,),
        )
        return reply(request, groups=(group,))

    return answer


def test_a_group_of_the_consumer_protocol_has_members_with_partitions():
    brokers = Brokers({"ConsumerGroupDescribe": consumer_group()})
    member = Member("m", "i", "c", "/h", (("t", 0), ("t", 2)))
    assert brokers.run(describe_group(brokers.cluster(), "g")) == Group(
        "g", "consumer", "Stable", "uniform", (member,)
    )
    assert not brokers.requests("DescribeGroups")


@pytest.mark.parametrize(
    "last_versions", [{}, CLASSIC_ONLY], ids=["a broker with both protocols", "an earlier broker"]
)
def test_a_classic_group_is_described_too(last_versions):
    answers = {
        "ConsumerGroupDescribe": consumer_group(ErrorCode.group_id_not_found),
        "DescribeGroups": classic_group(assigned(t=(0, 2))),
    }
    brokers = Brokers(answers, last_versions=last_versions)
    member = Member("m", None, "c", "/h", (("t", 0), ("t", 2)))
    assert brokers.run(describe_group(brokers.cluster(), "g")) == Group(
        "g", "classic", "Stable", "range", (member,)
    )


@pytest.mark.parametrize(
    ("assignment", "protocol_type"),
    [(b"", "consumer"), (b"\0", "consumer"), (b"\0\0\xff\xff", "consumer"), (assigned(t=(0,)), "connect")],
    ids=["empty", "cut", "not decodable", "not of a consumer"],
)
def test_an_assignment_that_is_not_one_of_a_consumer_has_no_partitions(assignment, protocol_type):
    """The member chooses these bytes."""
    brokers = Brokers(
        {"DescribeGroups": classic_group(assignment, protocol_type)}, last_versions=CLASSIC_ONLY
    )
    (member,) = brokers.run(describe_group(brokers.cluster(), "g")).members
    assert member.partitions == ()


def test_a_refused_group_is_named():
    brokers = Brokers({"ConsumerGroupDescribe": consumer_group(ErrorCode.group_authorization_failed)})
    with pytest.raises(RefusedError, match=r"^group 'g': no right"):
        brokers.run(describe_group(brokers.cluster(), "g"))


def offsets(*partitions, code=NONE):
    """An answer with these (partition, offset, error code) of the topic t, in both forms of the response."""

    def answer(request):
        suffix = "s" if request.__version__ >= 8 else ""
        topic = part(
            request,
            f"OffsetFetchResponseTopic{suffix}",
            name="t",
            partitions=tuple(
                part(
                    request,
                    f"OffsetFetchResponsePartition{suffix}",
                    partition_index=index,
                    committed_offset=offset,
                    committed_leader_epoch=4,
                    metadata=None,
                    error_code=error,
                )
                for index, offset, error in partitions
            ),
        )
        if suffix:
            group = part(request, "OffsetFetchResponseGroup", group_id="g", topics=(topic,), error_code=code)
            return reply(request, groups=(group,))
        return reply(request, topics=(topic,), error_code=code)

    return answer


@pytest.mark.parametrize("last_versions", [{}, {ApiKey.OFFSET_FETCH: 7}], ids=["several groups", "one group"])
def test_committed_offsets_are_returned_without_partitions_that_have_none(last_versions):
    brokers = Brokers({"OffsetFetch": offsets((0, 5, NONE), (1, -1, NONE))}, last_versions=last_versions)
    found = brokers.run(committed_offsets(brokers.cluster(), "g", stable=True))
    assert found == {("t", 0): CommittedOffset(5, 4, "")}
    assert brokers.request("OffsetFetch").require_stable


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (ErrorCode.unstable_offset_commit, "a transaction with offsets of group 'g' is open"),
        (ErrorCode.stale_member_epoch, "the epoch of the member of group 'g' has changed"),
    ],
)
def test_offsets_that_are_not_settled_are_asked_for_again(code, what):
    brokers = Brokers({"OffsetFetch": [offsets((0, 5, code)), offsets((0, 6, NONE))]})
    assert brokers.run(committed_offsets(brokers.cluster(), "g")) == {("t", 0): CommittedOffset(6, 4, "")}
    brokers = Brokers({"OffsetFetch": offsets((0, 5, code))})
    with pytest.raises(UnavailableError, match=what):
        brokers.run(committed_offsets(brokers.cluster(), "g"))


def test_offsets_that_may_not_be_seen_are_refused():
    brokers = Brokers({"OffsetFetch": offsets(code=ErrorCode.group_authorization_failed)})
    with pytest.raises(
        RefusedError, match=r"^the offsets of group 'g': this user lacks a right to the group"
    ):
        brokers.run(committed_offsets(brokers.cluster(), "g"))


def results(kind, *codes, **fields):
    """An answer to OffsetCommit or OffsetDelete with an error code for each partition of the topic t."""

    def answer(request):
        partitions = tuple(
            part(request, f"{kind}ResponsePartition", partition_index=index, error_code=code)
            for index, code in enumerate(codes)
        )
        return reply(
            request,
            topics=(part(request, f"{kind}ResponseTopic", name="t", partitions=partitions),),
            **fields,
        )

    return answer


def test_offsets_are_committed_for_a_group_without_members():
    brokers = Brokers({"OffsetCommit": results("OffsetCommit", NONE, NONE)})
    brokers.run(commit_offsets(brokers.cluster(), "g", {("t", 0): 5, ("t", 1): CommittedOffset(6, 2, "m")}))
    request = brokers.request("OffsetCommit")
    assert (request.group_id, request.generation_id_or_member_epoch, request.member_id) == ("g", -1, "")
    found = [
        (one.partition_index, one.committed_offset, one.committed_leader_epoch, one.committed_metadata)
        for one in request.topics[0].partitions
    ]
    assert found == [(0, 5, -1, ""), (1, 6, 2, "m")]


def test_a_partition_whose_offset_is_refused_is_named():
    brokers = Brokers({"OffsetCommit": results("OffsetCommit", NONE, ErrorCode.unknown_member_id)})
    with pytest.raises(RefusedError, match=r"^the offset of t-1 of group 'g': unknown member id"):
        brokers.run(commit_offsets(brokers.cluster(), "g", {("t", 0): 5, ("t", 1): 6}))


def test_what_a_response_has_accepted_is_no_longer_to_be_committed():
    brokers = Brokers({"OffsetCommit": results("OffsetCommit", NONE, ErrorCode.offset_metadata_too_large)})
    with pytest.raises(RefusedError):
        brokers.run(commit_offsets(brokers.cluster(), "g", {("t", 0): 5, ("t", 1): 6}))
    response = brokers.answers["OffsetCommit"](brokers.request("OffsetCommit"))
    left = {("t", 0): 5, ("t", 1): 6}
    assert remove_committed(response, left) == [(ErrorCode.offset_metadata_too_large, "t-1")]
    assert left == {("t", 1): 6}


def test_offsets_are_deleted():
    brokers = Brokers({"OffsetDelete": results("OffsetDelete", NONE, NONE, error_code=NONE)})
    brokers.run(delete_offsets(brokers.cluster(), "g", [("t", 0), ("t", 1)]))
    assert [one.partition_index for one in brokers.request("OffsetDelete").topics[0].partitions] == [0, 1]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            results("OffsetDelete", error_code=ErrorCode.group_id_not_found),
            "^deleting offsets of group 'g': group id",
        ),
        (
            results("OffsetDelete", ErrorCode.group_subscribed_to_topic, error_code=NONE),
            "^deleting the offset of t-0 of group 'g': group subscribed to topic",
        ),
    ],
)
def test_offsets_that_cannot_be_deleted_are_named(answer, message):
    brokers = Brokers({"OffsetDelete": answer})
    with pytest.raises(RefusedError, match=message):
        brokers.run(delete_offsets(brokers.cluster(), "g", [("t", 0)]))


def test_a_group_is_deleted_by_its_coordinator_or_refused_by_name():
    def deleted(code):
        def answer(request):
            return reply(
                request, results=(part(request, "DeletableGroupResult", group_id="g", error_code=code),)
            )

        return answer

    brokers = Brokers({"DeleteGroups": deleted(NONE)})
    brokers.run(delete_group(brokers.cluster(), "g"))
    assert brokers.request("DeleteGroups").groups_names == ("g",)
    brokers = Brokers({"DeleteGroups": deleted(ErrorCode.non_empty_group)})
    with pytest.raises(RefusedError, match=r"^deleting group 'g': non empty group"):
        brokers.run(delete_group(brokers.cluster(), "g"))
