"""ACLs: list, add and remove them."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.admin.acls import add_acls, list_acls, remove_acls
from stablelog.errors import RefusedError
from stablelog.wire.acls import (
    AclBinding,
    AclFilter,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)
from tests.client.core.scripted import NONE, Brokers, part, reply

READ = AclBinding(Pattern(ResourceType.TOPIC, "t"), "User:a", "*", Operation.READ, Permission.ALLOW)
WRITE = AclBinding(
    Pattern(ResourceType.TOPIC, "logs-", PatternType.PREFIXED),
    "User:b",
    "*",
    Operation.WRITE,
    Permission.DENY,
)


def fields(binding):
    return {
        "principal": binding.principal,
        "host": binding.host,
        "operation": int(binding.operation),
        "permission_type": int(binding.permission),
    }


def place(binding):
    pattern = binding.pattern
    return {
        "resource_type": int(pattern.resource_type),
        "resource_name": pattern.name,
        "pattern_type": int(pattern.pattern_type),
    }


def listed(request):
    resources = tuple(
        part(
            request,
            "DescribeAclsResource",
            **place(one),
            acls=(part(request, "AclDescription", **fields(one)),),
        )
        for one in (READ, WRITE)
    )
    return reply(request, error_code=NONE, error_message=None, resources=resources)


def test_acls_are_listed_by_a_filter():
    brokers = Brokers({"DescribeAcls": listed})
    asked = AclFilter(resource_type=ResourceType.TOPIC, principal="User:a")
    assert brokers.run(list_acls(brokers.cluster(), asked)) == [READ, WRITE]
    request = brokers.request("DescribeAcls")
    assert (request.resource_type_filter, request.principal_filter) == (int(ResourceType.TOPIC), "User:a")


def test_without_a_filter_all_acls_are_listed():
    brokers = Brokers({"DescribeAcls": listed})
    brokers.run(list_acls(brokers.cluster()))
    request = brokers.request("DescribeAcls")
    assert (request.resource_name_filter, request.principal_filter, request.host_filter) == (None, None, None)


def test_a_refusal_has_the_brokers_words():
    def refuse(request):
        return reply(
            request, error_code=ErrorCode.security_disabled, error_message="no authorizer", resources=()
        )

    brokers = Brokers({"DescribeAcls": refuse})
    with pytest.raises(RefusedError, match=r"^listing ACLs: no authorizer"):
        brokers.run(list_acls(brokers.cluster()))


def created(*codes):
    return lambda request: reply(
        request,
        results=tuple(
            part(request, "AclCreationResult", error_code=code, error_message=None) for code in codes
        ),
    )


def test_acls_are_added_together():
    brokers = Brokers({"CreateAcls": created(NONE, NONE)})
    brokers.run(add_acls(brokers.cluster(), iter([READ, WRITE])))
    first, second = brokers.request("CreateAcls").creations
    assert (first.resource_name, first.principal, first.operation) == ("t", "User:a", int(Operation.READ))
    assert (second.resource_pattern_type, second.permission_type) == (4, 2)


def test_the_acl_that_is_refused_is_named():
    brokers = Brokers({"CreateAcls": created(NONE, ErrorCode.invalid_request)})
    with pytest.raises(RefusedError, match=r"^adding the ACL .*User:b.*: invalid request"):
        brokers.run(add_acls(brokers.cluster(), [READ, WRITE]))


def removed(*bindings, code=NONE, acl_code=NONE):
    def answer(request):
        acls = tuple(
            part(
                request,
                "DeleteAclsMatchingAcl",
                error_code=acl_code,
                error_message=None,
                **place(one),
                **fields(one),
            )
            for one in bindings
        )
        result = part(
            request,
            "DeleteAclsFilterResult",
            error_code=code,
            error_message="not this one",
            matching_acls=acls,
        )
        return reply(request, filter_results=(result,))

    return answer


def test_acls_that_were_removed_are_returned_each_once_also_those_of_an_attempt_before():
    answers = [removed(READ, READ, code=ErrorCode.none), removed(WRITE)]
    brokers = Brokers({"DeleteAcls": answers})
    assert brokers.run(remove_acls(brokers.cluster(), [AclFilter(name="t")])) == [READ]
    assert brokers.run(remove_acls(brokers.cluster(), [AclFilter(name="t")])) == [WRITE]
    assert brokers.requests("DeleteAcls")[0][1].filters[0].resource_name_filter == "t"


def test_a_filter_or_an_acl_that_is_refused_is_named():
    brokers = Brokers({"DeleteAcls": removed(code=ErrorCode.invalid_request)})
    with pytest.raises(RefusedError, match=r"^removing ACLs: not this one"):
        brokers.run(remove_acls(brokers.cluster(), [AclFilter()]))
    brokers = Brokers({"DeleteAcls": removed(READ, acl_code=ErrorCode.cluster_authorization_failed)})
    with pytest.raises(
        RefusedError, match=r"^removing an ACL of User:a: this user lacks a right to the cluster"
    ):
        brokers.run(remove_acls(brokers.cluster(), [AclFilter()]))
