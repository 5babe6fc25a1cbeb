"""The identity of a client as a text, as rules and messages have it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.security.principal import ANONYMOUS, USER, Principal, parse_principal
from tests.scale import examples


@settings(max_examples=examples(25))
@given(st.text(min_size=1, max_size=9).filter(lambda kind: ":" not in kind), st.text(min_size=1, max_size=20))
def test_a_principal_is_read_as_it_was_written_also_with_colons_in_its_name(kind, name):
    assert parse_principal(str(Principal(kind, name))) == (kind, name)


def test_the_text_of_a_principal_is_its_type_and_its_name():
    assert str(Principal(USER, "CN=alice,O=a:b")) == "User:CN=alice,O=a:b"
    assert str(ANONYMOUS) == "User:ANONYMOUS", "what Kafka calls it in its rules"


@pytest.mark.parametrize("text", ["", "alice", ":", "User:", ":alice"])
def test_a_text_without_a_type_or_a_name_is_refused_with_what_to_write(text):
    with pytest.raises(ValueError, match=f"^{text!r} is not a principal: write User:name$"):
        parse_principal(text)
