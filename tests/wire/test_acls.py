"""Which resources a pattern selects, and which rules a filter finds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from tests.scale import examples

names = st.sampled_from(["a", "ab", "abc", "b", "*"])
bindings = st.builds(
    AclBinding,
    st.builds(
        Pattern,
        st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
        names,
        st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    ),
    st.sampled_from(["User:a", "User:*"]),
    st.sampled_from(["*", "10.0.0.1"]),
    st.sampled_from([Operation.READ, Operation.ALL]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
RULE = AclBinding(
    Pattern(ResourceType.TOPIC, "orders", PatternType.PREFIXED),
    "User:a",
    "*",
    Operation.READ,
    Permission.ALLOW,
)


def literal(name):
    return Pattern(ResourceType.TOPIC, name)


@pytest.mark.parametrize(
    ("pattern", "name", "applies"),
    [
        (literal("orders"), "orders", True),
        (literal("orders"), "orders-2", False),
        (literal("*"), "orders", True),
        (Pattern(ResourceType.TOPIC, "orders", PatternType.PREFIXED), "orders", True),
        (Pattern(ResourceType.TOPIC, "orders", PatternType.PREFIXED), "orders-2", True),
        (Pattern(ResourceType.TOPIC, "orders", PatternType.PREFIXED), "order", False),
        (Pattern(ResourceType.TOPIC, "*", PatternType.PREFIXED), "orders", False),
    ],
)
def test_a_pattern_selects_by_its_whole_name_by_a_prefix_or_all(pattern, name, applies):
    assert pattern.applies_to(name) is applies


@settings(max_examples=examples(25))
@given(bindings)
def test_a_filter_without_values_finds_every_rule(binding):
    assert AclFilter().matches(binding)


@settings(max_examples=examples(25))
@given(bindings, bindings)
def test_a_filter_with_all_values_of_a_rule_finds_this_rule_only(wanted, other):
    (kind, name, pattern_type), *rest = wanted
    assert AclFilter(kind, name, pattern_type, *rest).matches(other) is (wanted == other)


@settings(max_examples=examples(25))
@given(bindings, names)
def test_a_filter_of_type_match_finds_the_rules_that_apply_to_the_resource(binding, name):
    found = AclFilter(ResourceType.TOPIC, name, PatternType.MATCH).matches(binding)
    of_topics = binding.pattern.resource_type is ResourceType.TOPIC
    assert found is (of_topics and binding.pattern.applies_to(name))


def test_a_filter_of_a_literal_name_does_not_find_the_prefix_or_the_wildcard_that_select_it():
    exact = AclFilter(ResourceType.TOPIC, "orders", PatternType.LITERAL)
    assert not exact.matches_pattern(Pattern(ResourceType.TOPIC, "orders", PatternType.PREFIXED))
    assert not exact.matches_pattern(literal("*"))
    assert exact.matches_pattern(literal("orders"))


def test_a_filter_of_any_pattern_type_compares_the_name_as_it_stands():
    any_type = AclFilter(ResourceType.TOPIC, "orders")
    assert any_type.matches_pattern(literal("orders"))
    assert any_type.matches_pattern(Pattern(ResourceType.TOPIC, "orders", PatternType.PREFIXED))
    assert not any_type.matches_pattern(literal("*"))


def test_a_rule_says_in_words_whom_it_allows_what():
    assert str(RULE) == "ALLOW User:a from host * READ on TOPIC:PREFIXED:orders"


def test_the_numbers_are_kafkas():
    assert [one.name for one in sorted(Operation)][:5] == ["UNKNOWN", "ANY", "ALL", "READ", "WRITE"]
    for enum in (Operation, ResourceType, PatternType, Permission):
        assert [one.value for one in enum] == list(range(len(enum))), enum
    assert (Operation.TWO_PHASE_COMMIT, ResourceType.USER) == (15, 7)
    assert (PatternType.LITERAL, PatternType.PREFIXED, Permission.DENY, Permission.ALLOW) == (3, 4, 2, 3)


@pytest.mark.parametrize("enum", [Operation, ResourceType, PatternType, Permission])
def test_a_number_that_a_later_kafka_knows_is_unknown(enum):
    assert known(enum, 2) is enum(2)
    assert known(enum, max(enum) + 1) is enum.UNKNOWN
    assert known(enum, -1) is enum.UNKNOWN
