"""Checks of ACLs: which access rules and which filters of rules are valid, and which operations each type of resource
has.
"""

import ipaddress
from collections.abc import Iterable
from typing import Final

from stablelog.security.principal import parse_principal
from stablelog.wire.acls import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

ANY_PRINCIPAL: Final = "User:*"
TEXT_SIZE_MAX: Final = 32_767  # The longest text that a message of Kafka can have.


# The operations of each resource type that Kafka names in responses (KIP-430).
SUPPORTED_OPERATIONS: Final = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}


def bits(operations: Iterable[Operation]) -> int:
    """Return a set of operations as an integer: bit n is set for the operation with Kafka's number n."""
    return sum(1 << operation for operation in operations)


def check_binding(binding: AclBinding) -> None:
    """Check an access rule (ACL binding): refuse one that Kafka would not create, or that could never apply to a
    client.

    Raises:
        ValueError: the rule is not valid; the message says why.
    """
    pattern = binding.pattern
    if pattern.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        raise ValueError(
            f"the resource type {pattern.resource_type.name} is not allowed: name the type of one "
            "resource, such as TOPIC"
        )
    if pattern.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise ValueError(
            f"the pattern type {pattern.pattern_type.name} is not allowed: use LITERAL or PREFIXED"
        )
    if binding.operation in (Operation.UNKNOWN, Operation.ANY):
        raise ValueError(f"the operation {binding.operation.name} is not allowed: name one operation, or ALL")
    if binding.permission not in (Permission.DENY, Permission.ALLOW):
        raise ValueError(f"the permission {binding.permission.name} is not allowed: use ALLOW or DENY")
    if not pattern.name:
        raise ValueError("the name of the resource is empty")
    if pattern.resource_type is ResourceType.CLUSTER and pattern.name != CLUSTER_NAME:
        raise ValueError(f"the resource of type CLUSTER must have the name {CLUSTER_NAME!r}")
    if not binding.host:
        raise ValueError("the host is empty: use an address, or * for every address")
    if binding.permission is Permission.DENY and binding.host != WILDCARD and not _is_address(binding.host):
        raise ValueError(f"the host {binding.host!r} is not an IP address, so the rule would deny nothing")
    parse_principal(binding.principal)
    if max(map(len, (pattern.name, binding.principal, binding.host))) > TEXT_SIZE_MAX:
        raise ValueError(
            f"the name of the resource, the principal or the host has more than {TEXT_SIZE_MAX} characters"
        )


def normal_host(host: str) -> str:
    """Return an IP address in the form in which the broker knows clients, such as `2001:db8::1`. A text that is not an
    IP address, such as `*`, is returned unchanged.
    """
    return str(ipaddress.ip_address(host)) if _is_address(host) else host


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def check_filter(asked: AclFilter) -> None:
    """Check a filter, which selects access rules to list or to delete.

    Raises:
        ValueError: a field of the filter has the value UNKNOWN.
    """
    for field, value in (
        ("resource type", asked.resource_type),
        ("pattern type", asked.pattern_type),
        ("operation", asked.operation),
        ("permission", asked.permission),
    ):
        if value == 0:
            raise ValueError(f"the {field} of the filter is unknown")
