"""The values of settings, and the errors for what is not one."""

import pytest

from stablelog.errors import UsageError
from stablelog.settings import boolean, choice, choices, integer, share


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (integer(-1, 5), "-1", -1),
        (integer(-1, 5), " 5 ", 5),
        (share(), "0.25", 0.25),
        (boolean(), " True", True),
        (boolean(), "false", False),
        (choice("a", "b"), "b", "b"),
        (choices("a", "b"), "b, a", {"a", "b"}),
        (choices("a", "b"), "", set()),
    ],
)
def test_a_value_is_read(kind, text, value):
    assert kind.read("x", text) == value


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (integer(-1, 5), "6", "x='6' is not valid: -1 to 5 (default 3)"),
        (integer(-1, 5), "many", "x='many' is not valid: -1 to 5 (default 3)"),
        (share(), "nan", "x='nan' is not valid: 0 to 1 (default 3)"),
        (boolean(), "1", "x='1' is not valid: true or false (default 3)"),
        (choice("a", "b"), "A", "x='A' is not valid: a or b (default 3)"),
        (choices("a", "b"), "a,c", "x='a,c' is not valid: any of a, b, or empty (default 3)"),
    ],
)
def test_what_is_no_value_is_refused_with_the_valid_ones_and_the_default(kind, text, why):
    with pytest.raises(UsageError) as caught:
        kind.read("x", text, "3")
    assert str(caught.value) == why
