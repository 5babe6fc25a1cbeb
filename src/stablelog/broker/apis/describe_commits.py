"""DescribeCommits (10005): where transactions begin and end in a partition of a commit-ordered topic, whose
read-committed readers get whole transactions in the order of their commits.

Behaviour: the transactions are listed in the order of their commits. Only transactions that a read-committed fetch can
return are listed, so they are durable. Records outside transactions are listed only if the request asks for them, in
entries of their own. If there is nothing to list, the response waits until `max_wait_ms` is over, as that of a Fetch
does. A writer that waits for the position (the offset in commit order) of its commit therefore need not send many
requests.
"""

import asyncio
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode
from kio.static.primitive import i64

from stablelog.broker.apis import Broker, Context, Operation, ResourceType, ServedApi, error_code_for
from stablelog.broker.topics.partition_state import COMMON, PARTITION_ERRORS
from stablelog.commit_order.view import CommitOrder
from stablelog.errors import RefusedError
from stablelog.log.partition import Isolation, Partition
from stablelog.security.api_rights import on_topic
from stablelog.wire.api import ApiKey

PARTITION_CODES = COMMON
API = ServedApi(
    ApiKey.DESCRIBE_COMMITS,
    first_version=0,
    last_version=0,
    is_long_poll=True,
    has_long_response=True,
    rights=(on_topic(Operation.READ, "the topic"),),
    codes={"": PARTITION_CODES},
)
if TYPE_CHECKING:
    from stablelog.wire.extension import commits as messages
else:
    messages = API.messages


async def handle(
    broker: Broker, request: "messages.DescribeCommitsRequest", context: Context
) -> "messages.DescribeCommitsResponse":
    """Return the transactions of the partition from the given offset on. If there is none, wait for one until
    `max_wait_ms` is over.

    All data of the response is in the partition's commit indexes, which list the transactions of each segment, so no
    record is read.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + request.max_wait_ms / 1000
    try:
        while True:
            context.require(Operation.READ, ResourceType.TOPIC, request.topic)
            response = await broker.tiering.reads.call_when_loaded(lambda: _describe_commits(broker, request))
            if response.commits or loop.time() >= deadline:
                return response
            seen = [(_find_partition(broker, request), int(response.end_offset))]
            with broker.long_polls.begin_poll() as poll:
                left_s = deadline - loop.time()
                if not await broker.long_polls.wait_for_more(poll, seen, Isolation.READ_COMMITTED, left_s):
                    return response
    except PARTITION_ERRORS as error:
        code = error_code_for(broker, error, PARTITION_CODES)
        return messages.DescribeCommitsResponse(error_code=code, error_message=str(error))


def _find_partition(broker: Broker, request: "messages.DescribeCommitsRequest") -> Partition:
    return broker.partitions.require(request.topic, request.partition_index, PARTITION_CODES)


def _describe_commits(
    broker: Broker, request: "messages.DescribeCommitsRequest"
) -> "messages.DescribeCommitsResponse":
    view = _find_partition(broker, request).view
    if not isinstance(view, CommitOrder):
        raise RefusedError(
            ErrorCode.invalid_request,
            f"topic {request.topic!r} is not commit-ordered, so its transactions may overlap: "
            "DescribeCommits needs a topic that was created with stablelog.order=commit",
        )
    start = int(request.offset)
    if request.commit_sequence > 0:
        start = max(start, view.offset_after(request.commit_sequence - 1))
    count_max = max(0, min(request.count_max, messages.COUNT_MAX))
    found = view.transactions(start, count_max, with_outside=request.with_outside)
    return messages.DescribeCommitsResponse(
        error_code=ErrorCode.none,
        topic_id=broker.topics.named(request.topic).topic_id,
        log_start_offset=i64(view.start_offset),
        end_offset=i64(view.end_offset),
        commits=tuple(
            messages.DescribedCommit(
                start_offset=i64(one.start),
                end_offset=i64(one.end),
                commit_sequence=i64(one.commit_sequence),
                time_ms=i64(one.time_ms),
            )
            for one in found
        ),
    )
