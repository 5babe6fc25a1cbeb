"""Checks of the arguments that a program passes to the client.

One rule holds for all calls: an argument of a wrong type raises TypeError, and a value that is not valid raises
UsageError. The message names the argument, the given value and what is valid. What only a broker knows, such as whether
a topic exists, is not checked here; the call that asks the broker raises RefusedError. A bool is not accepted as a
number, although it is one in Python.
"""

import math
import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from stablelog.errors import UsageError
from stablelog.types import TOPIC_NAME_RULE, is_topic_name

Content = bytes | str | None
Headers = Mapping[str, Content] | Iterable[tuple[str, Content]]

SHOWN_MAX: Final = 60  # characters of a value in a message
# A batch stores differences of two timestamps, which must fit into 64 bits.
TIMESTAMP_MAX: Final = (1 << 62) - 1
SECONDS_MAX: Final = 2**31 // 1000  # a signed 32-bit number of milliseconds
COMMIT_SEQUENCE_MAX: Final = 2**63 - 1
PORT_MAX: Final = 65_535
PORT_DIGITS_MAX: Final = 20  # leading zeros are valid
TEXT_SIZE_MAX: Final = 32_767  # bytes of a text in a request, as in Kafka
WHOLE_BITS_MAX: Final = (
    128  # of a whole number; what is greater is out of every range, and slow to write as text
)
BATCH_RECORDS: Final = 500  # the default of `max_records` of `batches`
COLLECT_S: Final = 0.1  # the default of `max_wait` of `batches`


def shown_value(value: object) -> str:
    """Return the text of a value for an error message, shortened if it is long."""
    try:
        text = repr(value)
    except ValueError:  # it has an integer with more digits than Python writes
        return f"a value of type {type(value).__name__} with too many digits"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


def wrong_type(name: str, value: object, right: str) -> TypeError:
    """Return the TypeError for an argument. The message names the right type (`right`) and the given value."""
    return TypeError(f"{name} must be {right}, and not {type(value).__name__} ({shown_value(value)})")


def text(name: str, value: object, right: str = "text (str)") -> str:
    """Check that an argument is a str, and return it. `name` and `right` (what is valid) are for the error message."""
    if not isinstance(value, str):
        raise wrong_type(name, value, right)
    return value


def true_or_false(name: str, value: object) -> bool:
    """Check that an argument is True or False, and return it."""
    if not isinstance(value, bool):
        raise wrong_type(name, value, "True or False")
    return value


def whole_number(name: str, value: object, right: str) -> int:
    """Check that an argument is a whole number, of Python or of a library such as NumPy, and return it as an int.
    `name` and `right` (what is valid) are for the error message.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise wrong_type(name, value, right)
    number = operator.index(value)
    if number.bit_length() > WHOLE_BITS_MAX:
        raise UsageError(f"{name}={shown_value(number)} is out of range: {right}")
    return number


def seconds(name: str, value: Any, *, is_zero_valid: bool = True, most: int = SECONDS_MAX) -> float:
    """Check that an argument is a number of seconds in the valid range, and return it as a float.

    Args:
        name: the name of the argument, for the error message.
        value: the given value.
        is_zero_valid: whether 0 seconds are valid.
        most: the greatest valid number of seconds.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(name, value, "a number of seconds")
    if not 0 <= value <= most or not (value or is_zero_valid):  # NaN, too, which is in no range
        least = "from 0" if is_zero_valid else "greater than 0, up"
        raise UsageError(f"{name}={shown_value(value)} is not valid: a number of seconds {least} to {most}")
    return float(value)


def wait_seconds(wait: Any) -> float | None:
    """Check the argument `wait` of a reader, and return it as a number of seconds. Return None for no limit, which a
    program requests by None or infinity.
    """
    return None if wait is None or wait == math.inf else seconds("wait", wait)


def timeout_seconds(timeout: Any) -> float | None:
    """Check the argument `timeout` of a future, and return it as a number of seconds. Return None for no limit, which a
    program requests by None or infinity. A negative number counts as 0.
    """
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise wrong_type("timeout", timeout, "a number of seconds, or None")
    if timeout != timeout:  # noqa: PLR0124 - NaN
        raise UsageError("the timeout nan is not valid: a number of seconds, or None")
    return float(min(max(0, timeout), SECONDS_MAX))


def function(name: str, value: Any) -> Any:
    """Check that an argument can be called as a function, and return it."""
    if not callable(value):
        raise wrong_type(name, value, "a function")
    return value


def addresses(bootstrap: Any) -> list[str]:
    """Split the argument `bootstrap` ("host:port,host:port") at its commas, and return the addresses."""
    right = "write host:port, and commas between addresses"
    found = [
        address.strip()
        for address in text("bootstrap", bootstrap, 'text such as "host:port,host:port" (str)').split(",")
        if address.strip()
    ]
    for address in found:
        match = re.fullmatch(r"\[?[^\s\[\]/]+\]?:(\d+)", address)
        if match is None or len(match[1]) > PORT_DIGITS_MAX or not 0 < int(match[1]) <= PORT_MAX:
            why = right if match is None else f"a port is a number from 1 to {PORT_MAX}"
            raise UsageError(f"the bootstrap address {shown_value(address)} is not valid: {why}")
    if not found:
        raise UsageError(f"there is no bootstrap address: {right}")
    return found


def topic_name(value: object, name: str = "topic") -> str:
    """Check that a topic can have this name, and return it."""
    topic = text(name, value, "the name of a topic (str)")
    if not is_topic_name(topic):
        raise UsageError(f"{name}={shown_value(topic)} is not a valid topic name: {TOPIC_NAME_RULE}")
    return topic


def topic_names(topics: object) -> tuple[str, ...]:
    """Check the argument `topics` of a reader: one name or several. Return the names, each of them once."""
    if isinstance(topics, str):
        return (topic_name(topics, "topics"),)
    if isinstance(topics, bytes | bytearray | memoryview) or not isinstance(topics, Iterable):
        raise wrong_type("topics", topics, "the name of a topic (str), or several names")
    names = tuple(dict.fromkeys(topic_name(topic, "topics") for topic in topics))
    if not names:
        raise UsageError("topics is empty: name one topic or several")
    return names


def content(name: str, value: object) -> bytes | None:
    """Check a key, a value or the value of a header, and return it as bytes. A text is encoded as UTF-8. None is
    returned unchanged: it stands for null in Kafka.
    """
    if value is None or isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        hint = f": pass bytes({name})" if isinstance(value, bytearray | memoryview) else ""
        raise TypeError(f"{name} must be bytes, text or None, and not {type(value).__name__}{hint}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{name} is no text that UTF-8 can encode: character {error.start} is an unpaired surrogate"
        ) from error


def request_text(name: str, value: object, right: str = "text (str)") -> str:
    """Check that an argument is a text that a request can contain, and return it."""
    found = text(name, value, right)
    size = len(content(name, found) or b"")
    if size > TEXT_SIZE_MAX:
        raise UsageError(f"{name}={shown_value(found)} has {size} bytes: at most {TEXT_SIZE_MAX} are valid")
    return found


def contents(name: str, values: Any) -> list[bytes | None]:
    """Check the keys or the values of several records, and return them as bytes, with None for each null."""
    if isinstance(values, str | bytes | bytearray | memoryview | Mapping) or not isinstance(values, Iterable):
        raise wrong_type(name, values, "a list of bytes, text or None")
    return [
        value if type(value) is bytes else content(f"{name}[{number}]", value)
        for number, value in enumerate(values)
    ]


def record_headers(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    """Check the headers of a record, and return them as pairs of a name and a value. A value is bytes, or None for
    null.
    """
    right = "a mapping from names to values, or pairs of name and value"
    if isinstance(headers, str | bytes | bytearray) or not isinstance(headers, Iterable):
        raise wrong_type("headers", headers, right)
    found = []
    for pair in headers.items() if isinstance(headers, Mapping) else headers:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"headers must be {right}, and {shown_value(pair)} is no pair")
        name, value = pair
        content("the name of a header", text("the name of a header", name))
        found.append((name, content(f"the value of the header {shown_value(name)}", value)))
    return tuple(found)


def timestamp(timestamp_ms: Any) -> int:
    """Check the timestamp that a program gives for a record, in milliseconds since 1970, and return it as an int.

    Raises:
        TypeError: the timestamp is not a whole number.
        UsageError: the timestamp is out of the range that a record can have.
    """
    number = whole_number("timestamp_ms", timestamp_ms, "a whole number of milliseconds since 1970 (int)")
    if not 0 <= number <= TIMESTAMP_MAX:
        raise UsageError(f"timestamp_ms={shown_value(number)} is out of range: from 0 to {TIMESTAMP_MAX}")
    return number


def partition_number(partition: Any) -> int:
    """Check that an argument can be the number of a partition, and return it. Only the broker knows whether the
    partition exists.
    """
    return whole_number("partition", partition, "the number of a partition (int)")


def topic_and_partition(topic: Any, partition: Any) -> tuple[str, int | None]:
    """Check the arguments `topic` and `partition`, and return both. The partition may be None, which stands for all
    partitions of the topic.
    """
    return topic_name(topic), None if partition is None else partition_number(partition)


def offset_number(offset: Any) -> int:
    """Check that an argument can be an offset, and return it. Only the broker knows whether the log has the offset."""
    return whole_number("offset", offset, "an offset (int)")


def batch_limits(max_records: Any, max_wait: Any) -> tuple[int, float]:
    """Check the arguments of the method `batches` of a reader. Return the maximum number of records in a batch, and for
    how many seconds a batch waits for more records.
    """
    count = whole_number("max_records", max_records, "a number of records (int)")
    if count < 1:
        raise UsageError(f"max_records={shown_value(count)} is not valid: at least one record")
    return count, seconds("max_wait", max_wait)
