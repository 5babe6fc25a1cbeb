"""A time limit that has passed: the machine was too busy, or the scene has failed."""

import os
import subprocess
import sys

import pytest
from confluent_kafka import KafkaError, KafkaException

import demo.crashes.scene
from demo.__main__ import main
from demo.busy import EXIT_CODE, LateError, is_late, run_child
from demo.tasks import Task

BUSY, IDLE = 9.0, 0.2
LATE = [
    LateError("no producer has said anything for 180 s"),
    TimeoutError("timed out"),
    subprocess.TimeoutExpired("java", 60),
    KafkaException(KafkaError(KafkaError._TIMED_OUT)),
    KafkaException(KafkaError(KafkaError.INVALID_PRODUCER_EPOCH)),
    RuntimeError("Job aborted: Python worker failed to connect back.\nCaused by: java.net.SocketException"),
    RuntimeError("the broker was not ready within 120 s"),
]
WRONG = [
    SystemExit("stablelog restore has failed"),
    ValueError("no room"),
    KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)),
    KafkaException("no error of Kafka"),
]


def names(errors):
    return [f"{type(error).__name__}-{number}" for number, error in enumerate(errors)]


@pytest.fixture
def play(monkeypatch, tmp_path):
    """Play a scene that ends with an error, under a load: processes for each core."""

    def run(error, load):
        def fail(*_):
            raise error

        monkeypatch.setattr(demo.crashes.scene, "play", fail)
        monkeypatch.setattr(os, "getloadavg", lambda: (load * (os.cpu_count() or 1), 0.0, 0.0))
        monkeypatch.setattr(sys, "argv", ["demo", "--data", str(tmp_path / "data")])
        return main()

    return run


@pytest.mark.parametrize("error", LATE, ids=names(LATE))
def test_a_scene_that_is_late_on_a_busy_machine_says_so_and_does_not_fail(play, capsys, error):
    assert play(error, BUSY) == EXIT_CODE
    said = capsys.readouterr().out
    assert "the machine is too busy: " + str(error).partition("\n")[0] in said
    assert "9.0 processes ran or waited for each of its" in said
    assert "neither failed nor proved anything" in said


@pytest.mark.parametrize("error", LATE, ids=names(LATE))
def test_a_scene_that_is_late_on_an_idle_machine_fails(play, capsys, error):
    with pytest.raises(type(error)) as raised:
        play(error, IDLE)
    assert raised.value is error
    assert "too busy" not in capsys.readouterr().out


@pytest.mark.parametrize("error", WRONG, ids=names(WRONG))
def test_a_scene_that_fails_on_a_busy_machine_fails(play, capsys, error):
    with pytest.raises(type(error)) as raised:
        play(error, BUSY)
    assert raised.value is error
    assert "too busy" not in capsys.readouterr().out


@pytest.mark.parametrize("error", LATE, ids=names(LATE))
def test_a_process_of_the_scene_that_is_late_ends_with_a_code_that_says_so(capsys, error):
    def work():
        raise error

    assert run_child(work) == EXIT_CODE
    assert capsys.readouterr().err == f"{error}\n"


@pytest.mark.parametrize("error", WRONG, ids=names(WRONG))
def test_a_process_of_the_scene_that_fails_ends_with_its_error(error):
    def work():
        raise error

    with pytest.raises(type(error)):
        run_child(work)


def test_a_process_of_the_scene_that_is_done_ends_with_0():
    assert run_child(lambda: None) == 0


class Failing(Task):
    def __init__(self, error):
        super().__init__("the writer")
        self.error = error

    def work(self):
        raise self.error


@pytest.mark.parametrize("error", [*LATE, *WRONG], ids=names([*LATE, *WRONG]))
def test_a_thread_that_is_late_makes_the_scene_late(error):
    task = Failing(error)
    task.start()
    task.join()
    with pytest.raises(SystemExit, match="the writer failed: ") as raised:
        task.is_running()
    assert is_late(raised.value) == (error in LATE)
