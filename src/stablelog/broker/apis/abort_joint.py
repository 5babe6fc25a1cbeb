"""AbortJoint (10003): abort children (transactions) of one version of a joint commit, unless the version is committed.

A joint commit commits several transactions, its children, together. Its key names the program that writes
the children, such as a streaming query. Its version is a number that grows with each commit of the key.

Behaviour: a committed version stays committed, and the response says so. A run is one start of the program that writes
the children. If the request names a run, all children of that run are aborted, including children that the request does
not name, and the run cannot begin more children of this version. The response is sent when the decision is durable and
the abort markers are written. While the disk is full, a request that has no open transaction to abort is refused.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode
from kio.static.primitive import i64

from stablelog.broker.apis import Broker, Context, ServedApi
from stablelog.broker.apis.begin_joint import JOINT_RIGHT, require_joint
from stablelog.broker.durability.disk_reserve import WhileFull
from stablelog.broker.loop.turns import in_turns
from stablelog.broker.transactions.joint_commits import Decided, JointRequests
from stablelog.coordinators.transactions.joint.answers import ChildShown, JointAnswer
from stablelog.errors import RefusedError
from stablelog.wire.api import ApiKey
from stablelog.wire.extension.children import JointName

# While the disk is full, a request is served only if it ends an open transaction.
WHILE_FULL = WhileFull(
    ErrorCode.coordinator_load_in_progress,
    exception="An AbortJoint that aborts an open transaction is served.",
)
API = ServedApi(
    ApiKey.ABORT_JOINT,
    first_version=0,
    last_version=0,
    is_appending=True,
    rights=(JOINT_RIGHT,),
    while_full=WHILE_FULL,
)
if TYPE_CHECKING:
    from stablelog.wire.extension import joint as messages
else:
    messages = API.messages


async def _abort_children(broker: Broker, request: "messages.AbortJointRequest", context: Context) -> Decided:
    await require_joint(
        context, request.group, request.key, [child.transactional_id for child in request.children]
    )
    name = JointName(request.group, request.key)
    group = broker.transactions.group_for_joint_commit(request.group, WHILE_FULL)
    joint = JointRequests(group, name, request.version, broker.runtime)
    children = [
        ChildShown(c.transactional_id, c.producer_id, c.producer_epoch)
        async for c in in_turns(request.children)
    ]
    is_answered = group.coordinator.joint.check_abort(name, request.version, request.run) is not None
    if broker.reserve.is_full and not is_answered and not await joint.has_open(children, request.run):
        broker.reserve.check(WHILE_FULL)
    return await joint.abort(children, request.run)


async def handle(
    broker: Broker, request: "messages.AbortJointRequest", context: Context
) -> "messages.AbortJointResponse":
    """Abort the transactions that the request names, children of a version of a joint commit, unless this version is
    committed already. The response says whether it is.
    """
    try:
        # Hold the lock `appending`, so that the children end before a later request of the connection begins.
        async with context.appending:
            decided = await _abort_children(broker, request, context)
        answer = await decided.wait_until_carried_out()
    except RefusedError as refused:
        answer = JointAnswer(ErrorCode(refused.code), str(refused))
    return messages.AbortJointResponse(
        error_code=answer.error,
        error_message=answer.message,
        committed=answer.committed,
        commit_sequence=i64(answer.commit_sequence),
    )
