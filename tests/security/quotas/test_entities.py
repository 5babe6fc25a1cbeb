"""Entities, the checks of their quotas, and which of them a filter selects."""

import itertools
import math

import pytest

from stablelog.errors import RefusedError
from stablelog.security.quotas.entities import (
    Alteration,
    Entity,
    FilterComponent,
    NamePlaceholder,
    address_of,
    altered_values,
    check_filter,
    check_value,
    entity_of,
    selects,
)
from stablelog.wire.quotas import QuotaKey

DEFAULT, ABSENT = NamePlaceholder.DEFAULT, NamePlaceholder.ABSENT
RATE = QuotaKey.PRODUCER_BYTE_RATE


@pytest.mark.parametrize(
    ("pairs", "entity", "words"),
    [
        ([("user", "a")], Entity(user="a"), "user 'a'"),
        ([("client-id", "c"), ("user", None)], Entity(DEFAULT, "c"), "user <default>, client-id 'c'"),
        ([("ip", "10.0.0.1")], Entity(ip="10.0.0.1"), "ip '10.0.0.1'"),
        ([("ip", None)], Entity(ip=DEFAULT), "ip <default>"),
        ([("user", "x" * 1024)], Entity(user="x" * 1024), f"user {'x' * 1024!r}"),
    ],
)
def test_an_entity_has_the_types_and_names_of_the_message_in_one_order(pairs, entity, words):
    assert entity_of(pairs) == entity
    assert dict(entity.pairs) == dict(pairs)
    assert str(entity) == words


@pytest.mark.parametrize(
    ("ip", "address"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("0:0::1", "::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("10.0.0.256", None),
        ("", None),
    ],
)
def test_an_address_has_one_form(ip, address):
    assert address_of(ip) == address


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ([], "Invalid empty client quota entity"),
        ([("group", "x")], "Unhandled client quota entity type: 'group'"),
        ([("user", "a"), ("user", "b")], "duplicate entity entry user"),
        ([("user", "")], "Empty user not supported"),
        ([("user", "a"), ("ip", None)], "ip cannot be combined"),
        ([("ip", "example.org")], "example.org is not a valid IP address"),
        ([("client-id", "x" * 1025)], "1025 characters"),
    ],
)
def test_an_entity_that_is_not_valid_is_refused(pairs, why):
    with pytest.raises(RefusedError, match=why) as caught:
        entity_of(pairs)
    assert caught.value.code.name == "invalid_request"


USER = Entity(user="a")
ADDRESS = Entity(ip=DEFAULT)


@pytest.mark.parametrize(
    ("entity", "key", "value", "why"),
    [
        (USER, "retention.ms", 1.0, "Invalid configuration key 'retention.ms'"),
        (USER, "connection_creation_rate", 1.0, "Invalid configuration key"),
        (ADDRESS, "producer_byte_rate", 1.0, "Invalid configuration key"),
        (USER, "producer_byte_rate", 0.0, "must be greater than 0"),
        (USER, "producer_byte_rate", -1.0, "must be greater than 0"),
        (USER, "request_percentage", math.nan, "must be greater than 0"),
        (USER, "request_percentage", math.inf, "must be finite"),
        (USER, "producer_byte_rate", 1.5, "cannot be a fractional value"),
        (USER, "producer_byte_rate", 1e19, "too large"),
        (ADDRESS, "connection_creation_rate", 2.0**31, "too large"),
    ],
)
def test_a_value_that_is_not_valid_is_refused_and_nothing_changes(entity, key, value, why):
    present = {RATE: 5.0}
    with pytest.raises(RefusedError, match=why):
        altered_values(present, Alteration(entity, {"consumer_byte_rate": None, key: value}))
    assert present == {RATE: 5.0}


def test_quotas_are_set_and_removed():
    change = Alteration(USER, {"request_percentage": 12.5, "producer_byte_rate": None, "nonsense": None})
    assert altered_values({RATE: 5.0}, change) == {QuotaKey.REQUEST_PERCENTAGE: 12.5}


ENTITIES = [
    Entity(*parts)
    for parts in itertools.product(("a", "b", DEFAULT, ABSENT), ("a", DEFAULT, ABSENT))
    if parts != (ABSENT, ABSENT)
] + [Entity(ip="::1"), Entity(ip=DEFAULT)]


@pytest.mark.parametrize(
    ("components", "strict", "count"),
    [
        ([], False, 13),
        ([], True, 0),
        ([("user", 0, "a")], False, 3),
        ([("user", 0, "a")], True, 1),
        ([("user", 1, None)], False, 3),
        ([("user", 2, None)], False, 9),
        ([("user", 2, None)], True, 3),
        ([("user", 2, None), ("client-id", 2, None)], True, 6),
        ([("user", 2, None), ("client-id", 0, "a")], False, 3),
        ([("ip", 2, None)], True, 2),
        ([("ip", 0, "::1")], False, 1),
    ],
)
def test_a_filter_selects_as_kafkas(components, strict, count):
    components = [FilterComponent(*one) for one in components]
    check_filter(components)
    assert sum(selects(components, entity, strict=strict) for entity in ENTITIES) == count


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        (USER, "producer_byte_rate", 2.0**62),
        (USER, "consumer_byte_rate", 5 + 5e-7),
        (USER, "request_percentage", 0.1),
        (USER, "controller_mutation_rate", 1.5),
        (ADDRESS, "connection_creation_rate", 2.0**31 - 1),
    ],
)
def test_a_value_that_kafka_accepts_is_accepted(entity, key, value):
    assert check_value(entity, key, value) is QuotaKey(key)


@pytest.mark.parametrize(
    ("components", "why", "code"),
    [
        ([("", 2, None)], "the entity type '' is empty or named twice", "invalid_request"),
        ([("user", 2, None), ("user", 1, None)], "'user' is empty or named twice", "invalid_request"),
        ([("group", 2, None)], "the entity type 'group' is not supported", "unsupported_version"),
        ([("user", 3, None)], "the match type 3 is unknown", "invalid_request"),
        ([("user", 0, None)], "the match type 0 and the match string contradict", "invalid_request"),
        ([("user", 1, "a")], "the match type 1 and the match string contradict", "invalid_request"),
        ([("user", 2, "a")], "the match type 2 and the match string contradict", "invalid_request"),
        ([("ip", 2, None), ("user", 2, None)], "ip cannot be combined", "invalid_request"),
    ],
)
def test_a_filter_that_is_not_valid_is_refused(components, why, code):
    with pytest.raises(RefusedError, match=why) as caught:
        check_filter([FilterComponent(*one) for one in components])
    assert caught.value.code.name == code
