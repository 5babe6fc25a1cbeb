"""Names each failed test when it fails. A run that does not end has told by then what failed."""


class FailedAtOnce:
    """Registered where the summary is printed: in the controller, or in the only process.

    Args:
        terminal: prints lines.
    """

    def __init__(self, terminal):
        self._terminal = terminal

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._terminal.write_line("")  # the dots are on a line of their own
            self._terminal.write_line(f"FAILED {report.nodeid} ({report.when}): {reason_of(report)}")


def reason_of(report):
    """The last line of why a test failed: the error, or the end of what pytest says of it."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (str(report.longrepr) if crash is None else crash.message).strip().splitlines()
    return lines[0 if crash is not None else -1] if lines else "no reason is told"
