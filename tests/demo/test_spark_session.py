"""A Spark session that could not connect is started again."""

import subprocess
import sys

import pytest
from pyspark import SparkContext

import demo.spark_session
from demo.busy import LateError
from demo.spark_session import TRIES, could_not_connect, in_time, quiet_session

REFUSED = [
    RuntimeError("An error occurred while trying to connect to the Java server (127.0.0.1:25335)"),
    RuntimeError("Job aborted.\nCaused by: SparkException: Python worker failed to connect back."),
    ConnectionRefusedError(111, "Connection refused"),
]


class Gateway:
    """What PySpark keeps of a Java process."""

    def __init__(self):
        self.proc = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def shutdown(self):
        raise ConnectionRefusedError(111, "Connection refused")


class Sessions:
    """Starts sessions, of which the first ones fail with these errors, each after its Java process has started."""

    def __init__(self, *errors):
        self.errors = [*errors]
        self.gateways = []
        self.sparkContext = self
        self.level = None

    def __call__(self, *_, **__):
        assert SparkContext._gateway is None, "the Java process of the attempt before is used again"
        SparkContext._gateway = Gateway()
        self.gateways.append(SparkContext._gateway)
        if self.errors:
            raise self.errors.pop(0)
        return self

    def setLogLevel(self, level):
        self.level = level


@pytest.fixture
def start(monkeypatch):
    """Use these sessions; at the end no process is left."""
    used = []

    def use(*errors):
        used.append(Sessions(*errors))
        monkeypatch.setattr(demo.spark_session, "session", used[-1])
        return used[-1]

    for name in ("_gateway", "_jvm", "_active_spark_context"):
        monkeypatch.setattr(SparkContext, name, None)
    yield use
    for sessions in used:
        for gateway in sessions.gateways:
            gateway.proc.kill()
            gateway.proc.wait()


@pytest.mark.parametrize("error", REFUSED, ids=["java", "python", "socket"])
def test_a_session_that_could_not_connect_is_started_again(start, capfd, error):
    sessions = start(*[error] * (TRIES - 1))
    assert quiet_session("test") is sessions
    assert sessions.level == "OFF"
    assert f"the Spark session could not connect: attempt {TRIES} of {TRIES}" in capfd.readouterr().err
    ended = [gateway.proc.poll() is not None for gateway in sessions.gateways]
    assert ended == [True] * (TRIES - 1) + [False]


def test_a_session_that_never_connects_is_late(start, capfd):
    sessions = start(*[REFUSED[0]] * TRIES)
    with pytest.raises(LateError, match=f"the Spark session could not connect in {TRIES} attempts: An error"):
        quiet_session("test")
    assert all(gateway.proc.poll() is not None for gateway in sessions.gateways)
    assert "attempt 4" not in capfd.readouterr().err


def test_a_session_that_fails_otherwise_is_not_started_again(start, capfd):
    sessions = start(ValueError("no such setting"))
    with pytest.raises(ValueError, match="no such setting"):
        quiet_session("test")
    assert len(sessions.gateways) == 1
    assert "attempt" not in capfd.readouterr().err


def test_what_is_said_of_a_late_read_is_the_line_that_tells_why():
    def read():
        raise REFUSED[1]

    with pytest.raises(
        LateError, match=r"the read could not connect in 3 attempts: Caused by: Spark"
    ) as late:
        in_time("the read", read)
    assert late.value.__cause__ is REFUSED[1]
    assert not could_not_connect(ValueError("no such setting"))
