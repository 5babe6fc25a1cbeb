"""Which rules and filters are valid, and which operations a type of resource has."""

import pytest

from stablelog.security.acls import (
    SUPPORTED_OPERATIONS,
    TEXT_SIZE_MAX,
    bits,
    check_binding,
    check_filter,
    normal_host,
)
from stablelog.wire.acls import (
    AclBinding,
    AclFilter,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)

TOPIC = Pattern(ResourceType.TOPIC, "orders")
RULE = AclBinding(TOPIC, "User:alice", "*", Operation.READ, Permission.ALLOW)
CLUSTER = Pattern(ResourceType.CLUSTER, "kafka-cluster")


@pytest.mark.parametrize(
    "rule",
    [
        RULE,
        RULE._replace(pattern=Pattern(ResourceType.TOPIC, "*")),
        RULE._replace(
            pattern=Pattern(ResourceType.GROUP, "g", PatternType.PREFIXED), operation=Operation.ALL
        ),
        RULE._replace(pattern=CLUSTER, operation=Operation.CREATE),
        RULE._replace(host="client.example.org"),
        RULE._replace(host="2001:db8::1", permission=Permission.DENY),
        RULE._replace(permission=Permission.DENY),
        RULE._replace(principal="User:*"),
        RULE._replace(pattern=Pattern(ResourceType.TOPIC, "x" * TEXT_SIZE_MAX)),
    ],
)
def test_a_rule_that_can_apply_is_accepted(rule):
    check_binding(rule)


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (
            RULE._replace(pattern=Pattern(ResourceType.ANY, "a")),
            "the resource type ANY is not allowed: name the type of one resource",
        ),
        (
            RULE._replace(pattern=Pattern(ResourceType.UNKNOWN, "a")),
            "the resource type UNKNOWN is not allowed",
        ),
        (
            RULE._replace(pattern=TOPIC._replace(pattern_type=PatternType.MATCH)),
            "pattern type MATCH is not allowed",
        ),
        (
            RULE._replace(pattern=TOPIC._replace(pattern_type=PatternType.ANY)),
            "ANY is not allowed: use LITERAL or",
        ),
        (
            RULE._replace(operation=Operation.ANY),
            "the operation ANY is not allowed: name one operation, or ALL",
        ),
        (RULE._replace(operation=Operation.UNKNOWN), "the operation UNKNOWN is not allowed"),
        (RULE._replace(permission=Permission.ANY), "the permission ANY is not allowed: use ALLOW or DENY"),
        (RULE._replace(pattern=Pattern(ResourceType.TOPIC, "")), "the name of the resource is empty"),
        (
            RULE._replace(pattern=Pattern(ResourceType.CLUSTER, "mine")),
            "the resource of type CLUSTER must have the name 'kafka-",
        ),
        (RULE._replace(host=""), r"the host is empty: use an address, or \* for every address"),
        (
            RULE._replace(host="client.example.org", permission=Permission.DENY),
            "the host 'client.example.org' is not an IP address, so the rule would deny nothing",
        ),
        (RULE._replace(principal="alice"), "'alice' is not a principal: write User:name"),
        (
            RULE._replace(pattern=Pattern(ResourceType.TOPIC, "x" * (TEXT_SIZE_MAX + 1))),
            "the name of the resource, the principal or the host has more than 32767 characters",
        ),
        (
            RULE._replace(host="x" * (TEXT_SIZE_MAX + 1)),
            "the name of the resource, the principal or the host has more than 32767 characters",
        ),
        (
            RULE._replace(principal="User:" + "x" * TEXT_SIZE_MAX),
            "the name of the resource, the principal or the host has more than 32767 characters",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_rule_that_could_never_apply_is_refused_with_what_is_wrong(rule, why):
    with pytest.raises(ValueError, match=why):
        check_binding(rule)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (AclFilter(ResourceType.UNKNOWN), "the resource type of the filter is unknown"),
        (AclFilter(pattern_type=PatternType.UNKNOWN), "the pattern type of the filter is unknown"),
        (AclFilter(operation=Operation.UNKNOWN), "the operation of the filter is unknown"),
        (AclFilter(permission=Permission.UNKNOWN), "the permission of the filter is unknown"),
    ],
)
def test_a_filter_with_an_unknown_value_is_refused_by_the_field(asked, why):
    check_filter(AclFilter())
    with pytest.raises(ValueError, match=why):
        check_filter(asked)


@pytest.mark.parametrize(
    ("host", "normal"),
    [
        ("2001:DB8:0::1", "2001:db8::1"),
        ("10.0.0.1", "10.0.0.1"),
        ("*", "*"),
        ("client.example.org", "client.example.org"),
    ],
)
def test_an_address_has_the_form_in_which_the_broker_knows_its_clients(host, normal):
    assert normal_host(host) == normal


def test_a_set_of_operations_has_the_bits_of_kafkas_numbers():
    assert bits([]) == 0
    assert bits([Operation.READ, Operation.WRITE, Operation.TWO_PHASE_COMMIT]) == 0b1000_0000_0001_1000


def test_the_operations_of_a_type_are_those_that_kafka_names_in_responses():
    assert {
        kind.name: [int(one) for one in operations] for kind, operations in SUPPORTED_OPERATIONS.items()
    } == {
        "TOPIC": [3, 4, 5, 6, 7, 8, 10, 11],
        "GROUP": [3, 6, 8, 10, 11],
        "CLUSTER": [5, 7, 8, 9, 10, 11, 12],
    }
