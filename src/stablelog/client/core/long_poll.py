"""Long polls: fetch requests that the broker answers when a record arrives, so that an idle reader sends few requests."""

from collections.abc import Mapping
from math import ceil
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.client.core.call_limits import GRACE_S
from stablelog.client.core.cluster import Cluster
from stablelog.client.core.fetch_request import receive_fetch, send_fetch
from stablelog.client.core.steps import NOW, Steps
from stablelog.client.responses import check, is_retriable
from stablelog.types import TopicPartition
from stablelog.wire.fetch import Fetched

WHAT: Final = "waiting for records"  # names the work in messages
# How long a request waits at one broker. A partition that was added to a topic is noticed after at most this time.
WAIT_MAX_S: Final = 1.0
# How long a fetch waits if the partitions have several leaders: the steps read one response after another.
SEVERAL_LEADERS_WAIT_S: Final = 0.1


def wait_for_records(
    cluster: Cluster, offsets: Mapping[TopicPartition, int], wait_s: float, size_max: int
) -> Steps[dict[TopicPartition, Fetched | None]]:
    """Wait until one of these partitions has a new committed record, or can no longer be read from its offset. The wait
    is a *long poll*: one Fetch request to each leader, which the leader answers when such a record has arrived or the
    time has passed. The requests are not retried.

    A call of `CallLimits.cancel_retries` ends the wait early. With several leaders, the wait is at most
    SEVERAL_LEADERS_WAIT_S.

    Args:
        cluster: the brokers.
        offsets: for each partition, the offset up to which the caller has read it.
        wait_s: the longest wait in seconds, at most WAIT_MAX_S; with 0, the leaders respond at once with the records
            that they have.
        size_max: maximum of bytes of all records in the response of a leader, but at least one batch is returned.

    Returns:
        The result of the fetch for each partition that has changed: the records at its offset, as far as they fit into
        the response, or an error code. None for a partition whose leader did not respond, so that it is unknown whether
        the partition has changed.

    Raises:
        RefusedError: a partition does not exist.
        UnavailableError: `cancel_retries` was called.
    """
    changed: dict[TopicPartition, Fetched | None] = dict.fromkeys(offsets)
    waiting_on = cluster.waiting_on
    assert not waiting_on, "another call waits for records already: one call at a time"
    now = yield NOW
    # If the network is silent, half of the deadline is left to try another connection.
    until = now + min(wait_s, WAIT_MAX_S, cluster.deadline_s / 2) + cluster.deadline_s / 2 + GRACE_S / 2
    try:
        with cluster.limit_waits_until(until):
            yield from _poll(cluster, offsets, wait_s, size_max, changed)
        cluster.silent_since = None
    except Exception as failure:
        cluster.check_cancelled(WHAT)
        if not is_retriable(failure):
            raise
        cluster.silent_since = now if cluster.silent_since is None else cluster.silent_since
        cluster.forget_metadata()
    finally:
        for connection in waiting_on:
            if connection.is_awaiting:
                connection.close()  # a later request would get the response to this one
        waiting_on.clear()
    return changed


def _poll(
    cluster: Cluster,
    offsets: Mapping[TopicPartition, int],
    wait_s: float,
    size_max: int,
    changed: dict[TopicPartition, Fetched | None],
) -> Steps[None]:
    """Send the requests of `wait_for_records`, and receive the responses. Each partition that has changed is added to
    `changed`, with what was fetched of it, or with None if its leader did not respond.
    """
    waiting_on = cluster.waiting_on
    by_leader = {
        leader_id: {target: offsets[target] for target in targets}
        for leader_id, targets in (yield from cluster.group_by_leader(offsets)).items()
    }
    wait_s = min(wait_s, WAIT_MAX_S if len(by_leader) == 1 else SEVERAL_LEADERS_WAIT_S)
    for leader_id, wanted in by_leader.items():
        waiting_on.append((yield from cluster.connection_to(leader_id)))
        yield from send_fetch(waiting_on[-1], wanted, size_max, "read_committed", ceil(1000 * wait_s))
    cluster.check_cancelled(WHAT)
    for connection, wanted in zip(waiting_on, by_leader.values(), strict=True):
        response = yield from receive_fetch(connection)
        check(response.error, WHAT)
        for target in wanted.keys() & response.partitions.keys():
            fetched = changed[target] = response.partitions[target]
            has_error = fetched.error is not ErrorCode.none
            if not has_error and not fetched.records and fetched.last_stable_offset == offsets[target]:
                del changed[target]
