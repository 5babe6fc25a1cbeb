"""How a test kills the processes of a Spark driver: those that it means, and none that has got the id of one later."""

import signal
import subprocess

from tests.chaos.spark_driver import held, identity, kill_held


def test_a_process_that_has_the_id_of_an_earlier_one_is_not_held():
    with subprocess.Popen(["sleep", "600"]) as process:
        process_id, started = identity(process.pid)
        assert held([(process_id, "an earlier start")]) == []
        kill_held(held([(process_id, started)]))
        assert process.wait(60) == -signal.SIGKILL
    assert held([(process_id, started)]) == []
