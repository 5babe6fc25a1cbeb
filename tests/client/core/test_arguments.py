"""Checks of what a program passes to the client: TypeError for a wrong type, UsageError for a value that is not valid. The
message has the argument, what was given and what is right.
"""

import math
import re

import numpy as np
import pytest

from stablelog.client.core import arguments
from stablelog.errors import UsageError

HUGE = 10**5000  # Python refuses to write it as text
LONE = "\ud800"  # a surrogate, which UTF-8 cannot encode


def refused(error, message, call, *given, **named):
    with pytest.raises(error, match=f"^{message}$") as raised:
        call(*given, **named)
    assert type(raised.value) is error


def test_a_value_is_shown_shortened():
    assert arguments.shown_value("x" * 58) == repr("x" * 58)
    assert arguments.shown_value("x" * 59) == "'" + "x" * 59 + "..."
    assert arguments.shown_value([HUGE]) == "a value of type list with too many digits"


def test_text_is_a_str():
    assert arguments.text("a name", "x") == "x"
    refused(TypeError, r"a name must be text \(str\), and not bytes \(b'x'\)", arguments.text, "a name", b"x")


@pytest.mark.parametrize("value", [0, 1, None, "True"])
def test_a_flag_is_true_or_false(value):
    assert arguments.true_or_false("cut", True) is True
    assert arguments.true_or_false("cut", False) is False
    refused(
        TypeError,
        rf"cut must be True or False, and not .* \({re.escape(repr(value))}\)",
        arguments.true_or_false,
        "cut",
        value,
    )


@pytest.mark.parametrize("value", [0, -5, 2**128 - 1, np.int32(7)])
def test_a_whole_number_is_one_of_python_or_numpy(value):
    found = arguments.whole_number("n", value, "a number")
    assert found == value
    assert type(found) is int


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_what_is_no_whole_number_is_refused(value):
    refused(TypeError, r"n must be a number, and not .*", arguments.whole_number, "n", value, "a number")


@pytest.mark.parametrize("value", [2**128, -(2**128), HUGE], ids=["positive", "negative", "huge"])
def test_a_whole_number_that_no_range_has_is_refused_before_it_is_written_as_text(value):
    refused(UsageError, r"n=.* is out of range: a number", arguments.whole_number, "n", value, "a number")


@pytest.mark.parametrize("value", [0, 0.5, 2147483])
def test_seconds_are_a_float(value):
    assert arguments.seconds("wait", value) == value
    assert type(arguments.seconds("wait", value)) is float


@pytest.mark.parametrize("value", [-1, -0.001, math.nan, math.inf, 2147484, HUGE], ids=arguments.shown_value)
def test_seconds_out_of_range_are_refused_with_the_range(value):
    refused(
        UsageError,
        r"wait=.* is not valid: a number of seconds from 0 to 2147483",
        arguments.seconds,
        "wait",
        value,
    )


def test_zero_seconds_are_refused_where_they_mean_nothing():
    refused(
        UsageError,
        r"timeout=0 is not valid: a number of seconds greater than 0, up to 9",
        arguments.seconds,
        "timeout",
        0,
        is_zero_valid=False,
        most=9,
    )


@pytest.mark.parametrize("value", [None, math.inf])
def test_a_wait_without_limit_is_none_or_infinity(value):
    assert arguments.wait_seconds(value) is None
    assert arguments.wait_seconds(5) == 5.0


@pytest.mark.parametrize(("given", "found"), [(None, None), (-3, 0.0), (2.5, 2.5), (math.inf, 2147483.0)])
def test_the_timeout_of_a_future_is_limited_instead_of_refused(given, found):
    assert arguments.timeout_seconds(given) == found


def test_a_timeout_that_is_no_number_is_refused():
    refused(UsageError, "the timeout nan is not valid: .*", arguments.timeout_seconds, math.nan)
    refused(
        TypeError,
        "timeout must be a number of seconds, or None, and not str .*",
        arguments.timeout_seconds,
        "5",
    )


def test_a_function_is_what_can_be_called():
    assert arguments.function("on_end", len) is len
    refused(TypeError, r"on_end must be a function, and not int \(5\)", arguments.function, "on_end", 5)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("h:1", ["h:1"]),
        (" h:1 , ,k:65535,", ["h:1", "k:65535"]),
        ("[::1]:9092", ["[::1]:9092"]),
        ("h:00000000000000009092", ["h:00000000000000009092"]),
    ],
)
def test_addresses_are_separated_by_commas(given, found):
    assert arguments.addresses(given) == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("h", "the bootstrap address 'h' is not valid: write host:port, and commas between addresses"),
        ("h:1,http://k:1", "the bootstrap address 'http://k:1' is not valid: write host:port, .*"),
        ("h:0", "the bootstrap address 'h:0' is not valid: a port is a number from 1 to 65535"),
        ("h:65536", "the bootstrap address 'h:65536' is not valid: a port is a number from 1 to 65535"),
        ("h:" + "1" * 21, "the bootstrap address .* is not valid: a port is a number from 1 to 65535"),
        (" , ", "there is no bootstrap address: write host:port, .*"),
    ],
)
def test_an_address_that_is_not_valid_is_named(given, message):
    refused(UsageError, message, arguments.addresses, given)


def test_a_topic_has_a_name_that_kafka_accepts():
    assert arguments.topic_name("a.b_C-1") == "a.b_C-1"
    for name in ("", ".", "a b", "x" * 250):
        refused(UsageError, "topic=.* is not a valid topic name: use .*", arguments.topic_name, name)
    refused(
        TypeError, r"u must be the name of a topic \(str\), and not int \(5\)", arguments.topic_name, 5, "u"
    )


@pytest.mark.parametrize(
    ("given", "found"), [("t", ("t",)), (["t", "u", "t"], ("t", "u")), (iter("ab"), ("a", "b"))]
)
def test_topics_are_one_name_or_several_each_once(given, found):
    assert arguments.topic_names(given) == found


def test_topics_that_are_none_or_no_names_are_refused():
    refused(UsageError, "topics is empty: name one topic or several", arguments.topic_names, [])
    refused(
        TypeError,
        r"topics must be the name of a topic \(str\), or several names, and not bytes .*",
        arguments.topic_names,
        b"t",
    )
    refused(TypeError, "topics must be the name of a topic .*", arguments.topic_names, ["t", None])


@pytest.mark.parametrize(("given", "found"), [(None, None), (b"x", b"x"), ("é", "é".encode())])
def test_a_key_or_value_is_bytes_or_text_or_none(given, found):
    assert arguments.content("key", given) == found


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (5, TypeError, "key must be bytes, text or None, and not int"),
        (
            bytearray(b"x"),
            TypeError,
            r"key must be bytes, text or None, and not bytearray: pass bytes\(key\)",
        ),
        (
            f"ab{LONE}",
            UsageError,
            "key is no text that UTF-8 can encode: character 2 is an unpaired surrogate",
        ),
    ],
)
def test_another_key_is_refused_with_what_to_pass(given, error, message):
    refused(error, message, arguments.content, "key", given)


def test_a_text_of_a_request_has_at_most_as_many_bytes_as_kafka_accepts():
    assert arguments.request_text("group", "é" * 16383) == "é" * 16383
    refused(
        UsageError,
        r"group=.* has 32768 bytes: at most 32767 are valid",
        arguments.request_text,
        "group",
        "é" * 16384,
    )
    refused(UsageError, "group is no text that UTF-8 can encode: .*", arguments.request_text, "group", LONE)


def test_several_values_are_named_by_their_numbers():
    assert arguments.contents("values", ["a", b"b", None]) == [b"a", b"b", None]
    refused(TypeError, r"values\[1\] must be bytes, .*", arguments.contents, "values", ["a", 5])
    for given in ("ab", b"ab", {"a": 1}, 5):
        refused(
            TypeError,
            "values must be a list of bytes, text or None, and not .*",
            arguments.contents,
            "values",
            given,
        )


@pytest.mark.parametrize(
    "given", [{"a": "1", "b": None}, [("a", b"1"), ["b", None]], iter([("a", "1"), ("b", None)])]
)
def test_headers_are_a_mapping_or_pairs(given):
    assert arguments.record_headers(given) == (("a", b"1"), ("b", None))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("ab", TypeError, "headers must be a mapping from names to values, or pairs .*, and not str .*"),
        ([("a",)], TypeError, r"headers must be a mapping .*, and \('a',\) is no pair"),
        ({5: b"1"}, TypeError, "the name of a header must be text .*"),
        ({LONE: b"1"}, UsageError, "the name of a header is no text that UTF-8 can encode: .*"),
        ({"a": 5}, TypeError, "the value of the header 'a' must be bytes, text or None, and not int"),
    ],
)
def test_a_wrong_header_is_named(given, error, message):
    refused(error, message, arguments.record_headers, given)


def test_a_timestamp_leaves_room_for_differences_in_64_bits():
    for value in (0, 2**62 - 1):
        assert arguments.timestamp(value) == value
    for value in (-1, 2**62):
        refused(
            UsageError,
            rf"timestamp_ms={value} is out of range: from 0 to {2**62 - 1}",
            arguments.timestamp,
            value,
        )
    refused(
        TypeError,
        r"timestamp_ms must be a whole number of milliseconds since 1970 \(int\), .*",
        arguments.timestamp,
        1.5,
    )


def test_a_place_is_a_topic_and_perhaps_a_partition():
    assert arguments.topic_and_partition("t", None) == ("t", None)
    assert arguments.topic_and_partition("t", 3) == ("t", 3)
    refused(
        TypeError,
        r"partition must be the number of a partition \(int\), .*",
        arguments.topic_and_partition,
        "t",
        "3",
    )
    refused(TypeError, r"offset must be an offset \(int\), .*", arguments.offset_number, 1.0)


def test_a_batch_of_a_reader_has_at_least_one_record():
    assert arguments.batch_limits(1, 0.5) == (1, 0.5)
    refused(UsageError, "max_records=0 is not valid: at least one record", arguments.batch_limits, 0, 1)
    refused(
        TypeError, r"max_records must be a number of records \(int\), .*", arguments.batch_limits, None, 1
    )
    refused(UsageError, "max_wait=-1 is not valid: .*", arguments.batch_limits, 1, -1)
