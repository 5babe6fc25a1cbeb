"""The commands against a running broker."""

import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

import stablelog
from stablelog.client.blocking import joint
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.cuts import describe_cut
from stablelog.embedded_process import READY_LINE
from stablelog.errors import UsageError
from stablelog.wire.extension.children import child_id
from tests.clients.drivers import unique
from tests.commands import run
from tests.spark.reading import settled
from tests.waiting import until

METRICS = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def answer(*words, bootstrap, given=None):
    done = run(*words, "--json", bootstrap=bootstrap, given=given)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def opened(at, transactional_id, topic, **record):
    """A producer with a transaction that has a record, and that the broker does not end while a test is slow."""
    settings = {"transactional.id": transactional_id, "transaction.timeout.ms": 600_000, "log_level": 0}
    producer = Producer({"bootstrap.servers": at, **settings})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"x", **record)
    assert producer.flush(60) == 0
    return producer


def cut_at_the_last_commit(at, topic):
    """A commit is answered before its markers are durable, and until they are it is in no cut."""

    def found():
        cut = describe_cut(cluster, [topic])
        return cut.commit_sequence == cut.last_commit_sequence

    with BlockingCluster(at) as cluster:
        until(found, "the last commit is in no cut")
    return answer("cut", topic, bootstrap=at)[0]


@pytest.mark.extended
def test_a_topics_life(stablelog_broker):
    at, name = stablelog_broker.bootstrap, unique("cli")
    assert (
        answer("topics", "create", name, "--partitions", "2", "--config", "retention.ms=5000", bootstrap=at)[
            0
        ]["partitions"]
        == 2
    )
    assert {"topic": name, "partitions": 2, "offline": 0, "opening": 0} in answer(
        "topics", "list", bootstrap=at
    )[0]
    described = answer("topics", "describe", name, bootstrap=at)[0]
    assert described["configs"] == {"retention.ms": "5000"}
    assert answer("topics", "alter", name, "--partitions", "3", "--config", "retention.ms=", bootstrap=at)
    described = answer("topics", "describe", name, bootstrap=at)[0]
    assert (described["configs"], len(described["partitions"])) == ({}, 3)
    assert answer("topics", "delete", name, bootstrap=at)
    gone = run("topics", "describe", name, bootstrap=at)
    assert gone.returncode == 2
    assert "there is no topic" in gone.stderr


@pytest.mark.extended
def test_lines_go_in_and_come_out_with_the_groups_lag(stablelog_broker):
    at, name, group = stablelog_broker.bootstrap, unique("lines"), unique("group")
    answer("topics", "create", name, bootstrap=at)
    lines = "\n".join(f"k{n}:v{n}" for n in range(50))
    written = answer(
        "produce", name, "--key-separator", ":", "--transactional-id", unique("t"), bootstrap=at, given=lines
    )
    assert written[0]["records"] == 50
    settled(at, name)
    read = answer("consume", name, "--group", group, bootstrap=at)
    assert [(record["key"], record["value"]) for record in read] == [(f"k{n}", f"v{n}") for n in range(50)]
    state = answer("groups", "describe", group, bootstrap=at)[0]
    assert [partition["lag"] for partition in state["partitions"]] == [0]
    until(
        lambda: answer("groups", "describe", group, bootstrap=at)[0]["state"] == "empty",
        "who has gone is still a member",
    )
    assert answer("groups", "delete", group, bootstrap=at)


@pytest.mark.extended
def test_an_open_transaction_is_found_named_and_ended(stablelog_broker):
    at, name, transactional_id = stablelog_broker.bootstrap, unique("held"), unique("holder")
    producer = opened(at, transactional_id, name)
    held = answer("topics", "describe", name, bootstrap=at)[0]["partitions"][0]
    assert held["held_back"] == 1
    assert transactional_id in held["held_by"]
    assert answer("transactions", "describe", transactional_id, bootstrap=at)[0][0]["state"] == "Ongoing"
    assert answer("transactions", "find-hanging", "--older-than-ms", "0", "--topic", name, bootstrap=at) == [
        []
    ]
    assert answer("transactions", "abort", transactional_id, bootstrap=at)
    settled(at, name)
    assert answer("consume", name, bootstrap=at) == []
    assert answer("topics", "describe", name, bootstrap=at)[0]["partitions"][0]["held_back"] == 0
    del producer


@pytest.mark.extended
def test_children_of_a_joint_commit_are_shown_as_what_they_are(stablelog_broker):
    at, name, key = stablelog_broker.bootstrap, unique("held"), unique("query/ä")
    children = [child_id(key, 3, "r1", part, 0) for part in range(2)]
    producers = [opened(at, transactional_id, name) for transactional_id in children]
    part_of = f"version 3 of joint commit {key!r}, run r1"
    listed = {row["transactional_id"]: row for row in answer("transactions", "list", bootstrap=at)[0]}
    assert {listed[i]["part_of"] for i in children} == {part_of}
    described = answer("transactions", "describe", children[0], bootstrap=at)[0][0]
    assert (described["state"], described["part_of"]) == ("Ongoing", part_of)
    assert answer("transactions", "abort", children[0], bootstrap=at)
    refused = run("transactions", "abort", children[0], bootstrap=at)
    assert refused.returncode != 0
    assert "no open transaction" in refused.stderr
    with BlockingCluster(at) as cluster:
        joint.commit(cluster, key, 3, [])
    gone = run("transactions", "abort", children[1], bootstrap=at)
    assert gone.returncode != 0
    assert "Traceback" not in gone.stderr
    left = [row["transactional_id"] for row in answer("transactions", "list", bootstrap=at)[0]]
    assert not set(children) & set(left), "a child of a commit is forgotten"
    del producers


@pytest.mark.extended
def test_a_cut_says_where_whole_transactions_end(stablelog_broker):
    at, name = stablelog_broker.bootstrap, unique("cut")
    answer("topics", "create", name, "--config", "stablelog.order=commit", bootstrap=at)
    assert answer("produce", name, "--transactional-id", unique("me"), bootstrap=at, given="one\ntwo\n")
    cut = cut_at_the_last_commit(at, name)
    assert cut["commit_sequence"] == cut["last_commit_sequence"] > 0
    assert cut["offsets"] == [
        {"topic": name, "partition": 0, "offset": 5}
    ]  # two records, a marker, two positions
    before = answer("cut", name, "--at", str(cut["commit_sequence"] - 1), bootstrap=at)[0]
    assert before["offsets"][0]["offset"] == 3
    ordinary = unique("cut")
    answer("topics", "create", ordinary, bootstrap=at)
    refused = run("cut", ordinary, bootstrap=at)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "stablelog.order=commit" in refused.stderr


@pytest.mark.extended
def test_a_transaction_group_is_seen_everywhere(stablelog_broker):
    at, name, group = stablelog_broker.bootstrap, unique("paid"), unique("payments")
    configs = ("--config", f"stablelog.group={group}", "--config", "stablelog.order=commit")
    answer("topics", "create", name, *configs, bootstrap=at)
    described = answer("topics", "describe", name, bootstrap=at)[0]
    assert described["configs"]["stablelog.group"] == group
    writer = f"{group}/{unique('me')}"
    assert answer("produce", name, "--transactional-id", writer, bootstrap=at, given="one\ntwo\n")
    listed = {
        row["transactional_id"]: row["group"] for row in answer("transactions", "list", bootstrap=at)[0]
    }
    assert listed[writer] == group
    assert answer("transactions", "describe", writer, bootstrap=at)[0][0]["group"] == group
    cut = cut_at_the_last_commit(at, name)
    assert (cut["group"], cut["commit_sequence"]) == (group, 1)
    shown = run("inspect", str(stablelog_broker.data / f"__transaction_state.{group}-0"), "--records")
    assert f"transactional_id={writer}" in shown.stdout
    shown = run("inspect", str(stablelog_broker.data / f"{name}-0"))
    assert f"COMMIT {group}#1" in shown.stdout
    done = run("verify", str(stablelog_broker.data))
    assert (done.returncode, done.stderr) == (0, "")
    began_s = time.monotonic()
    other = unique("me")
    refused = run("produce", name, "--transactional-id", other, bootstrap=at, given="never\n")
    assert refused.returncode == 2
    assert refused.stderr == (
        f"stablelog: 1 of 1 records were not written to {name}: transactional id {other!r} belongs to the default "
        f"transaction group, and the topic to transaction group {group!r}. Use an id that begins with '{group}/'\n"
    )
    assert time.monotonic() - began_s < 60, "it does not try for ever"
    changed = run("topics", "alter", name, "--config", "stablelog.group=", bootstrap=at)
    assert (changed.returncode, changed.stderr.count("\n")) == (2, 1)
    assert "cannot change" in changed.stderr


@pytest.mark.extended
def test_a_directory_can_be_verified_and_inspected_while_its_broker_runs(stablelog_broker):
    name = unique("look")
    answer("topics", "create", name, bootstrap=stablelog_broker.bootstrap)
    answer(
        "produce",
        name,
        "--transactional-id",
        unique("t"),
        bootstrap=stablelog_broker.bootstrap,
        given="a\nb\n",
    )
    done = run("verify", str(stablelog_broker.data))
    assert (done.returncode, done.stderr) == (0, "")
    batches = run("inspect", str(stablelog_broker.data / f"{name}-0"), "--json")
    rows = json.loads(batches.stdout.splitlines()[0])["rows"]
    assert [row["kind"].split(" ")[0] for row in rows] == ["transactional", "COMMIT"]


@pytest.mark.extended
def test_the_coordinators_logs_can_be_read(stablelog_broker):
    at, name, group, writer = stablelog_broker.bootstrap, unique("own"), unique("group"), unique("writer")
    answer("topics", "create", name, bootstrap=at)
    answer("produce", name, "--transactional-id", writer, bootstrap=at, given="a\nb\n")
    settled(at, name)
    answer("consume", name, "--group", group, bootstrap=at)

    def rows(topic):
        done = run("inspect", str(stablelog_broker.data / f"{topic}-0"), "--records", "--json")
        tables = [json.loads(line) for line in done.stdout.splitlines()]
        return [row for table in tables if table["file"].endswith(".log") for row in table["rows"]]

    states = [
        row["value"] for row in rows("__transaction_state") if row["key"] == {"transactional_id": writer}
    ]
    assert [state["state"] for state in states] == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]
    assert states[2]["partitions"] == [f"{name}-0"]
    assert states[2]["commit_sequence"] >= 1
    offsets = [
        row["value"]
        for row in rows("__consumer_offsets")
        if isinstance(row["key"], dict) and row["key"].get("partition") == f"{name}-0"
    ]
    assert offsets[-1]["offset"] == 3
    shown = run("inspect", str(stablelog_broker.data / "__transaction_state-0"), "--records")
    assert f"transactional_id={writer}" in shown.stdout


@pytest.mark.parametrize(
    "words", [("topics", "list"), ("produce", "x"), ("cut", "x"), ("transactions", "list")]
)
def test_a_broker_that_does_not_respond_is_one_line_on_stderr(words):
    done = run(*words, "--timeout", "1", bootstrap="127.0.0.1:1")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert done.stderr.startswith(
        "stablelog: no broker responds at 127.0.0.1:1 within 1 s (Connection refused)"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("consume", "x", "--isolation", "dirty"), "read_committed or read_uncommitted"),
        (("serve", "--data", "x", "--set", "log.segment.byte=1"), "did you mean log.segment.bytes"),
        (("inspect", "/nowhere"), "there is no"),
        (("verify", __file__), "is a file"),
        (("serve", "--data", f"{__file__}/below", "--port", "0"), "cannot be used"),
        (("serve", "--data", "x", "--config", sys.executable), "is not a text file"),
        (("topics", "alter", "x"), "--config name=value or --partitions"),
        (("produce", "x", "--transactional-id", ""), "one character or more"),
        (("consume", "x", "--offset", "²"), "earliest (beginning), latest (end), an offset"),
        (("consume", "x", "--offset", str(1 << 63)), "earliest (beginning), latest (end), an offset"),
        (("consume", "x", "--offset", "@yesterday"), "--offset @yesterday is not valid: a time is"),
        (("consume", "x", "--offset", "5", "--group", "g"), "a group continues at its committed offsets"),
        (("consume", "x", "--partition", "5", "--group", "g"), "the group assigns the partitions"),
        (("consume", "x", "--format", "%x"), "use %t %p %o %k"),
        (("consume", "x", "--format", "%v", "--json"), "choose one of them"),
        (("consume", "x", "--group", ""), "one character or more"),
        (("transactions", "list", "--bootstrap", "here"), "host:port"),
    ],
)
def test_what_cannot_be_done_is_one_line_on_stderr(words, message):
    done = run(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_group_that_is_not_there_cannot_be_deleted_and_the_line_says_so(stablelog_broker):
    name = unique("gone")
    done = run("groups", "delete", name, bootstrap=stablelog_broker.bootstrap)
    assert (done.returncode, done.stderr) == (2, f"stablelog: there is no group '{name}'\n")


def test_a_broker_writes_nothing_into_a_directory_of_other_files(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    done = run("serve", "--data", str(tmp_path), "--port", "0")
    assert done.returncode == 2
    assert f"{tmp_path} is not a data directory: it contains 'notes.txt'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_the_version_is_that_of_the_package():
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"stablelog {stablelog.__version__}\n")


def test_a_directory_that_cannot_be_made_is_one_line_without_pythons_names():
    done = run("serve", "--data", "/proc/x", "--port", "0")
    assert done.returncode == 2
    assert "cannot be used: " in done.stderr
    assert "Errno" not in done.stderr


# In the background of a shell Ctrl-C is nobody's, and who is started there inherits that: with tests that run so, too.
IN_THE_FOREGROUND = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from stablelog.cli.main import run
run()
"""


def begun(*words, bootstrap, **pipes):
    """A command that goes on."""
    command = [sys.executable, "-c", IN_THE_FOREGROUND, *words, "--bootstrap", bootstrap]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **pipes)


@pytest.mark.extended
def test_reading_begins_at_the_offset_that_was_asked_for_or_says_where_the_topic_ends(stablelog_broker):
    at, name = stablelog_broker.bootstrap, unique("from")
    answer("topics", "create", name, "--partitions", "2", bootstrap=at)
    answer("produce", name, "--key-separator", ":", bootstrap=at, given="k:0\nk:1\nk:2\n")
    (taken,) = {record["partition"] for record in answer("consume", name, bootstrap=at)}
    read = answer("consume", name, "--offset", "1", bootstrap=at)
    assert [(r["partition"], r["offset"]) for r in read] == [(taken, 1), (taken, 2)]
    assert answer("consume", name, "--offset", "3", bootstrap=at) == []
    refused = run("consume", name, "--offset", "4", bootstrap=at)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "ends at offset 3" in refused.stderr


@pytest.mark.extended
def test_who_follows_a_topic_through_a_pipe_sees_each_record_when_it_is_there(stablelog_broker):
    at, name = stablelog_broker.bootstrap, unique("follow")
    answer("topics", "create", name, bootstrap=at)
    answer("produce", name, bootstrap=at, given="a\n")
    with begun("consume", name, "--follow", bootstrap=at, stdout=subprocess.PIPE) as reader:
        try:
            assert reader.stdout.readline() == "a\n"
            answer("produce", name, bootstrap=at, given="b\n")
            assert reader.stdout.readline() == "b\n"
        finally:
            reader.send_signal(signal.SIGINT)


@pytest.mark.extended
def test_a_member_for_whom_no_partition_is_left_says_so(stablelog_broker):
    at, name, group = stablelog_broker.bootstrap, unique("one"), unique("group")
    answer("topics", "create", name, bootstrap=at)
    answer("produce", name, bootstrap=at, given="a\n")
    settings = {"group.id": group, "group.protocol": "consumer", "log_level": 0}
    first = Consumer({"bootstrap.servers": at, **settings})
    first.subscribe([name])
    until(lambda: first.poll(0.1) is not None or first.assignment(), "the first member got nothing")
    over = threading.Event()

    def go_on():
        while not over.is_set():
            first.poll(0.1)

    reader = threading.Thread(target=go_on)
    reader.start()
    try:
        second = run("consume", name, "--group", group, bootstrap=at)
    finally:
        over.set()
        reader.join()
        first.close()
    assert (second.returncode, second.stdout) == (2, "")
    assert "other members of group" in second.stderr
    assert second.stderr.count("\n") == 1


@pytest.mark.extended
def test_a_group_with_members_of_the_classic_protocol_is_refused_by_name(stablelog_broker):
    at, name, group = stablelog_broker.bootstrap, unique("one"), unique("group")
    answer("topics", "create", name, bootstrap=at)
    first = Consumer({"bootstrap.servers": at, "group.id": group, "log_level": 0})
    first.subscribe([name])
    until(lambda: first.poll(0.1) is not None or first.assignment(), "the first member got nothing")
    second = run("consume", name, "--group", group, bootstrap=at)
    first.close()
    assert (second.returncode, second.stdout) == (2, "")
    assert f"group {group!r} has members that use the classic protocol: stop them" in second.stderr
    assert run("consume", name, "--group", group, bootstrap=at).returncode == 0


@pytest.mark.extended
def test_lines_that_are_interrupted_leave_no_open_transaction(stablelog_broker):
    at, name, transactional_id = stablelog_broker.bootstrap, unique("stopped"), unique("me")

    def state():
        listed = answer("transactions", "list", bootstrap=at)[0]
        return next((row["state"] for row in listed if row["transactional_id"] == transactional_id), None)

    answer("topics", "create", name, bootstrap=at)
    words = ("produce", name, "--transactional-id", transactional_id)
    with begun(*words, bootstrap=at, stdin=subprocess.PIPE) as writer:
        writer.stdin.write("x\n" * 5000)
        writer.stdin.flush()
        until(lambda: state() == "Ongoing", "nothing was sent")
        writer.send_signal(signal.SIGINT)
        assert writer.wait(60) == 130
        assert "Traceback" not in writer.stderr.read()
    until(lambda: state() == "CompleteAbort", state)


@pytest.mark.extended
def test_a_broker_survives_kill_minus_nine_and_a_second_one_is_refused(tmp_path):
    with stablelog.serve(tmp_path / "data") as broker:
        answer("topics", "create", "t", bootstrap=broker.bootstrap)
        answer("produce", "t", bootstrap=broker.bootstrap, given="a\nb\n")
        second = run("serve", "--data", str(broker.data), "--port", "0")
        assert second.returncode == 2
        assert "another broker is running" in second.stderr
        broker.kill()
        broker.start()
        assert len(answer("consume", "t", bootstrap=broker.bootstrap)) == 2


@pytest.mark.extended
@pytest.mark.skipif(not hasattr(os, "waitid"), reason="needs waitid")
def test_a_broker_that_has_ended_is_not_killed_again_for_its_number_may_be_anothers(tmp_path, monkeypatch):
    with stablelog.serve(tmp_path / "data") as broker:
        os.kill(broker.pid, signal.SIGKILL)
        os.waitid(os.P_PID, broker.pid, os.WEXITED | os.WNOWAIT)  # all its threads have ended, too
        with monkeypatch.context() as patched:
            patched.setattr(os, "kill", lambda *_: pytest.fail("a process that is no broker was killed"))
            broker.kill()
        broker.start()
        os.kill(broker.pid, 0)


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no two have one port, listening or not")
def test_nobody_is_given_the_port_of_a_broker_that_is_away(tmp_path):
    with stablelog.serve(tmp_path / "data") as broker:
        port = broker.port
        broker.kill()
        with socket.socket() as stranger:
            with pytest.raises(OSError, match="in use"):
                stranger.bind((broker.host, port))
            with pytest.raises(ConnectionRefusedError):
                stranger.connect((broker.host, port))
        broker.start()
        assert broker.port == port
        assert answer("topics", "list", bootstrap=broker.bootstrap) == [[]]
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind((broker.host, port))  # once nobody means to start there again


@pytest.mark.extended
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux tells another process's limits")
def test_a_broker_takes_all_the_descriptors_that_it_may_have(tmp_path):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    command = [sys.executable, "-m", "stablelog.cli.main", "serve", "--data", str(tmp_path), "--port", "0"]
    few = ("sh", "-c", 'ulimit -Sn 200; exec "$@"', "sh", *command)
    with subprocess.Popen(few, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as broker:
        try:
            assert broker.stdout.readline().startswith(READY_LINE)
            assert resource.prlimit(broker.pid, resource.RLIMIT_NOFILE) == (hard, hard)
        finally:
            broker.terminate()


@pytest.mark.extended
def test_metrics_are_served_where_the_log_says(tmp_path):
    documented = re.findall(r"^\| `(stablelog_\w+)` \| (\w+) ", METRICS.read_text(), re.MULTILINE)
    assert len(documented) > 10
    with stablelog.serve(tmp_path / "data", stablelog_metrics_port=0) as broker:
        answer("topics", "create", "t", bootstrap=broker.bootstrap)
        answer("produce", "t", bootstrap=broker.bootstrap, given="a\nb\n")
        (address,) = re.findall(r"metrics are served at http://(\S+)/metrics", broker.log_tail())
        with contextlib.closing(HTTPConnection(address, timeout=60)) as scraper:
            scraper.request("GET", "/metrics")
            told = scraper.getresponse().read().decode()
    for name, kind in documented:
        assert f"# TYPE {name + '_total' if kind == 'counter' else name} {kind}\n" in told
    assert 'stablelog_high_watermark{partition="0",topic="t"} 2.0' in told


@pytest.mark.extended
def test_an_address_that_cannot_be_used_is_named_before_the_data_directory_is_made(
    stablelog_broker, tmp_path
):
    taken, data = str(stablelog_broker.port), tmp_path / "data"
    done = run("serve", "--data", str(data), "--port", taken)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"cannot listen on 127.0.0.1:{taken}: Address already in use" in done.stderr
    assert not data.exists()
    done = run("serve", "--data", str(data), "--port", "0", "--set", f"stablelog.metrics.port={taken}")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"cannot serve metrics on 127.0.0.1:{taken}: Address already in use" in done.stderr
    assert not data.exists()
    anyone = ("--set", "stablelog.listeners.allow.unauthenticated=true")
    done = run("serve", "--data", str(data), "--host", "192.0.2.1", "--port", "0", *anyone)  # of no machine
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot listen on 192.0.2.1:0: Cannot assign requested address" in done.stderr
    assert not data.exists()


def test_a_wrong_setting_is_refused_before_a_process_is_started():
    with pytest.raises(UsageError, match="did you mean"), stablelog.serve(log_segment_byte=1):
        pass
