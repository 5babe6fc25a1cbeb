"""BeginJoint (10001): begin a version of a joint commit for a run, and report whether the version is committed already.

A version of a joint commit is a set of transactions, its children, that are committed together. A run is one start of
the program that writes the children.

Behaviour: a version at or below the last committed version is COMMITTED, and the client has nothing to do for it. An
open version belongs to the run that begins it: the coordinator aborts open children of other runs, and refuses children
that other runs begin later. A run can have a number, its order: a run of a lower order never takes a version from a run
of a higher order. A request without a run only asks for the state of the version. The response is sent when the record
of the version and its run is durable in the commit log.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode
from kio.static.primitive import i64

from stablelog.broker.apis import Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.durability.disk_reserve import WhileFull
from stablelog.broker.loop.turns import in_turns
from stablelog.broker.transactions.joint_commits import Decided, JointRequests
from stablelog.coordinators.transactions.joint.answers import JointAnswer
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_transactional_id
from stablelog.wire.api import ApiKey
from stablelog.wire.extension.children import JointName, child_prefix
from stablelog.wire.extension.transaction_groups import is_group_name

JOINT_RIGHT = on_transactional_id(Operation.WRITE, "`[<group>/]joint:<key>:` and each named child")
WHILE_FULL = WhileFull(ErrorCode.coordinator_load_in_progress)
API = ServedApi(
    ApiKey.BEGIN_JOINT,
    first_version=0,
    last_version=0,
    is_appending=True,
    rights=(
        JOINT_RIGHT,
        on_transactional_id(Operation.DESCRIBE, "`[<group>/]joint:<key>:`, without a run"),
    ),
    while_full=WHILE_FULL,
)
if TYPE_CHECKING:
    from stablelog.wire.extension import joint as messages
else:
    messages = API.messages


async def require_joint(
    context: Context,
    group: str,
    key: str,
    children: Iterable[str] = (),
    *,
    operation: Operation = Operation.WRITE,
) -> None:
    """Check that the client may carry out an operation on a joint commit and on its children, the transactions that it
    commits together.

    The resource that ACLs name for a joint commit is the transactional id `[<group>/]joint:<key>:`, with which the ids
    of its children begin. A rule with a prefixed pattern therefore allows the joint commit and its children.

    Args:
        context: the client.
        group: the name of the transaction group, which is topics whose commits have one order.
        key: the key, by which the client names its joint commits.
        children: the transactional ids of the children that the request names.
        operation: the operation.

    Raises:
        RefusedError: the client may not; the error code is transactional_id_authorization_failed.
    """
    context.require(operation, ResourceType.TRANSACTIONAL_ID, child_prefix(key, group=group))
    if context.access is not None:
        async for child in in_turns(children):
            context.require(operation, ResourceType.TRANSACTIONAL_ID, child)


async def _begin_version(
    broker: Broker, request: "messages.BeginJointRequest", context: Context
) -> Decided | None:
    """Begin the version of the joint commit (of several transactions together) for the run, the start of the writer,
    that the request names. If the request names no run, only read the state of the version.

    Returns:
        The decision, with the state of the version in its answer. None if the request names no run and the transaction
        group does not exist: no version of the joint commit was ever begun then.
    """
    operation = Operation.WRITE if request.run else Operation.DESCRIBE
    await require_joint(context, request.group, request.key, operation=operation)
    broker.reserve.check(WHILE_FULL)
    # A question does not create a group, because it needs only DESCRIBE.
    group = broker.transactions.get(request.group)
    if group is None and not request.run and is_group_name(request.group):
        return None
    group = broker.transactions.group_for_joint_commit(request.group, WHILE_FULL)
    name = JointName(request.group, request.key)
    joint = JointRequests(group, name, request.version, broker.runtime)
    return await joint.begin(request)


async def handle(
    broker: Broker, request: "messages.BeginJointRequest", context: Context
) -> "messages.BeginJointResponse":
    """Begin the version of a joint commit (of several transactions together) for a run, which is one start of the
    program that writes these transactions. The response says whether the version is committed already.
    """
    try:
        # Hold the lock `appending`, so that a version begins before a later request of the connection.
        async with context.appending:
            decided = await _begin_version(broker, request, context)
        answer = JointAnswer(ErrorCode.none) if decided is None else await decided.wait_until_carried_out()
    except RefusedError as refused:
        answer = JointAnswer(ErrorCode(refused.code), str(refused))
    return _begin_response(answer)


def _begin_response(answer: JointAnswer) -> "messages.BeginJointResponse":
    return messages.BeginJointResponse(
        error_code=answer.error,
        error_message=answer.message,
        committed=answer.committed,
        commit_sequence=i64(answer.commit_sequence),
        last_version=i64(answer.last_version),
        committed_run=answer.run or None,
        digest=answer.digest or None,
    )
