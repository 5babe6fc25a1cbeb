"""BeginJoint (10001): begin a version of a joint commit for a run, and report whether the version is committed already.

A version of a joint commit is a set of transactions, its children, that are committed together. A run is one start of
the program that writes the children.

Behaviour: a version at or below the last committed version is COMMITTED, and the client has nothing to do for it. An
open version belongs to the run that begins it: the coordinator aborts open children of other runs, and refuses children
that other runs begin later. A run can have an order: a run of a lower order never takes a version from a run of a
higher order. A request without a run only asks for the state of the version. The response is sent when the record of
the version and its run is durable in the commit log.
"""

from kio.schema.errors import ErrorCode
from kio.static.primitive import i64

from stablelog.broker.apis import Broker, Context
from stablelog.broker.transactions.joint_commits import JointRequests
from stablelog.coordinators.transactions.joint.answers import JointAnswer
from stablelog.errors import RefusedError
from stablelog.wire.extension.children import JointName
from stablelog.wire.extension.joint import BeginJointRequest, BeginJointResponse


async def handle(broker: Broker, request: BeginJointRequest, _context: Context) -> BeginJointResponse:
    """Handle the request."""
    name = JointName(request.group, request.key)
    try:
        broker.reserve.check("BeginJoint")
        group = broker.transactions.made(request.group, "BeginJoint")
    except RefusedError as refused:
        answer = JointAnswer(ErrorCode(refused.code), str(refused))
    else:
        joint = JointRequests(group, name, request.version, tasks=broker.tasks, now_ms=broker.now_ms)
        answer = await joint.begin(request)
    return BeginJointResponse(
        error_code=answer.error,
        error_message=answer.message,
        committed=answer.committed,
        commit_sequence=i64(answer.commit_sequence),
        last_version=i64(answer.last_version),
        committed_run=answer.run or None,
        digest=answer.digest or None,
    )
