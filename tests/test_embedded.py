"""`stablelog.serve()`: a start that hangs ends, and no broker outlives the process that started it."""

import asyncio
import contextlib
import fcntl
import gc
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import stablelog
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.data_directory.clean_shutdown import CLEAN_SHUTDOWN_FILE
from stablelog.errors import UnavailableError, UsageError
from stablelog.testing.topics import create_topic
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


def topic_names(broker):
    """The topics of a broker, which has to answer for that."""
    with BlockingCluster(broker.bootstrap) as cluster:
        return {name for name, topic in cluster.metadata().items() if not topic.is_internal}


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


@pytest.mark.extended
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


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can wait for the end of another process")
def test_a_broker_stops_when_its_parent_is_killed_and_a_forked_process_lives_on(tmp_path):
    fork = "child = os.fork() or time.sleep(600); print(child, flush=True); time.sleep(600)"
    with serving(tmp_path / "data", f"import os; {fork}") as (process, broker_id):
        forked_id = int(process.stdout.readline())
        try:
            process.kill()
            process.wait()
            until(lambda: not is_running(broker_id), "the broker ends, too")
            assert is_running(forked_id)
        finally:
            os.kill(forked_id, signal.SIGKILL)


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_broker_runs_on_when_the_thread_that_started_it_ends(tmp_path):
    broker = stablelog.serve(tmp_path / "data")
    starting = threading.Thread(target=broker.start)
    starting.start()
    starting.join()
    with broker:
        assert topic_names(broker) == set()


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_broker_stops_when_its_parent_leaves_without_a_word(tmp_path):
    with serving(tmp_path / "data", "import os; os._exit(3)") as (process, broker_id):
        assert process.wait() == 3
        until(lambda: not is_running(broker_id), "the broker ends, too")


@pytest.mark.extended
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


@pytest.mark.extended
def test_a_start_that_hangs_is_given_up_with_the_end_of_the_log(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / ".broker.log").write_text("what an earlier broker said\n")
    (data / "disk-reserve").touch()  # a broker has used the directory
    os.mkfifo(data / "meta.properties")  # whoever opens it waits for a writer
    with pytest.raises(UnavailableError) as given_up, stablelog.serve(data, start_timeout_s=3):
        pass
    assert str(given_up.value).startswith(
        f"the broker on {data} is not running: the process was not ready within 3 s. Its log {data}/.broker.log ends"
    )
    assert "what an earlier broker said" in str(given_up.value)
    with (data / ".lock").open("a") as lock:  # a slow process may not have made it
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_start_ends_when_another_thread_closes_the_broker(tmp_path, monkeypatch):
    monkeypatch.setattr("stablelog.embedded.PROCESS", "import time; time.sleep(600)")
    broker = stablelog.serve(tmp_path / "data")
    with ThreadPoolExecutor(1) as threads:
        starting = threads.submit(broker.start)
        until(lambda: broker.is_running, "the process runs")
        # The thread may not wait yet: it then finds the pipe closed.
        broker.close()
        with pytest.raises(UnavailableError, match="did not start"):
            starting.result(60)


@pytest.mark.extended
def test_a_start_that_fails_is_told_with_the_end_of_the_log(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "disk-reserve").touch()  # a broker has used the directory
    (data / "cluster.json").write_text("garbage")
    with (
        pytest.raises(
            UnavailableError,
            match=r"did not start. Its log .*data/.broker.log ends with:\n(.|\n)*cluster.json",
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
        pytest.raises(UnavailableError, match=f"{tmp_path / place} failed.*{why}"),
        stablelog.serve(tmp_path / place),
    ):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


@pytest.mark.extended
def test_a_broker_is_started_and_stopped_without_a_block_and_keeps_its_data_and_port():
    broker = stablelog.serve()
    try:
        assert not broker.is_running
        broker.start()
        address = broker.bootstrap
        create_topic(address, "kept", 1, {})
        broker.kill()
        broker.kill()
        assert not broker.is_running
        broker.start()
        assert broker.is_running
        assert (broker.bootstrap, topic_names(broker)) == (address, {"kept"})
        with pytest.raises(UsageError, match="is running: stop it before"):
            broker.start()
        broker.stop()
        assert broker.data.exists()
    finally:
        broker.close()
    assert not broker.data.parent.exists()
    with broker:
        assert topic_names(broker) == set()
    assert not broker.data.parent.exists()


@pytest.mark.extended
def test_a_broker_that_ended_by_itself_can_be_started_again(tmp_path):
    with stablelog.serve(tmp_path / "data") as broker:
        os.kill(broker.pid, signal.SIGKILL)
        until(lambda: not broker.is_running, "the broker ends")
        broker.start()
        assert topic_names(broker) == set()


@pytest.mark.extended
def test_a_broker_that_is_forgotten_ends_and_its_temporary_directory_with_it():
    broker = stablelog.serve()
    broker.start()
    broker_id, directory = broker.pid, broker.data.parent
    del broker
    gc.collect()
    until(lambda: not is_running(broker_id), "the broker ends")
    assert not directory.exists()


FORKING = """
import os, sys, stablelog
from stablelog.testing.faulty_broker import FaultyBroker
with {broker} as broker:
    child = os.fork()
    if not child:
        assert broker.is_running
        {then}
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    inner = getattr(broker, "broker", broker)
    assert broker.is_running and inner.data.exists()
    with stablelog.connect(broker.bootstrap) as client:
        try:
            client.transaction().write("nope", b"v")
        except stablelog.RefusedError:
            print("it answers")
print(inner.data.parent.exists())
"""


@pytest.mark.extended
@pytest.mark.parametrize("broker", ["stablelog.serve()", "FaultyBroker()"])
@pytest.mark.parametrize(
    "then", ["sys.exit(0)", "broker.close(); os._exit(0)", "del broker; import gc; gc.collect(); sys.exit(0)"]
)
def test_a_forked_process_that_ends_leaves_the_broker_alone(broker, then):
    program = FORKING.format(broker=broker, then=then)
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (0, "it answers\nFalse\n"), done.stderr


@pytest.mark.extended
def test_a_forked_process_cannot_stop_the_broker_by_name():
    then = """
        for call in (broker.start, broker.stop, broker.kill):
            try:
                call()
            except stablelog.UsageError as refused:
                assert "the broker belongs to process" in str(refused)
            else:
                os._exit(1)
        os._exit(0)"""
    program = FORKING.format(broker="stablelog.serve()", then=then)
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (0, "it answers\nFalse\n"), done.stderr


@pytest.mark.extended
def test_a_broker_runs_in_a_block_of_asyncio(tmp_path):
    async def work():
        async with stablelog.serve(tmp_path / "data", settings={"num.partitions": 3}) as broker:
            await asyncio.to_thread(create_topic, broker.bootstrap, "t", -1, {})
            with BlockingCluster(broker.bootstrap) as cluster:
                counts = await asyncio.to_thread(cluster.partition_counts, ["t"])
            return broker.pid, counts

    broker_id, counts = asyncio.run(work())
    assert counts == {"t": 3}
    assert not is_running(broker_id)


def test_a_cancelled_start_leaves_no_process(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "disk-reserve").touch()  # a broker has used the directory
    os.mkfifo(tmp_path / "data" / "meta.properties")  # the start waits for a writer
    broker = stablelog.serve(tmp_path / "data")

    async def started():
        async with broker:
            pytest.fail("the broker cannot start")

    async def work():
        starting = asyncio.create_task(started())
        await asyncio.sleep(0)  # the task runs up to its first wait
        assert broker.is_running
        broker_id = broker.pid
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        return broker_id

    broker_id = asyncio.run(work())
    assert not broker.is_running
    assert not is_running(broker_id)


@pytest.mark.extended
def test_the_log_of_a_broker_does_not_grow_without_limit(tmp_path):
    program = """
import logging, sys
from stablelog import embedded
embedded.LOG_SIZE_MAX = 20_000
from stablelog.cli import serve
serve.run_serve = lambda *_: [logging.getLogger("broker").info("message %d", number) for number in range(2_000)]
serve.stop_with_parent = lambda *_: None
serve.run_process(["1", sys.argv[1], "127.0.0.1", "0"])
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == [".broker.log", ".broker.log.1"]
    assert all(0 < path.stat().st_size <= 20_000 for path in files)
    assert files[0].read_text().endswith("message 1999\n")


@pytest.mark.extended
def test_nothing_is_written_outside_the_data_directory(tmp_path):
    places = {name: tmp_path / name for name in ("home", "temporary", "current")}
    for place in places.values():
        place.mkdir()
    program = """
import sys, stablelog
from confluent_kafka.admin import AdminClient, NewTopic
with stablelog.serve(sys.argv[1]) as broker:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
    with stablelog.connect(broker.bootstrap) as client, client.transaction() as txn:
        txn.write("t", b"x")
    assert "stablelog" in broker.log_path.read_text()
with stablelog.serve() as broker:
    pass
"""
    environment = os.environ | {"HOME": str(places["home"]), "TMPDIR": str(places["temporary"])}
    environment["PYTHONPATH"] = str(ROOT / "src")
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "data")],
        cwd=places["current"],
        env=environment,
        check=True,
    )
    assert {name: list(place.iterdir()) for name, place in places.items()} == {name: [] for name in places}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*places, "data"])


def test_a_directory_of_another_program_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UsageError, match="is not a data directory"), stablelog.serve(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_partition": 4}, "'num_partition' .*; did you mean num_partitions?"),
        ({"prot": 9092}, "'prot' is neither an argument of serve nor a setting .*; did you mean port?"),
        ({"start_timeout": 3}, "'start_timeout' .*; did you mean start_timeout_s?"),
        ({"num_partitions": "many"}, "num_partitions='many' is not valid: 1 to "),
        ({"num_partitions": [3]}, r"num_partitions=\[3\] is not valid: write text, a number, True or False"),
        ({"settings": {"num.partition": 4}}, "'num.partition'; did you mean num.partitions?"),
        ({"settings": {"num.partitions": 0}}, "num.partitions='0' is not valid: 1 to "),
        ({"settings": {"num.partitions": 3}, "num_partitions": 4}, "num.partitions is given twice"),
        ({"settings": "num.partitions=3"}, "settings='num.partitions=3' is not valid: a dict of settings"),
        (
            {"listeners": "PLAINTEXT://localhost:1", "port": 2},
            "listeners has the addresses .*: leave out host and port",
        ),
        ({"listeners": "TLS://localhost:1"}, "the listener TLS has no security protocol"),
        ({"host": "192.0.2.1"}, "everyone on the network could use this listener"),
        ({"port": "9092"}, "port='9092' is not valid: 0 to 65535"),
        ({"port": 65536}, "port=65536 is not valid"),
        ({"host": ""}, "host='' is not valid"),
        ({"host": None}, "host=None is not valid"),
        ({"data": 3}, "data=3 is not valid: a path"),
        ({"data": ""}, "data='' is not valid: a path"),
        ({"start_timeout_s": 0}, "start_timeout_s=0 is not valid: a number of seconds above 0"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_wrong_argument_fails_at_once_by_its_name(arguments, message):
    with pytest.raises(UsageError, match=message):
        stablelog.serve(**arguments)
