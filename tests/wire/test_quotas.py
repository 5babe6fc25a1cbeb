"""Quotas as Kafka's messages have them."""

from stablelog.wire.quotas import ENTITY_TYPES, MatchType, QuotaKey, in_words


def test_the_names_and_numbers_are_kafkas():
    assert ENTITY_TYPES == ("user", "client-id", "ip")
    assert {key.value for key in QuotaKey} == {
        "producer_byte_rate",
        "consumer_byte_rate",
        "request_percentage",
        "controller_mutation_rate",
        "connection_creation_rate",
    }
    assert [(match.name, match.value) for match in MatchType] == [
        ("EXACT", 0),
        ("DEFAULT", 1),
        ("SPECIFIED", 2),
    ]


def test_an_entity_is_told_with_the_type_and_the_name_of_each_part():
    assert in_words([("user", "al ice"), ("client-id", "7")]) == "user 'al ice', client-id '7'"


def test_the_default_is_told_apart_from_an_entity_of_that_name_and_from_an_empty_one():
    assert in_words([("ip", None)]) == "ip <default>"
    assert in_words([("user", "<default>")]) == "user '<default>'"
    assert in_words([("user", "")]) == "user ''"
