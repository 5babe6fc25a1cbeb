"""DescribeCut (10004): where in every partition of some topics the transactions up to a commit sequence end.

Behaviour: every commit up to R has all its markers durable everywhere, so that no reader between two cuts sees a part
of a transaction. R can be asked for by number, as long as it is resolved. Commits are numbered in each transaction
group, so the topics are of one. Records outside transactions that stand before the first later commit count as in the
cut; they promise nothing together.
"""

from typing import Any

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32, i64

from stablelog.broker.broker import Broker
from stablelog.broker.partition_state import CODES, PARTITION_ERRORS, PartitionState
from stablelog.errors import Refused
from stablelog.views.commit_ordered import CommitOrderedPartition
from stablelog.wire.extension.cut import (
    NOT_KNOWN,
    RESOLVED,
    CutHolder,
    CutPartition,
    CutTopic,
    DescribeCutRequest,
    DescribeCutResponse,
)
from stablelog.wire.extension.transaction_groups import DEFAULT_GROUP, group_in_words

PARTITION_CODES = CODES["DescribeCut"]


def _cut(broker: Broker, name: str, commit_sequence: int) -> CutTopic:
    """The cut through one topic.

    Raises:
        Refused: it is not there, not in commit order, or one of its partitions is not open.
        Corrupt: an index is damaged.
        Unavailable: an index cannot be read.
    """
    topic = broker.topics.get(name)
    if topic is None:
        raise PARTITION_CODES.refusal(PartitionState.UNKNOWN, f"there is no topic {name!r}")
    partitions = []
    for index in range(topic.partition_count):
        partition = broker.topics.partition(name, index, PARTITION_CODES)
        if not isinstance(partition, CommitOrderedPartition):
            raise Refused(
                ErrorCode.invalid_request,
                f"{name!r} is in the order of its writes, in which transactions lie across each other: a cut needs "
                "topics made with stablelog.order=commit",
            )
        removed = partition.view.removed_sequence()
        partitions.append(
            CutPartition(
                partition_index=i32(index),
                offset=i64(partition.view.offset_after(commit_sequence)),
                removed_commit_sequence=i64(NOT_KNOWN if removed is None else removed),
                torn_commit_sequence=i64(partition.view.torn_sequence()),
            )
        )
    return CutTopic(name=name, partitions=tuple(partitions))


def _group(broker: Broker, request: DescribeCutRequest) -> str:
    """The transaction group that all topics of the request belong to.

    Raises:
        Refused: they belong to several, or to another than the request names.
    """
    group = request.group
    for name in request.topics:
        topic = broker.topics.get(name)
        if topic is None:
            continue
        if group is not None and topic.group != group:
            raise Refused(
                ErrorCode.invalid_request,
                f"{name!r} belongs to {group_in_words(topic.group)}, not to {group_in_words(group)}: commits are numbered "
                "in each group, so that a cut goes through topics of one",
            )
        group = topic.group
    return DEFAULT_GROUP if group is None else group


async def handle(broker: Broker, request: DescribeCutRequest, _context: Any) -> DescribeCutResponse:
    """Answer. Nothing is awaited, so that R and all offsets are of one moment."""
    try:
        group = _group(broker, request)
        numbers = broker.transactions.get(group)
        resolved = 0 if numbers is None else numbers.resolved_commit_sequence
        last = 0 if numbers is None else numbers.coordinator.last_commit_sequence
        wanted = resolved if request.commit_sequence == RESOLVED else request.commit_sequence
        if not 0 <= wanted <= resolved:
            # What was resolved before a restart is again, as soon as the partitions are open.
            is_recovering = wanted <= last and numbers is not None and bool(numbers.coordinator.unsettled())
            raise Refused(
                ErrorCode.leader_not_available if is_recovering else ErrorCode.invalid_request,
                f"commit sequence {wanted} is not resolved in {group_in_words(group)}: {resolved} is the last one that is",
            )
        topics = tuple(_cut(broker, name, wanted) for name in request.topics)
    except PARTITION_ERRORS as error:
        return DescribeCutResponse(error_code=PARTITION_CODES.of_error(error), error_message=str(error))
    holders = tuple(
        CutHolder(
            commit_sequence=i64(sequence),
            transactional_id=transactional_id,
            topic=topic,
            partition_index=i32(partition),
        )
        for sequence, transactional_id, topic, partition in (() if numbers is None else numbers.unresolved())
    )
    return DescribeCutResponse(
        error_code=ErrorCode.none,
        group=group,
        commit_sequence=i64(wanted),
        last_commit_sequence=i64(last),
        topics=topics,
        holders=holders,
    )
