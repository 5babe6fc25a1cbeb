"""Hand-written conversions between versions of the few messages whose versions differ by more than added or removed
fields.

The module also maps errors that an old version does not know to errors that it knows.
"""

from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from stablelog.wire.api import ApiKey
from stablelog.wire.versions import adapt

RETENTION_UNIT = timedelta(milliseconds=1)


def reshape_request(api_key: int, version: int, request: Any, newest: Any) -> Any:
    """Convert a request to the newest version, if copying the fields of equal names does not suffice.

    Args:
        api_key: the API of the request.
        version: the version of `request`.
        request: the decoded request, in its own version.
        newest: the module with the classes of the newest version.

    Returns:
        The converted request, or None if copying the fields of equal names suffices.
    """
    match api_key:
        case 3 if 8 <= version <= 10:  # Metadata: these versions can ask for the operations of the cluster.
            from stablelog.wire.cluster_metadata import ClusterMetadataRequest  # of no use to the commands

            return adapt(request, ClusterMetadataRequest)
        case 8 if version <= 4:  # OffsetCommit: up to v4 the request has a retention time.
            from stablelog.wire.timed_commit import TimedOffsetCommitRequest  # of no use to the commands

            return TimedOffsetCommitRequest(
                group_id=request.group_id,
                generation_id_or_member_epoch=request.generation_id_or_member_epoch,
                member_id=request.member_id,
                topics=tuple(adapt(topic, newest.OffsetCommitRequestTopic) for topic in request.topics),
                retention_ms=request.retention_time // RETENTION_UNIT,
            )
        case 9 if version < 8:  # OffsetFetch: since v8 a request names several groups.
            topics = request.topics
            if topics is not None:
                topics = tuple(
                    newest.OffsetFetchRequestTopics(name=t.name, partition_indexes=t.partition_indexes)
                    for t in topics
                )
                if version < 2 and not topics:
                    topics = None
            group = newest.OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
            return newest.OffsetFetchRequest(
                groups=(group,), require_stable=getattr(request, "require_stable", False)
            )
        case 10 if version < 4:  # FindCoordinator: since v4 a request has several keys.
            return newest.FindCoordinatorRequest(
                key_type=getattr(request, "key_type", 0), coordinator_keys=(request.key,)
            )
        case 13 if version < 3:  # LeaveGroup: since v3 a request names several members.
            member = newest.MemberIdentity(member_id=request.member_id)
            return newest.LeaveGroupRequest(group_id=request.group_id, members=(member,))
        case 20 if version < 6:  # DeleteTopics: since v6 a request names topics by name or id.
            topics = tuple(newest.DeleteTopicState(name=name, topic_id=None) for name in request.topic_names)
            return newest.DeleteTopicsRequest(topics=topics, timeout=request.timeout)
        case 24 if version < 4:  # AddPartitionsToTxn: since v4 a request has several transactions.
            transaction = newest.AddPartitionsToTxnTransaction(
                transactional_id=request.v3_and_below_transactional_id,
                producer_id=request.v3_and_below_producer_id,
                producer_epoch=request.v3_and_below_producer_epoch,
                verify_only=False,
                topics=tuple(
                    newest.AddPartitionsToTxnTopic(name=t.name, partitions=t.partitions)
                    for t in request.v3_and_below_topics
                ),
            )
            return newest.AddPartitionsToTxnRequest(transactions=(transaction,))
    return None


def reshape_response(api_key: int, version: int, response: Any, older: Any) -> Any:
    """Convert a response of an API's newest version to an older version, whose module of classes is `older`. Return
    None if copying the fields of equal names suffices.
    """
    match api_key:
        case 9 if version < 8:
            group = response.groups[0]
            topics = tuple(
                older.OffsetFetchResponseTopic(
                    name=t.name,
                    partitions=tuple(adapt(p, older.OffsetFetchResponsePartition) for p in t.partitions),
                )
                for t in group.topics
            )
            fields: dict[str, Any] = {"topics": topics}
            if version >= 2:
                fields["error_code"] = group.error_code
            if version >= 3:
                fields["throttle_time"] = response.throttle_time
            return older.OffsetFetchResponse(**fields)
        case 10 if version < 4:
            found = response.coordinators[0]
            fields = {
                "error_code": found.error_code,
                "node_id": found.node_id,
                "host": found.host,
                "port": found.port,
            }
            if version >= 1:
                fields |= {"throttle_time": response.throttle_time, "error_message": found.error_message}
            return older.FindCoordinatorResponse(**fields)
        case 13 if version < 3:
            code = response.error_code
            if code is ErrorCode.none and response.members:
                code = response.members[0].error_code
            fields = {"error_code": code}
            if version >= 1:
                fields["throttle_time"] = response.throttle_time
            return older.LeaveGroupResponse(**fields)
        case 24 if version < 4:
            topics = tuple(
                adapt(t, older.AddPartitionsToTxnTopicResult)
                for t in response.results_by_transaction[0].topic_results
            )
            return older.AddPartitionsToTxnResponse(
                throttle_time=response.throttle_time, results_by_topic_v3_and_below=topics
            )
    return None


# (API, error) -> (the first version that knows the error, the error that older versions get)
_OLD_ERRORS: dict[tuple[int, ErrorCode], tuple[int, ErrorCode]] = {
    (ApiKey.INIT_PRODUCER_ID, ErrorCode.producer_fenced): (4, ErrorCode.invalid_producer_epoch),
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.producer_fenced): (2, ErrorCode.invalid_producer_epoch),
    (ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.producer_fenced): (2, ErrorCode.invalid_producer_epoch),
    (ApiKey.END_TXN, ErrorCode.producer_fenced): (2, ErrorCode.invalid_producer_epoch),
    (ApiKey.PRODUCE, ErrorCode.transaction_abortable): (11, ErrorCode.invalid_txn_state),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.transaction_abortable): (4, ErrorCode.invalid_txn_state),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.producer_fenced): (3, ErrorCode.invalid_producer_epoch),
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.transaction_abortable): (5, ErrorCode.invalid_txn_state),
    (ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.transaction_abortable): (4, ErrorCode.invalid_txn_state),
    (ApiKey.END_TXN, ErrorCode.transaction_abortable): (4, ErrorCode.invalid_txn_state),
}
APIS_WITH_NEWER_ERRORS = frozenset(api_key for api_key, _ in _OLD_ERRORS)


def error_for(api_key: int, version: int, error: ErrorCode) -> ErrorCode:
    """Return `error` if clients of this version of the API know this code; otherwise the older code that replaces
    it.
    """
    first_version, instead = _OLD_ERRORS.get((api_key, error), (0, error))
    return error if version >= first_version else instead
