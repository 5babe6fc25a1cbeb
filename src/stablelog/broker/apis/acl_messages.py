"""Functions that several APIs for ACLs use: they read the filters of requests, and find the author of a change."""

from typing import TYPE_CHECKING, Protocol

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import Context
from stablelog.errors import RefusedError
from stablelog.security import acls
from stablelog.wire.acls import AclFilter, Operation, PatternType, Permission, ResourceType, known

if TYPE_CHECKING:
    from stablelog.broker.security.acl_store import AclAuthor

NO_AUTHORIZER = "the broker has no authorizer: there are no ACLs, and every client may do everything; set authorizer.class.name"


class AskedFilter(Protocol):
    """A filter of ACLs as a request contains it, with Kafka's numbers for types, operations and permissions."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def parse_filter(asked: AskedFilter) -> AclFilter:
    """Return the filter of ACLs that a request contains, in the form that the broker's ACLs use.

    Raises:
        RefusedError: a field has an unknown value.
    """
    found = AclFilter(
        ResourceType(known(ResourceType, asked.resource_type_filter)),
        asked.resource_name_filter,
        PatternType(known(PatternType, asked.pattern_type_filter)),
        asked.principal_filter,
        None if asked.host_filter is None else acls.normal_host(asked.host_filter),
        Operation(known(Operation, asked.operation)),
        Permission(known(Permission, asked.permission_type)),
    )
    try:
        acls.check_filter(found)
    except ValueError as invalid:
        raise RefusedError(ErrorCode.invalid_request, str(invalid)) from invalid
    return found


def request_author(context: Context) -> "AclAuthor":
    """Return the client that changes ACLs with a request: its principal and its address, which the log line of the
    change names.
    """
    assert context.access is not None
    from stablelog.broker.security.acl_store import AclAuthor  # only a broker with an authorizer needs it

    return AclAuthor(context.access.principal, context.access.host)
