"""`stablelog.serve()`: a start that hangs ends, and no broker outlives the process that started it."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import stablelog
from stablelog.broker.directory.directory_signs import CLEAN_SHUTDOWN_FILE
from stablelog.errors import Unavailable
from tests.waiting import until

ROOT = Path(__file__).parents[1]
SERVING = """
import sys, time, stablelog
with stablelog.serve(sys.argv[1]) as broker:
    print(broker.pid, flush=True)
    {then}
"""


def is_running(process_id):
    """Whether it runs; one that has ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def serving(data, then="time.sleep(600)"):
    """A process that runs a broker on this directory, and the broker's process id."""
    program = SERVING.format(then=then)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(data)], stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        broker_id = int(process.stdout.readline())
        try:
            yield process, broker_id
        finally:
            process.kill()
            with contextlib.suppress(ProcessLookupError):
                if is_running(broker_id):
                    os.kill(broker_id, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT], ids=lambda number: number.name
)
def test_a_broker_stops_in_order_when_its_parent_is_killed(tmp_path, number):
    data = tmp_path / "data"
    with serving(data) as (process, broker_id):
        assert is_running(broker_id)
        assert not (data / CLEAN_SHUTDOWN_FILE).exists()
        process.send_signal(number)
        process.wait()
        until(lambda: not is_running(broker_id), "the broker ends, too")
        assert (data / CLEAN_SHUTDOWN_FILE).exists()
    with (data / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_broker_stops_when_its_parent_leaves_without_a_word(tmp_path):
    with serving(tmp_path / "data", "import os; os._exit(3)") as (process, broker_id):
        assert process.wait() == 3
        until(lambda: not is_running(broker_id), "the broker ends, too")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_broker_that_does_not_stop_in_order_after_its_parents_end_is_killed():
    deaf = """
import os, signal, time
from stablelog.cli.serve import stop_with_parent
signal.signal(signal.SIGTERM, signal.SIG_IGN)
stop_with_parent(0, 0.2)
print("it waits", flush=True)
while True:
    time.sleep(600)
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", deaf], cwd=ROOT, **pipes) as process:
        assert process.stdout.readline() == b"it waits\n"
        process.stdin.close()
        assert process.wait() == -signal.SIGKILL


def test_a_start_that_hangs_is_given_up_with_the_end_of_the_log(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "data.log").write_text("what an earlier broker said\n")
    os.mkfifo(data / "meta.properties")  # whoever opens it waits for a writer
    with pytest.raises(Unavailable) as given_up, stablelog.serve(data, start_timeout_s=3):
        pass
    assert str(given_up.value).startswith(
        f"the broker on {data} was not ready within 3 s; its log {data}.log ends"
    )
    assert "what an earlier broker said" in str(given_up.value)
    with (data / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_start_that_fails_is_told_with_the_end_of_the_log(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "cluster.json").write_text("garbage")
    with (
        pytest.raises(
            Unavailable, match=r"did not start; its log .*data.log ends with:\n(.|\n)*cluster.json"
        ),
        stablelog.serve(data),
    ):
        pass


@pytest.mark.parametrize("place", ["link", "link/data", "file", "file/data"])
def test_a_data_directory_that_cannot_be_made_is_an_error_that_names_it(tmp_path, place):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_bytes(b"")
    why = "is a symbolic link to nothing" if place.startswith("link") else "Not a directory"
    with (
        pytest.raises(Unavailable, match=f"{tmp_path / place} failed.*{why}"),
        stablelog.serve(tmp_path / place),
    ):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]
