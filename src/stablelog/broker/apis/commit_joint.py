"""CommitJoint (10002): commit open transactions together, with one commit sequence (number of the commit), or decide
nothing.

Behaviour: the transactions of a joint commit are its children. If the request contains offsets of consumer groups, the
broker first writes them in one more child, which it begins itself. The offsets take effect with that child's commit
marker, as in any transaction. The commit is decided only after the offsets are durable. While the disk is full, the
broker accepts a request of this API only if it ends open transactions and begins none. So it then refuses a commit with
offsets, which begins a child, and a commit without an open child, which ends none. The response is sent when the
decision is durable and the markers of all children are written to their partitions. A repeated request, even after a
restart, gets the same response, in which `already` says that the version was committed before.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode
from kio.static.primitive import i64

from stablelog.broker.apis import (
    Broker,
    Context,
    Operation,
    ResourceType,
    ServedApi,
    check_no_missing_markers,
)
from stablelog.broker.apis.begin_joint import JOINT_RIGHT, require_joint
from stablelog.broker.durability.disk_reserve import WhileFull
from stablelog.broker.loop.turns import in_turns
from stablelog.broker.topic_names import OFFSETS_PARTITION
from stablelog.broker.topics.partition_state import NAMES_ONLY
from stablelog.broker.transactions.joint_commits import Decided, JointRequests
from stablelog.broker.transactions.transaction_group import TransactionGroup
from stablelog.coordinators.consumer_groups.answers import OffsetCommit
from stablelog.coordinators.transactions.joint.answers import ChildShown, JointAnswer
from stablelog.coordinators.transactions.joint.name_checks import check_child_count
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_group, on_topic
from stablelog.types import TopicPartition
from stablelog.wire.api import ApiKey
from stablelog.wire.extension.children import JointName

PARTITION_CODES = NAMES_ONLY
# While the disk is full, a request is served only if it ends an open transaction.
WHILE_FULL = WhileFull(
    ErrorCode.coordinator_load_in_progress,
    exception="A CommitJoint without `group_offsets` is served if it commits at least one open transaction, and so is a retry of it.",
)
API = ServedApi(
    ApiKey.COMMIT_JOINT,
    first_version=0,
    last_version=0,
    is_appending=True,
    rights=(
        JOINT_RIGHT,
        on_group(Operation.READ, "each group whose offsets are committed"),
        on_topic(Operation.READ, "each topic whose offsets are committed"),
    ),
    codes={"": PARTITION_CODES},
    while_full=WHILE_FULL,
)
if TYPE_CHECKING:
    from stablelog.wire.extension import joint as messages
else:
    messages = API.messages

NO_LEADER_EPOCH = -1
OFFSETS_AT_ONCE = 300  # The number of offsets that are written in one turn of the event loop.


def _offset_records(
    broker: Broker, group_offsets: "Sequence[messages.JointOffset]"
) -> list[tuple[bytes, bytes | None]]:
    """Return records for the offsets log (`__consumer_offsets`) that commit the offsets of the request, each as (key,
    value).

    Raises:
        RefusedError: an offset cannot be committed; the message names the group and the partition.
    """
    by_group: dict[str, dict[TopicPartition, OffsetCommit]] = defaultdict(dict)
    for asked in group_offsets:
        target = (asked.topic, asked.partition_index)
        code = PARTITION_CODES.code_for_state(broker.partitions.state(*target))
        if code is not None:
            raise RefusedError(
                code,
                f"the offset of group {asked.group_id!r} cannot be committed: partition "
                f"{asked.topic}-{asked.partition_index} does not exist or is not open yet. Check the name "
                "of the partition, or retry",
            )
        by_group[asked.group_id][target] = OffsetCommit(
            asked.committed_offset, NO_LEADER_EPOCH, asked.committed_metadata
        )
    records: list[tuple[bytes, bytes | None]] = []
    for group_id, commits in by_group.items():
        if not group_id:
            raise RefusedError(ErrorCode.invalid_group_id, "an offset in the request has an empty group id")
        decision = broker.groups.coordinator.txn_commit_offsets(group_id, commits, now_ms=broker.now_ms())
        for (topic_name, index), code in decision.answer.items():
            if code is not ErrorCode.none:
                raise RefusedError(
                    code,
                    f"the offset of group {group_id!r} for {topic_name}-{index} cannot be committed: {code.name}",
                )
        records += decision.records
    return records


async def _write_offsets(
    broker: Broker, group: TransactionGroup, request: "messages.CommitJointRequest", name: JointName
) -> ChildShown:
    """Write the offsets of the request in a child transaction that the broker begins, and wait until they are durable.

    Returns:
        The child transaction. The caller commits it together with the transactions that the request names.
    """
    groups = broker.groups
    child = group.apply(
        group.coordinator.joint.open_offsets(name, request.version, OFFSETS_PARTITION, now_ms=broker.now_ms())
    )
    try:
        await group.journal.wait_until_durable()
        for begin in range(0, len(request.group_offsets), OFFSETS_AT_ONCE):
            if begin:
                await asyncio.sleep(0)  # Let other tasks run.
            codes = group.coordinator.verify_partitions(*child, [OFFSETS_PARTITION])
            if codes[OFFSETS_PARTITION] is not ErrorCode.none:
                # The child that the broker began has ended by now: another request has decided this version of the
                # joint commit meanwhile. The caller's call of `joint.commit` then returns that decision.
                break
            records = _offset_records(broker, request.group_offsets[begin : begin + OFFSETS_AT_ONCE])
            groups.journal.append_transactional(records, child.producer_id, child.producer_epoch)
            groups.coordinator.txn_offsets_appended(child.producer_id, records, now_ms=broker.now_ms())
            groups.set_timer()
        await groups.journal.wait_until_durable()
    # Abort the child after any exception, even if the client has disconnected: otherwise the offsets would stay pending
    # until the child times out.
    except BaseException:
        _abort_offsets_child(broker, group, child)
        raise
    return child


def _abort_offsets_child(broker: Broker, group: TransactionGroup, child: ChildShown) -> None:
    group.apply(group.coordinator.force_abort(child.transactional_id, now_ms=broker.now_ms()))


async def _require_rights(request: "messages.CommitJointRequest", context: Context) -> None:
    """Check that the client may write each child (one of the transactions to commit together) of the joint commit, and
    commit each offset in the request.

    Raises:
        RefusedError: the client may not do one of these. The error has the error code for that type of resource.
    """
    await require_joint(
        context, request.group, request.key, [child.transactional_id for child in request.children]
    )
    if context.access is not None:
        async for offset in in_turns(request.group_offsets):
            context.require(Operation.READ, ResourceType.GROUP, offset.group_id)
            context.require(Operation.READ, ResourceType.TOPIC, offset.topic)


async def _commit_children(
    broker: Broker, request: "messages.CommitJointRequest", context: Context
) -> Decided:
    await _require_rights(request, context)
    group = broker.transactions.group_for_joint_commit(request.group, WHILE_FULL)
    name = JointName(request.group, request.key)
    check_child_count(len(request.children))
    joint = JointRequests(group, name, request.version, broker.runtime)
    children = [
        ChildShown(c.transactional_id, c.producer_id, c.producer_epoch)
        async for c in in_turns(request.children)
    ]
    await group.wait_for_joint_commit()
    offsets: ChildShown | None = None
    is_answered = group.coordinator.joint.check_commit(name, request.version, request.run) is not None
    if broker.reserve.is_full and not is_answered:
        ends_some = not request.group_offsets and await joint.has_open(children)
        if not ends_some:
            broker.reserve.check(WHILE_FULL)
    if request.group_offsets and not is_answered:
        check_no_missing_markers(broker, OFFSETS_PARTITION, ErrorCode.coordinator_load_in_progress)
        offsets = await _write_offsets(broker, group, request, name)
        children.append(offsets)
    try:
        decided = await joint.commit(request, children)
    except BaseException:
        if offsets is not None:
            _abort_offsets_child(broker, group, offsets)
        raise
    if offsets is not None and decided.answer.error is not ErrorCode.none:
        _abort_offsets_child(broker, group, offsets)
    return decided


async def handle(
    broker: Broker, request: "messages.CommitJointRequest", context: Context
) -> "messages.CommitJointResponse":
    """Commit the children, which are the transactions that the request names, together. Return the commit sequence
    (number) of this joint commit.
    """
    try:
        # Hold the lock `appending`, so that the commit is decided before a later request of the connection begins.
        async with context.appending:
            decided = await _commit_children(broker, request, context)
        answer = await decided.wait_until_carried_out()
    except RefusedError as refused:
        answer = JointAnswer(ErrorCode(refused.code), str(refused))
    return messages.CommitJointResponse(
        error_code=answer.error,
        error_message=answer.message,
        commit_sequence=i64(answer.commit_sequence),
        already=answer.committed,
        committed_run=answer.run or None,
        digest=answer.digest or None,
    )
