"""The messages whose versions differ by more than added or removed fields, and the errors that old versions lack."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from stablelog.wire.api import ApiKey
from stablelog.wire.message_classes import Messages
from stablelog.wire.shapes import APIS_WITH_NEWER_ERRORS, error_for, reshape_request, reshape_response
from tests.declared_apis import APIS
from tests.scale import examples

SECOND = timedelta(seconds=1)


def newest(key):
    return Messages(key, APIS[key].last_version)


def request_in_newest(api, version, **fields):
    """What becomes of a request of this version with these fields."""
    old = Messages(api, version)
    request = getattr(old, f"{api.message_name}Request")(**fields)
    return reshape_request(api, version, request, newest(api))


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [8, 9, 10])
def test_metadata_keeps_the_question_for_the_rights_to_the_cluster(version):
    found = request_in_newest(
        ApiKey.METADATA,
        version,
        topics=None,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=False,
    )
    assert (found.topics, found.include_cluster_authorized_operations) == (None, True)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_offset_commit_keeps_the_retention_time_in_milliseconds(version):
    old = Messages(ApiKey.OFFSET_COMMIT, version)
    part = old.OffsetCommitRequestPartition(partition_index=3, committed_offset=9, committed_metadata="x")
    topic = old.OffsetCommitRequestTopic(name="t", partitions=(part,))
    found = request_in_newest(
        ApiKey.OFFSET_COMMIT,
        version,
        group_id="g",
        generation_id_or_member_epoch=2,
        member_id="m",
        retention_time=90 * SECOND,
        topics=(topic,),
    )
    assert (found.group_id, found.generation_id_or_member_epoch, found.member_id) == ("g", 2, "m")
    assert found.retention_ms == 90_000
    ((read,),) = [topic.partitions for topic in found.topics]
    assert (read.partition_index, read.committed_offset, read.committed_metadata) == (3, 9, "x")


@pytest.mark.parametrize("version", range(1, 8))
def test_offset_fetch_of_one_group_becomes_that_of_several(version):
    old = Messages(ApiKey.OFFSET_FETCH, version)
    topic = old.OffsetFetchRequestTopic(name="t", partition_indexes=(1, 2))
    stable = {"require_stable": True} if version >= 7 else {}
    found = request_in_newest(ApiKey.OFFSET_FETCH, version, group_id="g", topics=(topic,), **stable)
    (group,) = found.groups
    assert group.group_id == "g"
    assert [(one.name, one.partition_indexes) for one in group.topics] == [("t", (1, 2))]
    assert found.require_stable is (version >= 7)


@pytest.mark.parametrize(
    ("version", "topics", "read"), [(1, (), None), (2, (), ()), (2, None, None), (7, None, None)]
)
def test_offset_fetch_of_no_topic_means_all_topics_only_before_version_2(version, topics, read):
    stable = {"require_stable": False} if version >= 7 else {}
    found = request_in_newest(ApiKey.OFFSET_FETCH, version, group_id="g", topics=topics, **stable)
    assert found.groups[0].topics == read


@pytest.mark.parametrize(("version", "key_type"), [(0, 0), (1, 1), (3, 1)])
def test_find_coordinator_of_one_key_becomes_that_of_several(version, key_type):
    fields = {"key_type": 1} if version >= 1 else {}
    found = request_in_newest(ApiKey.FIND_COORDINATOR, version, key="tx", **fields)
    assert (found.key_type, found.coordinator_keys) == (key_type, ("tx",))


def test_leave_group_of_one_member_becomes_that_of_several():
    found = request_in_newest(ApiKey.LEAVE_GROUP, 2, group_id="g", member_id="m")
    assert (found.group_id, [one.member_id for one in found.members]) == ("g", ["m"])


def test_delete_topics_by_name_becomes_that_by_name_or_id():
    found = request_in_newest(ApiKey.DELETE_TOPICS, 5, topic_names=("a", "b"), timeout=SECOND)
    assert [(one.name, one.topic_id) for one in found.topics] == [("a", None), ("b", None)]
    assert found.timeout == SECOND


def test_partitions_for_one_transaction_become_those_for_several():
    old = Messages(ApiKey.ADD_PARTITIONS_TO_TXN, 3)
    topic = old.AddPartitionsToTxnTopic(name="t", partitions=(0, 4))
    found = request_in_newest(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        v3_and_below_transactional_id="tx",
        v3_and_below_producer_id=7,
        v3_and_below_producer_epoch=2,
        v3_and_below_topics=(topic,),
    )
    (transaction,) = found.transactions
    assert (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch) == ("tx", 7, 2)
    assert transaction.verify_only is False
    assert [(one.name, one.partitions) for one in transaction.topics] == [("t", (0, 4))]


# The first version from which the fields of equal names are enough, by API.
SAME_SHAPE_FROM = {
    ApiKey.OFFSET_COMMIT: 5,
    ApiKey.OFFSET_FETCH: 8,
    ApiKey.FIND_COORDINATOR: 4,
    ApiKey.LEAVE_GROUP: 3,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.ADD_PARTITIONS_TO_TXN: 4,
    ApiKey.METADATA: 11,
    ApiKey.HEARTBEAT: 0,
}


@pytest.mark.parametrize(("key", "version"), SAME_SHAPE_FROM.items(), ids=str)
def test_a_message_of_the_newest_shape_is_left_to_the_copy_of_its_fields(key, version):
    assert reshape_request(key, version, object(), None) is None
    assert reshape_response(key, version, object(), None) is None


# -- responses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 8))
def test_offset_fetch_answers_for_the_one_group(version):
    new = newest(ApiKey.OFFSET_FETCH)
    part = new.OffsetFetchResponsePartitions(
        partition_index=3, committed_offset=9, metadata="x", error_code=ErrorCode.none
    )
    group = new.OffsetFetchResponseGroup(
        group_id="g",
        topics=(new.OffsetFetchResponseTopics(name="t", partitions=(part,)),),
        error_code=ErrorCode.not_coordinator,
    )
    response = new.OffsetFetchResponse(throttle_time=SECOND, groups=(group,))
    found = reshape_response(ApiKey.OFFSET_FETCH, version, response, Messages(ApiKey.OFFSET_FETCH, version))
    ((topic,), ((read,),)) = found.topics, [topic.partitions for topic in found.topics]
    assert (topic.name, read.partition_index, read.committed_offset, read.metadata) == ("t", 3, 9, "x")
    if version >= 2:
        assert found.error_code is ErrorCode.not_coordinator
    if version >= 3:
        assert found.throttle_time == SECOND


@pytest.mark.parametrize("version", range(4))
def test_find_coordinator_answers_for_the_one_key(version):
    new = newest(ApiKey.FIND_COORDINATOR)
    one = new.Coordinator(
        key="tx", node_id=4, host="here", port=9092, error_code=ErrorCode.invalid_request, error_message="no"
    )
    response = new.FindCoordinatorResponse(throttle_time=SECOND, coordinators=(one,))
    older = Messages(ApiKey.FIND_COORDINATOR, version)
    found = reshape_response(ApiKey.FIND_COORDINATOR, version, response, older)
    assert (found.node_id, found.host, found.port, found.error_code) == (
        4,
        "here",
        9092,
        ErrorCode.invalid_request,
    )
    if version >= 1:
        assert (found.error_message, found.throttle_time) == ("no", SECOND)


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize(
    ("of_group", "of_member", "read"),
    [
        (ErrorCode.none, ErrorCode.unknown_member_id, ErrorCode.unknown_member_id),
        (ErrorCode.coordinator_not_available, None, ErrorCode.coordinator_not_available),
        (ErrorCode.none, ErrorCode.none, ErrorCode.none),
        (ErrorCode.none, None, ErrorCode.none),
    ],
)
def test_leave_group_answers_with_the_error_of_the_group_or_else_of_the_member(
    version, of_group, of_member, read
):
    new = newest(ApiKey.LEAVE_GROUP)
    members = ()
    if of_member is not None:
        members = (new.MemberResponse(member_id="m", group_instance_id=None, error_code=of_member),)
    response = new.LeaveGroupResponse(throttle_time=SECOND, error_code=of_group, members=members)
    found = reshape_response(ApiKey.LEAVE_GROUP, version, response, Messages(ApiKey.LEAVE_GROUP, version))
    assert found.error_code is read
    if version >= 1:
        assert found.throttle_time == SECOND


def test_partitions_of_a_transaction_answer_for_the_one_transaction():
    new = newest(ApiKey.ADD_PARTITIONS_TO_TXN)
    part = new.AddPartitionsToTxnPartitionResult(
        partition_index=4, partition_error_code=ErrorCode.invalid_txn_state
    )
    topic = new.AddPartitionsToTxnTopicResult(name="t", results_by_partition=(part,))
    response = new.AddPartitionsToTxnResponse(
        throttle_time=SECOND,
        error_code=ErrorCode.none,
        results_by_transaction=(new.AddPartitionsToTxnResult(transactional_id="tx", topic_results=(topic,)),),
    )
    older = Messages(ApiKey.ADD_PARTITIONS_TO_TXN, 3)
    found = reshape_response(ApiKey.ADD_PARTITIONS_TO_TXN, 3, response, older)
    ((read,),) = [topic.results_by_partition for topic in found.results_by_topic_v3_and_below]
    assert (read.partition_index, read.partition_error_code) == (4, ErrorCode.invalid_txn_state)
    assert found.throttle_time == SECOND


# -- errors ------------------------------------------------------------------------------------------------------------


FENCED, ABORTABLE = ErrorCode.producer_fenced, ErrorCode.transaction_abortable
# The first version of each API that knows an error (KIP-588, KIP-890).
KNOWN_FROM = [
    (ApiKey.INIT_PRODUCER_ID, FENCED, 4),
    (ApiKey.ADD_PARTITIONS_TO_TXN, FENCED, 2),
    (ApiKey.ADD_OFFSETS_TO_TXN, FENCED, 2),
    (ApiKey.END_TXN, FENCED, 2),
    (ApiKey.TXN_OFFSET_COMMIT, FENCED, 3),
    (ApiKey.PRODUCE, ABORTABLE, 11),
    (ApiKey.TXN_OFFSET_COMMIT, ABORTABLE, 4),
    (ApiKey.ADD_PARTITIONS_TO_TXN, ABORTABLE, 5),
    (ApiKey.ADD_OFFSETS_TO_TXN, ABORTABLE, 4),
    (ApiKey.END_TXN, ABORTABLE, 4),
]
OLDER = {FENCED: ErrorCode.invalid_producer_epoch, ABORTABLE: ErrorCode.invalid_txn_state}


@pytest.mark.parametrize(("key", "error", "first_version"), KNOWN_FROM)
def test_a_version_that_does_not_know_an_error_gets_the_older_one(key, error, first_version):
    assert error_for(key, first_version, error) is error
    assert error_for(key, first_version - 1, error) is OLDER[error]


def test_an_api_whose_versions_all_know_an_error_gets_it():
    assert error_for(ApiKey.FETCH, 0, FENCED) is FENCED


@settings(max_examples=examples(25))
@given(st.sampled_from(sorted(APIS)), st.sampled_from(ErrorCode))
def test_the_newest_version_of_an_api_knows_every_error(key, error):
    assert error_for(key, APIS[key].last_version, error) is error


@settings(max_examples=examples(25))
@given(st.sampled_from(sorted(APIS)), st.integers(0, 20), st.sampled_from(ErrorCode))
def test_only_the_apis_that_are_named_have_errors_for_newer_versions(key, version, error):
    assert key in APIS_WITH_NEWER_ERRORS or error_for(key, version, error) is error
