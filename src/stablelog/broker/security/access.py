"""Access: what the client of one request may do. Denied requests are logged."""

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from stablelog.security.acls import SUPPORTED_OPERATIONS, Operation, ResourceType, bits
from stablelog.security.authorizer import Authorizer

# The name of Kafka's logger of the same purpose is kafka.authorizer.logger.
log = logging.getLogger("stablelog.authorizer")

LOGGED_PER_PERIOD: Final = 100
PERIOD_MS: Final = 10_000
SHOWN_SIZE_MAX: Final = 200

_SUPPORTED: Final = {kind: bits(operations) for kind, operations in SUPPORTED_OPERATIONS.items()}


class DenialLog:
    """Logs denied requests, at most LOGGED_PER_PERIOD in PERIOD_MS, so that a client cannot fill the log.

    Attributes:
        count: the number of operations that were denied to requests which asked for them.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._begin_ms = now_ms()
        self._in_period = 0
        self.count = 0

    def denied(
        self, principal: str, host: str, api: str, operation: Operation, kind: ResourceType, name: str
    ) -> None:
        """Log and count a denied request."""
        self.count += 1
        now_ms = self._now_ms()
        if not 0 <= now_ms - self._begin_ms < PERIOD_MS:
            if self._in_period > LOGGED_PER_PERIOD:
                log.info("%d denied requests were not logged", self._in_period - LOGGED_PER_PERIOD)
            self._begin_ms, self._in_period = now_ms, 0
        self._in_period += 1
        if self._in_period <= LOGGED_PER_PERIOD:
            log.info(
                "denied: %s from host %s, %s: %s on %s %s",
                shown(principal),
                host,
                api,
                operation.name,
                kind.name,
                shown(name),
            )


def shown(text: str) -> str:
    """Text of a client for a line of the log: in quotes, with escapes, and cut if it is long."""
    cut = text if len(text) <= SHOWN_SIZE_MAX else f"{text[:SHOWN_SIZE_MAX]}..."
    return ascii(cut)


class Access(NamedTuple):
    """What the client of one request may do.

    Attributes:
        principal: the client, such as `User:alice`.
        host: the address of the client.
        api: the name of the API of the request, for the log.
    """

    authorizer: Authorizer
    denials: DenialLog
    principal: str
    host: str
    api: str

    def allows(self, operation: Operation, kind: ResourceType, name: str, *, is_logged: bool) -> bool:
        """Whether the client may carry out an operation on a resource. If not, this is logged if `is_logged`."""
        if self.authorizer.allows(self.principal, self.host, operation, kind, name):
            return True
        if is_logged:
            self.denials.denied(self.principal, self.host, self.api, operation, kind, name)
        return False

    def allows_some(self, operation: Operation, kind: ResourceType) -> bool:
        """Whether the client may carry out an operation on some resource of a type."""
        return self.authorizer.allows_some(self.principal, self.host, operation, kind)

    def operations(self, kind: ResourceType, name: str) -> int:
        """The operations that the client may carry out on a resource, of those that its type has, as bits."""
        return self.authorizer.allowed(self.principal, self.host, kind, name) & _SUPPORTED[kind]


def every_operation(kind: ResourceType) -> int:
    """All operations that resources of a type have, as bits: what a client may do without an authorizer."""
    return _SUPPORTED[kind]
