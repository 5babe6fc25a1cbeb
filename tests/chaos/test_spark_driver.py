"""How a test kills the processes of a Spark driver: those that it means, and none that has got the id of one later."""

import contextlib
import signal
import subprocess

import pytest

from tests.chaos.spark_driver import held, identity, kill_held, step, write


@contextlib.contextmanager
def sleeping():
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_process_that_has_the_id_of_an_earlier_one_is_not_held():
    with sleeping() as process:
        process_id, started = identity(process.pid)
        assert held([(process_id, "an earlier start")]) == []
        kill_held(held([(process_id, started)]))
        assert process.wait(60) == -signal.SIGKILL
    assert held([(process_id, started)]) == []


@pytest.mark.parametrize("name", ["decision", "commit log", "commit logged"])
def test_a_step_kills_what_the_plan_says(tmp_path, name):
    logged = tmp_path / "logged"
    with sleeping() as broker:
        write(tmp_path / "broker.json", [identity(broker.pid)])
        write(tmp_path / "plan.json", {"step": name, "target": "broker", "skip": 1, "delay_s": 0.01})
        step(tmp_path, name, logged)
        step(tmp_path, "read")
        assert not (tmp_path / "fired.json").exists(), (
            "the first time is skipped, and other steps are not meant"
        )
        step(tmp_path, name, logged)
        assert (tmp_path / "fired.json").exists()
        if name == "commit logged":
            assert broker.poll() is None, "Spark has not written its commit log yet"
            logged.touch()
        assert broker.wait(60) == -signal.SIGKILL
