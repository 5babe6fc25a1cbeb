"""Access: what the client that has sent a request may do. A denied request is logged."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from stablelog.broker.monitoring.limited_log import LimitedLog, quote_for_log
from stablelog.security.acls import SUPPORTED_OPERATIONS, bits
from stablelog.wire.acls import Operation, ResourceType

if TYPE_CHECKING:
    from stablelog.security.authorizer import Authorizer

# The name of Kafka's logger of the same purpose is kafka.authorizer.logger.
log = logging.getLogger("stablelog.authorizer")

_SUPPORTED: Final = {kind: bits(operations) for kind, operations in SUPPORTED_OPERATIONS.items()}


class DenialLog:
    """Logs and counts denied requests.

    Attributes:
        count: the number of operations that requests asked for and that were denied.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._log = LimitedLog(log, logging.INFO, "denied requests", now_ms)
        self.count = 0

    def log_denial(
        self, principal: str, host: str, api: str, operation: Operation, kind: ResourceType, name: str
    ) -> None:
        """Log and count one operation that was denied to the client of a request."""
        self.count += 1
        self._log.write(
            "denied: %s from host %s, %s: %s on %s %s",
            quote_for_log(principal),
            host,
            api,
            operation.name,
            kind.name,
            quote_for_log(name),
        )


class Access(NamedTuple):
    """What the client that has sent one request may do.

    Attributes:
        authorizer: decides by the ACLs.
        denials: logs what is denied.
        principal: the client, such as `User:alice`.
        host: the address of the client.
        api: the name of the request's API, for the log.
    """

    authorizer: "Authorizer"
    denials: DenialLog
    principal: str
    host: str
    api: str

    def allows(self, operation: Operation, kind: ResourceType, name: str, *, is_logged: bool) -> bool:
        """Return whether the client may carry out an operation on a resource.

        Args:
            operation: the operation.
            kind: the type of the resource.
            name: the name of the resource.
            is_logged: whether a denial is logged and counted.
        """
        if self.authorizer.allows(self.principal, self.host, operation, kind, name):
            return True
        if is_logged:
            self.denials.log_denial(self.principal, self.host, self.api, operation, kind, name)
        return False

    def allows_some(self, operation: Operation, kind: ResourceType) -> bool:
        """Return whether there is a resource of this type on which the client may carry out the operation."""
        return self.authorizer.allows_some(self.principal, self.host, operation, kind)

    @property
    def rights(self) -> tuple[tuple[str, str], int]:
        """Return what identifies the rights of the client: (key, version of the ACLs). Clients with the same rights
        have the same key. A cached decision about a client stays valid while both values are the same.
        """
        return self.authorizer.rights_of(self.principal, self.host), self.authorizer.version

    def allowed_operations(self, kind: ResourceType, name: str) -> int:
        """Return the operations that the client may carry out on a resource, as bits by Kafka's numbers of the
        operations: bit N for number N.
        """
        return self.authorizer.allowed(self.principal, self.host, kind, name) & _SUPPORTED[kind]


def every_operation(kind: ResourceType) -> int:
    """Return all operations of a type of resource, as bits by Kafka's numbers of the operations (bit N for number N). A
    client may carry them all out if the broker has no authorizer.
    """
    return _SUPPORTED[kind]
