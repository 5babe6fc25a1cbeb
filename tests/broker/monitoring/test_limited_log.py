"""Limited log: what a client can write into one line."""

import logging

from stablelog.broker.monitoring.limited_log import LINE_SIZE_MAX, LimitedLog


def test_a_line_is_one_line_of_limited_length(caplog):
    limited = LimitedLog(logging.getLogger("limited"), logging.WARNING, "lines", lambda: 0)
    limited.write("closing %s: %s", "192.0.2.1:5", "a\nfalse line\x1b[2J \u2028 caf\xe9")
    limited.write("%s", "x" * (LINE_SIZE_MAX + 1))
    limited.write("100 %")
    first, second, third = (record.getMessage() for record in caplog.records)
    assert first == r"closing 192.0.2.1:5: a\nfalse line\x1b[2J \u2028 caf" + "\xe9"
    assert second == "x" * LINE_SIZE_MAX + "..."
    assert third == "100 %"
