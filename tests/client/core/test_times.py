"""Times that a program gives to a reader."""

import datetime as dt

import numpy as np
import pytest

from stablelog.client.core.times import milliseconds
from stablelog.errors import UsageError

RIGHT = "a datetime with a time zone, or milliseconds since 1970 \\(int\\)"


@pytest.mark.parametrize(
    ("time", "found"),
    [
        (0, 0),
        (2**63 - 1, 2**63 - 1),
        (np.int64(5), 5),
        (dt.datetime(1970, 1, 1, tzinfo=dt.UTC), 0),
        (dt.datetime(1970, 1, 1, 1, 0, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), 1000),
        (dt.datetime(2026, 1, 1, 0, 0, 0, 123_456, tzinfo=dt.UTC), 1_767_225_600_123),
    ],
)
def test_a_time_is_milliseconds_since_1970(time, found):
    assert milliseconds(time) == found
    assert type(milliseconds(time)) is int


@pytest.mark.parametrize("time", ["2026-01-01", 1.5, True, None, dt.date(2026, 1, 1)])
def test_what_is_no_time_is_refused_with_what_is_right(time):
    with pytest.raises(TypeError, match=f"^time must be {RIGHT}, and not {type(time).__name__}"):
        milliseconds(time)


def test_a_time_without_a_zone_is_refused():
    with pytest.raises(UsageError, match=rf"^time=datetime.datetime\(2026.* is not valid: pass {RIGHT}$"):
        milliseconds(dt.datetime(2026, 1, 1))  # noqa: DTZ001 - that is the subject


@pytest.mark.parametrize("time", [-1, 2**63, dt.datetime(1969, 12, 31, tzinfo=dt.UTC)])
def test_a_time_before_1970_or_out_of_range_is_refused(time):
    """Kafka gives negative times meanings of their own."""
    with pytest.raises(UsageError, match="not before 1970; 0 means the beginning"):
        milliseconds(time)
