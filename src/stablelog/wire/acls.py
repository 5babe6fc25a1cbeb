"""Access control lists in Kafka's messages: operations, resources, rules (ACL bindings) and the filters that find them.

The numbers and the meaning are those of Apache Kafka's `AclOperation`, `ResourceType`, `PatternType`,
`AclPermissionType`, `AclBinding` and `AclBindingFilter`.
"""

from enum import IntEnum
from typing import Final, NamedTuple

CLUSTER_NAME: Final = "kafka-cluster"  # The name of the only resource of type CLUSTER.
WILDCARD: Final = "*"


class Operation(IntEnum):
    """An operation on a resource. The numbers are Kafka's."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    """The type of a resource. The numbers are Kafka's."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the name in an ACL rule, or in a filter that finds rules, selects resources.

    MATCH is for filters only: it selects every rule that applies to the resource with this name, also rules with a
    prefix or `*`.
    """

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """Whether a rule allows or denies an operation. The numbers are Kafka's."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class Pattern(NamedTuple):
    """The resource pattern of an ACL rule: it selects the resources that the rule applies to.

    Attributes:
        name: for LITERAL the name of the resource, or `*` for all of the type; for PREFIXED the beginning of the names.
    """

    resource_type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL

    def applies_to(self, name: str) -> bool:
        """Return whether the pattern selects the resource of this name. The caller has compared the types."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)


class AclBinding(NamedTuple):
    """One ACL rule: it allows or denies an operation on resources to a principal on a host.

    Attributes:
        principal: such as `User:alice`, or `User:*` for every principal.
        host: the address of the client, or `*` for every address.
    """

    pattern: Pattern
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        pattern = self.pattern
        return (
            f"{self.permission.name} {self.principal} from host {self.host} {self.operation.name} on "
            f"{pattern.resource_type.name}:{pattern.pattern_type.name}:{pattern.name}"
        )


class AclFilter(NamedTuple):
    """A filter that selects ACL rules, for DescribeAcls and DeleteAcls. A field with the value None or ANY matches
    every value.
    """

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches_pattern(self, pattern: Pattern) -> bool:
        """Return whether the filter selects rules with this resource pattern."""
        if self.resource_type not in (ResourceType.ANY, pattern.resource_type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None:
            return True
        return (
            pattern.applies_to(self.name)
            if self.pattern_type is PatternType.MATCH
            else self.name == pattern.name
        )

    def matches(self, binding: AclBinding) -> bool:
        """Return whether the filter selects this rule."""
        return (
            self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (Operation.ANY, binding.operation)
            and self.permission in (Permission.ANY, binding.permission)
            and self.matches_pattern(binding.pattern)
        )


def known(enum: type[IntEnum], number: int) -> IntEnum:
    """Return the member of an enumeration with this number; if it has none, its member UNKNOWN (0), because a later
    release of Kafka may have numbers that this one does not know.
    """
    return enum(number) if number in enum._value2member_map_ else enum(0)
