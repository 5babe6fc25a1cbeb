"""The authorizer decides as a plain loop over the rules that is written from Kafka's documentation."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.security.acls import SUPPORTED_OPERATIONS, bits
from stablelog.security.authorizer import CACHED_COUNT_MAX, EVERYTHING, Authorizer
from stablelog.wire.acls import (
    AclBinding,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)

OPERATIONS = [operation for operation in Operation if operation >= Operation.ALL]
ASKED = [operation for operation in OPERATIONS if operation is not Operation.ALL]
TYPES = [ResourceType.TOPIC, ResourceType.GROUP]
PATTERN_NAMES = ["*", "a", "ab", "abc", "b", "hard"]
NAMES = ["*", "a", "ab", "abc", "abcd", "b", "c", "hardcode"]
PRINCIPALS = ["User:alice", "User:bob"]
HOSTS = ["10.0.0.1", "10.0.0.2"]

bindings = st.builds(
    AclBinding,
    st.builds(
        Pattern,
        st.sampled_from(TYPES),
        st.sampled_from(PATTERN_NAMES),
        st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    ),
    st.sampled_from([*PRINCIPALS, "User:*"]),
    st.sampled_from([*HOSTS, "*"]),
    st.sampled_from(OPERATIONS),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
IMPLIED = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


def is_of(rule: AclBinding, principal: str, host: str) -> bool:
    return rule.principal in (principal, "User:*") and rule.host in (host, "*")


def concerns(rule: AclBinding, kind: ResourceType, name: str) -> bool:
    pattern = rule.pattern
    if pattern.resource_type is not kind:
        return False
    if pattern.pattern_type is PatternType.PREFIXED:
        return name.startswith(pattern.name)
    return pattern.name == "*" or pattern.name == name


def expected(
    rules: list[AclBinding], principal: str, host: str, operation: Operation, kind: ResourceType, name: str
) -> bool | None:
    """What the rules say: allowed or denied; None if no rule concerns the resource."""
    of_resource = [rule for rule in rules if concerns(rule, kind, name)]
    if not of_resource:
        return None
    mine = [rule for rule in of_resource if is_of(rule, principal, host)]
    for rule in mine:
        if rule.permission is Permission.DENY and rule.operation in (operation, Operation.ALL):
            return False
    enough = {operation, Operation.ALL} | IMPLIED.get(operation, set())
    return any(rule.permission is Permission.ALLOW and rule.operation in enough for rule in mine)


def expected_for_some(
    rules: list[AclBinding], principal: str, host: str, operation: Operation, kind: ResourceType
) -> bool:
    mine = [
        rule
        for rule in rules
        if rule.pattern.resource_type is kind
        and is_of(rule, principal, host)
        and rule.operation in (operation, Operation.ALL)
    ]
    denied = {(r.pattern.pattern_type, r.pattern.name) for r in mine if r.permission is Permission.DENY}
    allowed = {(r.pattern.pattern_type, r.pattern.name) for r in mine if r.permission is Permission.ALLOW}
    if (PatternType.LITERAL, "*") in denied:
        return False
    if (PatternType.LITERAL, "*") in allowed:
        return True
    for pattern_type, name in allowed:
        if pattern_type is PatternType.LITERAL and (pattern_type, name) in denied:
            continue
        if not any(kind is PatternType.PREFIXED and name.startswith(prefix) for kind, prefix in denied):
            return True
    return False


def check_all(authorizer: Authorizer, rules: list[AclBinding], *, allow_without_rules: bool) -> None:
    for principal in PRINCIPALS:
        for host in HOSTS:
            for kind in TYPES:
                for name in NAMES:
                    for operation in ASKED:
                        said = expected(rules, principal, host, operation, kind, name)
                        wanted = allow_without_rules if said is None else said
                        found = authorizer.allows(principal, host, operation, kind, name)
                        assert found is wanted, (principal, host, operation, kind, name)
                for operation in ASKED:
                    hardcode = authorizer.allows(principal, host, operation, kind, "hardcode")
                    assert authorizer.allows_some(principal, host, operation, kind) is (
                        hardcode or expected_for_some(rules, principal, host, operation, kind)
                    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(bindings, max_size=8),
    st.lists(bindings, max_size=3),
    st.lists(st.integers(0, 7), max_size=4),
    st.booleans(),
)
def test_decides_as_a_loop_over_the_rules_also_after_changes(
    first: list[AclBinding], more: list[AclBinding], gone: list[int], allow_without_rules: bool
) -> None:
    authorizer = Authorizer(first, allow_without_rules=allow_without_rules)
    rules = list(dict.fromkeys(first))
    check_all(authorizer, rules, allow_without_rules=allow_without_rules)
    removed = [rules[place] for place in gone if place < len(rules)]
    authorizer.change(added=more, removed=removed)
    rules = list(dict.fromkeys([rule for rule in rules if rule not in removed] + more))
    assert set(authorizer.index) == set(rules)
    assert len(authorizer.index) == len(rules)
    check_all(authorizer, rules, allow_without_rules=allow_without_rules)
    authorizer.change(removed=rules)
    assert (len(authorizer.index), list(authorizer.index)) == (0, [])
    check_all(authorizer, [], allow_without_rules=allow_without_rules)


def rule(
    operation: Operation,
    permission: Permission = Permission.ALLOW,
    *,
    name: str = "a",
    principal: str = "User:alice",
) -> AclBinding:
    return AclBinding(Pattern(ResourceType.TOPIC, name), principal, "*", operation, permission)


def test_a_super_user_may_do_what_a_rule_denies() -> None:
    denies = rule(Operation.ALL, Permission.DENY, name="*", principal="User:*")
    authorizer = Authorizer([denies], super_users=["User:root"])
    assert authorizer.allowed("User:root", "h", ResourceType.TOPIC, "a") == EVERYTHING
    assert authorizer.allows_some("User:root", "h", Operation.WRITE, ResourceType.TOPIC)
    assert authorizer.allowed("User:alice", "h", ResourceType.TOPIC, "a") == 0


def test_authorized_operations_are_those_that_the_rules_allow() -> None:
    authorizer = Authorizer([rule(Operation.ALL), rule(Operation.WRITE, Permission.DENY)])
    supported = bits(SUPPORTED_OPERATIONS[ResourceType.TOPIC])
    found = authorizer.allowed("User:alice", "h", ResourceType.TOPIC, "a") & supported
    assert found == supported & ~bits([Operation.WRITE])


def test_the_cache_is_bounded() -> None:
    authorizer = Authorizer([rule(Operation.ALL)])
    for number in range(CACHED_COUNT_MAX + 10):
        authorizer.allowed("User:alice", "h", ResourceType.TOPIC, f"t{number}")
    assert 0 < authorizer.cached_count <= CACHED_COUNT_MAX
    before = authorizer.cached_count
    authorizer.allowed("User:alice", "h", ResourceType.TOPIC, "x" * 10_000)
    assert authorizer.cached_count == before
    authorizer.change()
    assert authorizer.cached_count == 0


def many_rules(count: int) -> list[AclBinding]:
    """Rules of which many apply to one resource, and many have prefixed patterns of all lengths."""
    name = "topic-" + "x" * 243
    return [
        AclBinding(
            Pattern(ResourceType.TOPIC, name[: number % 249 + 1], PatternType(3 + number % 2)),
            f"User:{number % 97}",
            "*" if number % 3 else f"10.0.0.{number % 250}",
            Operation(3 + number % 5),
            Permission.DENY if number % 7 == 0 else Permission.ALLOW,
        )
        for number in range(count)
    ]


@pytest.mark.extended
def test_a_check_with_10_000_rules_is_quick() -> None:
    """The bounds are loose, so that a busy machine passes: a slow algorithm needs milliseconds."""
    rules = many_rules(100_000)
    authorizer = Authorizer(rules[:10_000])
    name = "topic-" + "x" * 243

    def best_us(*, cached: bool) -> float:
        times = []
        for _ in range(30):
            if not cached:
                authorizer.change()  # The cache is empty then.
            start = time.perf_counter()
            authorizer.allowed("User:5", "10.0.0.1", ResourceType.TOPIC, name)
            times.append(time.perf_counter() - start)
        return min(times) * 1e6

    assert best_us(cached=False) < 300
    assert best_us(cached=True) < 5


@pytest.mark.extended
@given(st.lists(bindings, max_size=6), st.lists(bindings, max_size=3), st.sampled_from(NAMES))
def test_clients_have_the_same_rights_if_no_rule_names_their_host(rules, removed, name):
    authorizer = Authorizer(rules)
    before = authorizer.version
    authorizer.change(removed=removed)
    assert authorizer.version != before
    one, other = (authorizer.rights_of("User:alice", host) for host in HOSTS)
    named = {rule.host for rule in authorizer.index}
    assert (one == other) == named.isdisjoint(HOSTS)
    if one == other:
        assert len({authorizer.allowed("User:alice", host, TYPES[0], name) for host in HOSTS}) == 1
