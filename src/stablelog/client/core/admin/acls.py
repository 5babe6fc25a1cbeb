"""Requests to list, add and remove ACLs (KIP-140, KIP-290)."""

from collections.abc import Iterable
from typing import Any

from stablelog.client.core.cluster import Cluster
from stablelog.client.core.steps import Steps
from stablelog.client.responses import check
from stablelog.wire.acls import (
    AclBinding,
    AclFilter,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
    known,
)


def list_acls(cluster: Cluster, asked: AclFilter | None = None) -> Steps[list[AclBinding]]:
    """Return the ACLs that match a filter; all ACLs without a filter.

    Raises:
        RefusedError: the broker has no authorizer, or the user may not see ACLs.
        UnavailableError: no broker responds.
    """
    from kio.schema.describe_acls.v3.request import DescribeAclsRequest

    request = DescribeAclsRequest(**_numbers(asked or AclFilter()))

    def attempt() -> Steps[list[AclBinding]]:
        connection = yield from cluster.any_connection()
        response = yield from connection.request_steps(request)
        check(response.error_code, "listing ACLs", response.error_message)
        return [
            _binding(resource.resource_type, resource.resource_name, resource.pattern_type, acl)
            for resource in response.resources
            for acl in resource.acls
        ]

    return (yield from cluster.retrying("listing ACLs", attempt))


def add_acls(cluster: Cluster, bindings: Iterable[AclBinding]) -> Steps[None]:
    """Add ACLs. An ACL that exists already is not changed.

    Raises:
        RefusedError: an ACL is not valid, or the user may not change ACLs. Other ACLs of the call may be added.
        UnavailableError: no broker responds.
    """
    from kio.schema.create_acls.v3.request import AclCreation, CreateAclsRequest

    wanted = list(bindings)
    request = CreateAclsRequest(
        creations=tuple(
            AclCreation(
                resource_type=int(pattern.resource_type),
                resource_name=pattern.name,
                resource_pattern_type=int(pattern.pattern_type),
                principal=principal,
                host=host,
                operation=int(operation),
                permission_type=int(permission),
            )
            for pattern, principal, host, operation, permission in wanted
        )
    )

    def attempt() -> Steps[None]:
        connection = yield from cluster.any_connection()
        response = yield from connection.request_steps(request)
        for binding, result in zip(wanted, response.results, strict=True):
            check(result.error_code, f"adding the ACL {binding}", result.error_message)

    yield from cluster.retrying("adding ACLs", attempt)


def remove_acls(cluster: Cluster, filters: Iterable[AclFilter]) -> Steps[list[AclBinding]]:
    """Remove the ACLs that match at least one of the filters, and return them.

    Raises:
        RefusedError: a filter is not valid, or the user may not change ACLs.
        UnavailableError: no broker responds.
    """
    from kio.schema.delete_acls.v3.request import DeleteAclsFilter, DeleteAclsRequest

    request = DeleteAclsRequest(filters=tuple(DeleteAclsFilter(**_numbers(asked)) for asked in filters))
    removed: dict[AclBinding, None] = {}  # also those of an attempt whose response came only in part

    def attempt() -> Steps[list[AclBinding]]:
        connection = yield from cluster.any_connection()
        for result in (yield from connection.request_steps(request)).filter_results:
            check(result.error_code, "removing ACLs", result.error_message)
            for acl in result.matching_acls:
                check(acl.error_code, f"removing an ACL of {acl.principal}", acl.error_message)
                removed[_binding(acl.resource_type, acl.resource_name, acl.pattern_type, acl)] = None
        return list(removed)

    return (yield from cluster.retrying("removing ACLs", attempt))


def _numbers(asked: AclFilter) -> dict[str, Any]:
    """Return the fields of an ACL filter for a request, by name. Kafka's number stands for each enumerated value, such
    as an operation.
    """
    return {
        "resource_type_filter": int(asked.resource_type),
        "resource_name_filter": asked.name,
        "pattern_type_filter": int(asked.pattern_type),
        "principal_filter": asked.principal,
        "host_filter": asked.host,
        "operation": int(asked.operation),
        "permission_type": int(asked.permission),
    }


def _binding(resource_type: int, name: str, pattern_type: int, acl: Any) -> AclBinding:
    pattern = Pattern(
        ResourceType(known(ResourceType, resource_type)), name, PatternType(known(PatternType, pattern_type))
    )
    return AclBinding(
        pattern,
        acl.principal,
        acl.host,
        Operation(known(Operation, acl.operation)),
        Permission(known(Permission, acl.permission_type)),
    )
