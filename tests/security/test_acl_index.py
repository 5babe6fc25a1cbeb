"""The index holds the rules that were added, and finds what a loop over them finds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.security.acl_index import AclIndex, Masks
from stablelog.security.acls import bits
from stablelog.wire.acls import (
    AclBinding,
    AclFilter,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)
from tests.scale import examples

TYPES = [ResourceType.TOPIC, ResourceType.GROUP]
NAMES = ["*", "a", "ab", "abc", "b"]
PRINCIPALS = ["User:alice", "User:bob"]
HOSTS = ["10.0.0.1", "10.0.0.2"]
OPERATIONS = [Operation.READ, Operation.WRITE, Operation.ALL]
ALLOW, DENY = Permission.ALLOW, Permission.DENY

bindings = st.builds(
    AclBinding,
    st.builds(
        Pattern,
        st.sampled_from(TYPES),
        st.sampled_from(NAMES),
        st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    ),
    st.sampled_from([*PRINCIPALS, "User:*"]),
    st.sampled_from([*HOSTS, "*"]),
    st.sampled_from(OPERATIONS),
    st.sampled_from([ALLOW, DENY]),
)
filters = st.builds(
    AclFilter,
    st.sampled_from([ResourceType.ANY, *TYPES]),
    st.sampled_from([None, *NAMES, "abcd"]),
    st.sampled_from([PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED]),
    # Most filters are wide, so that they select some of the rules.
    st.sampled_from([None] * 9 + ["User:*", *PRINCIPALS]),
    st.sampled_from([None] * 9 + ["*", *HOSTS]),
    st.sampled_from([Operation.ANY] * 6 + [Operation.ALL, Operation.READ]),
    st.sampled_from([Permission.ANY] * 6 + [Permission.ALLOW, Permission.DENY]),
)


def is_selected(rule, asked):
    name, pattern = asked.name, rule.pattern
    if name is not None and asked.pattern_type is PatternType.MATCH:
        if not applies(pattern, name):
            return False
    elif name not in (None, pattern.name):
        return False
    return (
        asked.resource_type in (ResourceType.ANY, pattern.resource_type)
        and asked.pattern_type in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type)
        and asked.principal in (None, rule.principal)
        and asked.host in (None, rule.host)
        and asked.operation in (Operation.ANY, rule.operation)
        and asked.permission in (Permission.ANY, rule.permission)
    )


@pytest.mark.extended
@settings(max_examples=examples(200))
@given(st.lists(bindings, min_size=2, max_size=8), filters)
def test_a_filter_finds_the_rules_that_it_describes(rules, asked):
    found = list(AclIndex(rules).matching(asked))
    assert len(found) == len(set(found))
    assert set(found) == {rule for rule in rules if is_selected(rule, asked)}


def applies(pattern, name):
    if pattern.pattern_type is PatternType.PREFIXED:
        return name.startswith(pattern.name)
    return pattern.name in (name, "*")


def rule(
    name="a", operation=Operation.READ, permission=ALLOW, *, principal="User:alice", host="*", prefixed=False
):
    pattern_type = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    return AclBinding(Pattern(ResourceType.TOPIC, name, pattern_type), principal, host, operation, permission)


def find(index, name, principal="User:alice", host="10.0.0.1"):
    return index.find(principal, host, ResourceType.TOPIC, name)


def allows_some(index, operation=Operation.READ, principal="User:alice", host="10.0.0.1"):
    return index.allows_some(principal, host, ResourceType.TOPIC, operation)


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.booleans(), bindings), max_size=12))
def test_after_each_change_the_index_has_the_rules_of_a_plain_set(steps):
    index, model = AclIndex(), set()
    for is_added, binding in steps:
        (index.add if is_added else index.remove)(binding)
        (model.add if is_added else model.discard)(binding)
        assert len(index) == len(model)
        assert (binding in index) is is_added
    assert len(list(index)) == len(model)
    assert set(index) == model
    assert set(index.patterns()) == {one.pattern for one in model}
    for pattern in index.patterns():
        assert set(index.rules_of_pattern(pattern)) == {one for one in model if one.pattern == pattern}
    for host in HOSTS:
        assert index.names_host(host) is (host in {one.host for one in model})
    for kind in TYPES:
        for name in NAMES:
            of_resource = [
                one for one in model if one.pattern.resource_type is kind and applies(one.pattern, name)
            ]
            assert index.has_rules(kind, name) is bool(of_resource)
            mine = [
                one
                for one in of_resource
                if one.principal in ("User:alice", "User:*") and one.host in (HOSTS[0], "*")
            ]
            masks = (
                bits({one.operation for one in mine if one.permission is said}) for said in (ALLOW, DENY)
            )
            assert index.find("User:alice", HOSTS[0], kind, name) == Masks(*masks)


def test_a_rule_that_is_added_twice_is_there_once_and_is_removed_once():
    index = AclIndex([rule(), rule()])
    assert len(index) == 1
    index.remove(rule())
    index.remove(rule())
    assert (len(index), list(index), index.patterns()) == (0, [], [])


def test_a_prefix_applies_as_long_as_one_rule_of_this_prefix_is_left():
    index = AclIndex(
        [rule("ab", prefixed=True), rule("ab", Operation.WRITE, prefixed=True), rule("a", prefixed=True)]
    )
    index.remove(rule("ab", prefixed=True))
    assert find(index, "abc") == Masks(bits([Operation.READ, Operation.WRITE]), 0)
    index.remove(rule("ab", Operation.WRITE, prefixed=True))
    assert find(index, "abc") == Masks(bits([Operation.READ]), 0)
    index.remove(rule("a", prefixed=True))
    assert find(index, "abc") == Masks(0, 0)
    assert not index.has_rules(ResourceType.TOPIC, "abc")


def test_rules_of_everyone_and_of_every_host_apply_too():
    index = AclIndex(
        [
            rule(operation=Operation.READ),
            rule(operation=Operation.WRITE, principal="User:*", host="10.0.0.1"),
            rule(operation=Operation.ALTER, permission=DENY, principal="User:*"),
            rule(operation=Operation.DELETE, host="10.0.0.2"),
            rule(operation=Operation.CREATE, principal="User:bob"),
        ]
    )
    assert find(index, "a") == Masks(bits([Operation.READ, Operation.WRITE]), bits([Operation.ALTER]))


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ([], False),
        ([rule()], True),
        ([rule(operation=Operation.ALL)], True),
        ([rule(operation=Operation.WRITE)], False),
        ([rule(principal="User:bob")], False),
        ([rule(host="10.0.0.2")], False),
        ([rule(), rule(permission=DENY)], False),
        ([rule(), rule("b", permission=DENY)], True),
        ([rule(), rule("*", permission=DENY)], False),
        ([rule("*"), rule("a", permission=DENY)], True),
        ([rule("*"), rule("*", Operation.ALL, DENY)], False),
        ([rule("ab"), rule("a", permission=DENY, prefixed=True)], False),
        ([rule("ab", prefixed=True), rule("a", permission=DENY, prefixed=True)], False),
        ([rule("a", prefixed=True), rule("ab", permission=DENY, prefixed=True)], True),
        ([rule("ab", prefixed=True), rule("ab", permission=DENY)], True),
        ([rule("a"), rule("b"), rule("a", permission=DENY)], True),
    ],
)
def test_some_resource_is_allowed_unless_rules_deny_everything_that_rules_allow(rules, allowed):
    assert allows_some(AclIndex(rules)) is allowed


def test_no_operation_implies_another_one_for_some_resource():
    assert not allows_some(AclIndex([rule(operation=Operation.WRITE)]), Operation.DESCRIBE)
