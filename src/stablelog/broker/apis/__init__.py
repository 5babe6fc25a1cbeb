"""The APIs that the broker serves, one module for each API.

Each module declares its API (`API`): its versions, how its requests are served, the rights that they need, the error
codes for partitions that are not open, and what the API does while the disk is full. The module also has the handler,
`async def handle(broker, request, context)`. Request and response have the newest version of the API;
`stablelog.wire.messages` converts older versions. `served` has the table of all APIs. How to add an API:
docs/how-it-works/architecture.md, "Adding an API".

The modules are imported when the broker starts. The classes of an API's messages are not, because their import takes
several times as long. `messages`, in each module, imports a class when the class is first used.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from itertools import islice
from typing import NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from stablelog.broker.apis.declaration import ServedApi
from stablelog.broker.broker import Broker
from stablelog.broker.loop.turns import Turn, in_turns
from stablelog.broker.network.session import Session
from stablelog.broker.security.access import Access, every_operation
from stablelog.broker.security.request_throttle import RequestThrottle
from stablelog.broker.topics.partition_state import PartitionCodes, PartitionState
from stablelog.errors import RefusedError, UnavailableError
from stablelog.types import TopicPartition
from stablelog.wire.acls import CLUSTER_NAME, Operation, ResourceType

__all__ = [
    "NOT_ASKED",
    "NO_THROTTLE",
    "Broker",
    "Context",
    "Operation",
    "ResourceType",
    "ServedApi",
    "check_no_missing_markers",
    "error_code_for",
    "wait_durable_code",
    "for_each",
    "for_each_part",
]

NO_THROTTLE = timedelta(0)
# Stands for the authorized operations in a response if the request does not ask for them (KIP-430).
NOT_ASKED = -(2**31)
NAME_SHOWN_MAX = 250
DENIED_CODES = {
    ResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    ResourceType.GROUP: ErrorCode.group_authorization_failed,
    ResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
}

Item = TypeVar("Item")
Part = TypeVar("Part")
Result = TypeVar("Result")
Joined = TypeVar("Joined")


class Context(NamedTuple):
    """The client that sent a request, the client's connection, and the version of the request.

    A handler calls `allows` or `require` before the request has an effect, and before the response names a resource.
    The operations that it checks are the `rights` in the declaration of its API.

    Attributes:
        api_version: the version of the request.
        correlation_id: the number by which the client finds the request of a response.
        client_id: the name that the client gives itself.
        appending: the lock `Connection.appending` of the client's connection. A handler holds it while it appends, so
            that the appends of one connection keep the order in which the requests have arrived.
        session: the login of the connection, which says who the client is.
        access: what the client may do; None if the broker has no authorizer, so that every client may do everything.
        throttle: measures the request for the quotas of the client; None if no client has a quota.
    """

    api_version: int
    correlation_id: int
    client_id: str | None
    appending: asyncio.Lock
    session: Session
    access: Access | None = None
    throttle: RequestThrottle | None = None

    @property
    def client_host(self) -> str:
        """The client's address."""
        return self.session.host

    def allows(
        self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME, *, is_logged: bool = True
    ) -> bool:
        """Return whether the client may carry out an operation on a resource.

        Args:
            operation: the operation.
            kind: the type of the resource.
            name: the name of the resource.
            is_logged: whether a denial is logged. False if the request does not name the resource, so that the response
                only leaves it out.
        """
        return self.access is None or self.access.allows(operation, kind, name, is_logged=is_logged)

    def require(self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> None:
        """Refuse an operation that the client may not carry out on a resource.

        Raises:
            RefusedError: the client may not carry out the operation. The error has the error code for resources of this
                type.
        """
        if not self.allows(operation, kind, name):
            raise RefusedError(
                DENIED_CODES[kind],
                f"the client is not authorized to {operation.name} on {kind.name} "
                f"{name[:NAME_SHOWN_MAX]!r}: ask for an ACL",
            )

    def denied_code(
        self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME
    ) -> ErrorCode | None:
        """Return the error code if the client may not carry out an operation on a resource; None if it may."""
        return None if self.allows(operation, kind, name) else DENIED_CODES[kind]

    def allows_some(self, operation: Operation, kind: ResourceType) -> bool:
        """Return whether the client may carry out the operation on at least one resource of this type, whatever its
        name.
        """
        return self.access is None or self.access.allows_some(operation, kind)

    def allowed_operations(self, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Return the operations that the client may carry out on a resource, as a number in which the bit at position N
        stands for the operation with Kafka's number N (KIP-430).
        """
        return every_operation(kind) if self.access is None else self.access.allowed_operations(kind, name)

    def charge_partitions(self, count: int, *, strict_since: int) -> None:
        """Charge the creation or deletion of partitions to the quota of the client.

        Args:
            count: the number of partitions.
            strict_since: the first version of the API whose clients know the error code of the refusal. Older clients
                are not refused; they have to wait afterwards.

        Raises:
            RefusedError: the client is above its quota already, and knows the error code.
        """
        if self.throttle is not None:
            self.throttle.charge_partitions(count, is_strict=self.api_version >= strict_since)


async def for_each(
    items: Iterable[Item], answer: Callable[[Item], Result], *, at_once: int = 1, turn: Turn | None = None
) -> tuple[Result, ...]:
    """Call `answer` for each item, such as a topic of a request. Return the results in the order of the items.

    If the calls take long, other tasks of the event loop run between two calls (see `in_turns`).

    Args:
        items: the items.
        answer: called with an item.
        at_once: the first `at_once` calls are made one after another, without other tasks in between. It has no effect
            if `turn` is given.
        turn: the turn of the event loop that the caller has begun. Its time limit then applies to the caller's earlier
            work and to these calls together. None to begin a new turn.
    """
    return tuple([answer(item) async for item in in_turns(items, at_once=at_once, turn=turn)])


async def for_each_part(
    items: Sequence[Item],
    parts: Callable[[Item], Sequence[Part]],
    answer: Callable[[Item, Part], Result],
    join: Callable[[Item, tuple[Result, ...]], Joined],
    *,
    at_once: int = 1,
) -> tuple[Joined, ...]:
    """Call `answer` for each part of each item, such as the partitions of the topics of a request. Join the results of
    the parts of each item, such as those of a topic.

    If the calls take long, other tasks of the event loop run between two calls.

    Args:
        items: the items.
        parts: returns the parts of an item.
        answer: called with an item and one of its parts.
        join: called with an item and the results of its parts.
        at_once: the first `at_once` calls of `answer` are made one after another, without other tasks in between.

    Returns:
        A tuple with the result of `join` for each item, in the order of the items.
    """
    pairs = ((item, part) for item in items for part in parts(item))
    results = iter([answer(item, part) async for item, part in in_turns(pairs, at_once=at_once)])
    return await for_each(items, lambda item: join(item, tuple(islice(results, len(parts(item))))))


def error_code_for(broker: Broker, error: Exception, codes: PartitionCodes) -> ErrorCode:
    """Return the error code of a response for an exception that concerns one partition (one of PARTITION_ERRORS).
    `codes` has the codes of the API.

    If the exception reports damaged data or a disk error, it is also logged, because the error code names neither the
    file nor the cause. Each message is logged only once.
    """
    broker.damage_log.log_once(error)
    return codes.code_for_error(error)


def check_no_missing_markers(broker: Broker, target: TopicPartition, code: ErrorCode | None) -> None:
    """Refuse a write to a partition that lacks transaction markers, because the full disk has no space for them.

    The missing markers end transactions that were decided before the broker's start. If a producer's next transaction
    wrote a batch before such a marker, readers would take the batch for a part of the previous transaction.

    Args:
        broker: the broker of the partition.
        target: topic and index of the partition.
        code: the error code of the refusal. Clients of the API must retry after it. None stands for
            KAFKA_STORAGE_ERROR.

    Raises:
        RefusedError: the partition lacks markers. The error has `code`.
    """
    if broker.partition_repair.lacks_markers(target):
        raise RefusedError(
            code or ErrorCode.kafka_storage_error,
            f"{target[0]}-{target[1]} cannot be written yet: markers that end earlier transactions are missing there, and "
            "there is no disk space to write them",
        )


async def wait_durable_code(
    broker: Broker, target: TopicPartition, durable: "asyncio.Future[None]", codes: PartitionCodes
) -> ErrorCode:
    """Wait until an append is durable, and return the error code of its partition for the response.

    The code is `none`, unless the partition has failed or was deleted meanwhile.

    Args:
        broker: the broker of the partition.
        target: topic and index of the partition.
        durable: the future that `GroupFlush.durable` returned for the append.
        codes: the error codes of the API.

    Raises:
        UnavailableError: an fsync failed and the broker stops. It is unknown whether the append is durable.
    """
    try:
        await durable
    except UnavailableError as error:
        if broker.flush.failed is not None:
            raise
        is_offline = broker.partitions.state(*target) is PartitionState.OFFLINE
        return codes.code_for_error(error) if is_offline else codes.unknown
    return ErrorCode.none
