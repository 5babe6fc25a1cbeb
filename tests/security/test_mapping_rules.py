"""The examples of Kafka's documentation of ssl.principal.mapping.rules, and the names of real certificates."""

import pytest

from stablelog.security.mapping_rules import parse_rules, principal_name

DN = "CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown"
RULES = (
    r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, "
    r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT"
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (DN, "serviceuser"),
        ("CN=adminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "adminuser@admin"),
        ("OU=x,cn=Some.One,O=y", "some.one"),
        ("O=none", "O=none"),
    ],
)
def test_the_first_rule_that_matches_decides(name, expected):
    assert principal_name(parse_rules(RULES), name) == expected


def test_case_slashes_and_groups():
    assert principal_name(parse_rules("RULE:CN=(.*)/$1/U"), "CN=a") == "A"
    assert principal_name(parse_rules(r"RULE:CN=a\/b/c\/d/"), "CN=a/b") == "c/d"
    assert principal_name(parse_rules(r"RULE:CN=(x)?y/<$1>/"), "CN=y") == "<>"
    assert principal_name(parse_rules(""), DN) == DN


def test_a_pattern_has_to_match_the_whole_name():
    with pytest.raises(ValueError, match=r"no rule of ssl.principal.mapping.rules matches CN=alice,O=evil"):
        principal_name(parse_rules("RULE:CN=alice/alice/"), "CN=alice,O=evil")


@pytest.mark.parametrize(
    "text", ["RULE:a/b", "RULE:(/b/", "RULE:a/$1/", "NONE", "DEFAULT DEFAULT", "DEFAULT,", "RULE:a/b/Lx"]
)
def test_a_rule_that_is_not_valid_is_refused(text):
    with pytest.raises(ValueError):
        parse_rules(text)
