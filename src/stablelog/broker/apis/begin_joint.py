"""BeginJoint (10001): whether a version of a joint commit is still open, and who has it from now on.

Behaviour: a version at or below the last one that was committed is COMMITTED, and nothing is to be done for it. An
open one belongs to the run that begins it: children of other runs are aborted, and refused when they come later. A run
of a lesser order never takes a version from one of a greater.
Without a run it is only asked. Answered when it is durable.
"""

from typing import Any

from kio.static.primitive import i64

from stablelog.broker.broker import Broker
from stablelog.coordinators.joint.coordinator import BeginAnswer
from stablelog.errors import Refused
from stablelog.wire.extension.children import JointName
from stablelog.wire.extension.joint import BeginJointRequest, BeginJointResponse


async def handle(broker: Broker, request: BeginJointRequest, _context: Any) -> BeginJointResponse:
    """Answer."""
    name = JointName(request.group, request.key)
    try:
        broker.reserve.check("BeginJoint")
        group = broker.transactions.made(request.group, "BeginJoint")
    except Refused as refused:
        answer = BeginAnswer(refused.code, str(refused))
    else:
        answer = await group.carry_out(
            group.coordinator.joint.begin(
                name, request.version, request.run, order=request.order, now_ms=broker.now_ms()
            )
        )
    return BeginJointResponse(
        error_code=answer.error,
        error_message=answer.message,
        committed=answer.committed,
        commit_sequence=i64(answer.commit_sequence),
        last_version=i64(answer.last_version),
        committed_run=answer.run or None,
        digest=answer.digest or None,
    )
