"""DescribeCut (10004): the offsets of a cut through all partitions of some topics.

A cut is a line through all partitions between two commits. It consists of a commit sequence R and of one offset for
each partition: all commits up to R stand before these offsets, and all later commits behind them.

Behaviour: a request names an R that is *resolved*, or asks for the last resolved one. R is resolved when every commit
up to R has all its markers durable in all partitions. A reader that reads from one cut to another therefore sees every
transaction whole or not at all. The last resolved R never decreases. Each transaction group numbers its own commits, so
all topics of a request must belong to one group. A record outside transactions is before the cut if it stands before
the first commit after R in its partition; two such records that were written together may be on different sides of a
cut. After a start, the last resolved R is unknown until all partitions are open, because a partition may have lost
markers in a crash. Until then the response is COORDINATOR_LOAD_IN_PROGRESS, or, if a partition is offline,
KAFKA_STORAGE_ERROR with the partition's name. A request that names an R from before the start gets the same response as
before.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32, i64

from stablelog.broker.apis import Broker, Context, Operation, ResourceType, ServedApi, error_code_for
from stablelog.broker.loop.turns import in_turns
from stablelog.broker.topics.partition_state import COMMON, PARTITION_ERRORS, PartitionState
from stablelog.broker.transactions.transaction_group import TransactionGroup
from stablelog.commit_order.view import CommitOrder
from stablelog.errors import RefusedError
from stablelog.security.api_rights import LEFT_OUT, on_cluster, on_topic, on_transactional_id
from stablelog.wire.api import ApiKey
from stablelog.wire.extension.transaction_groups import DEFAULT_GROUP, group_in_words

PARTITION_CODES = COMMON
API = ServedApi(
    ApiKey.DESCRIBE_CUT,
    first_version=0,
    last_version=0,
    has_long_response=True,
    rights=(
        on_topic(Operation.DESCRIBE),
        on_cluster(Operation.DESCRIBE, "the cluster, without topics"),
        on_transactional_id(Operation.DESCRIBE, "each transaction that the cut waits for", LEFT_OUT),
    ),
    codes={"": PARTITION_CODES},
)
if TYPE_CHECKING:
    from stablelog.wire.extension import cut as messages
else:
    messages = API.messages

NAMED_MAX = 5  # The maximum number of partitions that the message of a refused request names.


def _topic_views(broker: Broker, name: str) -> list[CommitOrder]:
    """Return the partitions of a topic, by partition index, each as the object through which it is read in commit order
    (its *view*).

    Raises:
        RefusedError: the topic does not exist or is not commit-ordered (created with `stablelog.order=commit`), or one
            of its partitions is not open.
    """
    views: list[CommitOrder] = []
    for index in range(broker.topics.named(name).partition_count):
        partition = broker.partitions.require(name, index, PARTITION_CODES)
        if not isinstance(partition.view, CommitOrder):
            raise RefusedError(
                ErrorCode.invalid_request,
                f"topic {name!r} is not commit-ordered, so its transactions may overlap: a cut (a "
                "position between two commits) needs topics that were created with stablelog.order=commit",
            )
        views.append(partition.view)
    return views


def _partition_cut(index: int, view: CommitOrder, commit_sequence: int) -> "messages.CutPartition":
    """Return the offset of the cut in one partition: the commit with the number `commit_sequence` and all earlier ones
    stand before this offset, and all later ones behind it.

    Raises:
        DamageError: a commit index of the partition (the list of a segment's transactions) is damaged.
        UnavailableError: a commit index cannot be read.
    """
    removed = view.removed_sequence()
    return messages.CutPartition(
        partition_index=i32(index),
        offset=i64(view.offset_after(commit_sequence)),
        removed_commit_sequence=i64(messages.NOT_KNOWN if removed is None else removed),
        torn_commit_sequence=i64(view.torn_sequence()),
    )


def _common_group(broker: Broker, request: "messages.DescribeCutRequest") -> str:
    """Return the transaction group (its commits are numbered together) to which all topics of the request belong.

    Raises:
        RefusedError: the topics belong to several transaction groups, or to another group than the request names.
    """
    group = request.group
    for name in request.topics:
        topic = broker.topics.get(name)
        if topic is None:
            continue
        if group is not None and topic.group != group:
            raise RefusedError(
                ErrorCode.invalid_request,
                f"topic {name!r} belongs to {group_in_words(topic.group)}, not to "
                f"{group_in_words(group)}: each group numbers its own commits, so all topics of a cut (a "
                "position between two commits) must belong to one group",
            )
        group = topic.group
    return DEFAULT_GROUP if group is None else group


def _cut_sequence(
    broker: Broker, numbers: TransactionGroup | None, group: str, asked: int, context: Context
) -> int:
    """Return the commit sequence (number of a commit) of the requested cut: `asked`, or that of the last resolved
    commit if `asked` is RESOLVED. The cut divides every partition between this commit and the next one.

    A commit is resolved if all its markers, and all markers of every earlier commit of the group, are durable.

    Args:
        broker: the broker.
        numbers: the transaction group (topics with one order of commits) whose coordinator numbers the commits; None if
            no transaction of the group has begun yet.
        group: the name of the group.
        asked: the commit sequence that the request names, or RESOLVED.
        context: the client.

    Raises:
        RefusedError: the commit is not resolved, or the broker does not know yet whether it is.
    """
    resolved = 0 if numbers is None else numbers.resolved_commit_sequence
    last = 0 if numbers is None else numbers.coordinator.table.sequences.last
    if 0 <= asked <= resolved:
        return asked
    unsettled = [] if numbers is None else numbers.unopened_partitions_with_commits()
    if unsettled and (asked == messages.RESOLVED or 0 <= asked <= last):
        offline = [
            target for target in unsettled if broker.partitions.state(*target) is PartitionState.OFFLINE
        ]
        known = [
            target
            for target in sorted(offline or unsettled)
            if context.allows(Operation.DESCRIBE, ResourceType.TOPIC, target[0], is_logged=False)
        ]
        named = [f"{topic}-{index}" for topic, index in known[:NAMED_MAX]] or ["a partition"]
        more = len(offline or unsettled) - len(named)
        raise RefusedError(
            ErrorCode.kafka_storage_error if offline else ErrorCode.coordinator_load_in_progress,
            f"the last resolved commit of {group_in_words(group)} is not known: {', '.join(named)}"
            f"{f' and {more} more' if more else ''} may lack a commit marker, and "
            + ("cannot be opened; the broker's log says why" if offline else "will be opened soon"),
        )
    if asked == messages.RESOLVED:
        return resolved
    raise RefusedError(
        ErrorCode.invalid_request,
        f"commit {asked} of {group_in_words(group)} cannot be read yet: not all markers of the "
        f"commits up to this number are durable. The last commit that can be read is {resolved}",
    )


async def handle(
    broker: Broker, request: "messages.DescribeCutRequest", context: Context
) -> "messages.DescribeCutResponse":
    """Return the commit sequence of the cut (the number of the last commit before it), and for each partition the
    offset at which the cut divides it: earlier records are before the cut.

    If a commit index (the list of a segment's transactions) is in the object store and not in the broker's cache, it is
    loaded, and the response is computed again from the beginning.
    """
    try:
        async for name in in_turns(request.topics if context.access is not None else ()):
            context.require(Operation.DESCRIBE, ResourceType.TOPIC, name)
        if not request.topics:
            context.require(Operation.DESCRIBE, ResourceType.CLUSTER)
        return await broker.tiering.reads.call_when_loaded(lambda: _describe_cut(broker, request, context))
    except PARTITION_ERRORS as error:
        code = error_code_for(broker, error, PARTITION_CODES)
        return messages.DescribeCutResponse(error_code=code, error_message=str(error))


def _describe_cut(
    broker: Broker, request: "messages.DescribeCutRequest", context: Context
) -> "messages.DescribeCutResponse":
    """Compute the response about a cut (a position between two commits in all partitions) from the present state,
    without waiting for the object store.

    The function contains no await between the reads of the commit sequence (the number of the last commit before the
    cut) and of the offsets, so that both belong to the same moment.
    """
    # A topic that is named several times is returned once.
    names = list(dict.fromkeys(request.topics))
    group = _common_group(broker, request)
    numbers = broker.transactions.get(group)
    found = {name: _topic_views(broker, name) for name in names}
    wanted = _cut_sequence(broker, numbers, group, request.commit_sequence, context)
    topics = tuple(
        messages.CutTopic(
            name=name,
            partitions=tuple(_partition_cut(index, view, wanted) for index, view in enumerate(found[name])),
        )
        for name in names
    )
    holders = tuple(
        messages.CutHolder(
            commit_sequence=i64(sequence),
            transactional_id=transactional_id,
            topic=topic,
            partition_index=i32(partition),
        )
        for sequence, transactional_id, topic, partition in (
            () if numbers is None else numbers.missing_commit_markers()
        )
        if context.allows(
            Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id, is_logged=False
        )
        and context.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic, is_logged=False)
    )
    return messages.DescribeCutResponse(
        error_code=ErrorCode.none,
        group=group,
        commit_sequence=i64(wanted),
        last_commit_sequence=i64(0 if numbers is None else numbers.coordinator.table.sequences.last),
        topics=topics,
        holders=holders,
    )
