"""Commands on a topic of which a partition is offline or damaged."""

import re
import shutil
import signal
import subprocess
import sys

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from stablelog.batch.header import headers_in
from stablelog.cli import consume, disk_watch, leaders, partition_watch, record_reader
from stablelog.cli.leaders import OPENING
from stablelog.cli.partition_watch import PartitionWatch
from stablelog.errors import DamageError, UnavailableError
from tests.cli.test_cli import answer
from tests.clients.drivers import unique
from tests.commands import run
from tests.waiting import until

pytestmark = pytest.mark.xdist_group("unreadable partitions")  # one worker makes the broker's directory

LEADER_EPOCH_AT = 12  # in the header of a batch
OFFLINE = "offline: see the reason in the broker's log"


def fill(at, topic, partition, count=60):
    producer = Producer({"bootstrap.servers": at, "log_level": 0})
    for number in range(count):
        producer.produce(topic, b"%04d" % number * 16, partition=partition)
        assert producer.flush(60) == 0


def flip(directory, place):
    """Change a bit in the first batch of the second segment."""
    path = sorted(directory.glob("*.log"))[1]
    content = bytearray(path.read_bytes())
    content[place(*next(iter(headers_in(content))))] ^= 1
    path.write_bytes(bytes(content))


@pytest.fixture(scope="module")
def broker(module_path):
    """Half has a whole and an offline partition. A sealed segment of changed has a changed record, of damaged a header."""
    data = module_path / "data"
    with stablelog.serve(data, stablelog_scrub_bytes_per_second=0) as made:
        admin = AdminClient({"bootstrap.servers": made.bootstrap, "log_level": 0})
        topics = [
            NewTopic("half", 2, 1),
            *(NewTopic(name, 1, 1, config={"segment.bytes": "2000"}) for name in ("changed", "damaged")),
        ]
        for future in admin.create_topics(topics).values():
            future.result(60)
        for topic, partition in (("half", 0), ("half", 1), ("changed", 0), ("damaged", 0)):
            fill(made.bootstrap, topic, partition)
        assert run("consume", "half", "--group", "lags", bootstrap=made.bootstrap).returncode == 0
        del admin
        made.stop()
        shutil.rmtree(data / "half-1")
        flip(data / "changed-0", lambda at, header: at + header.size - 8)
        flip(data / "damaged-0", lambda at, _header: at + LEADER_EPOCH_AT)
        made.start()
        yield made


@pytest.fixture
def told(monkeypatch):
    lines = []
    monkeypatch.setattr(disk_watch, "SILENCE_S", 0.2)
    monkeypatch.setattr(record_reader, "UNREADABLE_S", 1.0)
    monkeypatch.setattr(disk_watch, "print_to_stderr", lines.append)
    return lines


def read(broker, topic, group=None, isolation="read_committed"):
    consume.consume(topic, isolation, group=group, bootstrap=[broker.bootstrap])


@pytest.mark.extended
@pytest.mark.parametrize("group", [None, "new"])
def test_consume_names_the_offline_partition_and_ends(broker, told, capsys, group):
    with pytest.raises(UnavailableError, match=rf"half cannot be read to its end: half-1 is {OFFLINE}"):
        read(broker, "half", group and unique(group))
    assert told[0] == f"waiting: half-1 is {OFFLINE}"
    assert len(capsys.readouterr().out.splitlines()) == 60, "the other partition is read"


@pytest.mark.parametrize(
    ("why", "is_lasting"), [(OFFLINE, True), ("damaged at offset 7 or after it", True), (OPENING, False)]
)
def test_only_an_offline_or_damaged_partition_is_given_up(monkeypatch, why, is_lasting):
    """A recovery, and the proof of large segments, may take longer than a reader waits."""
    watch = PartitionWatch("nowhere:1", "t", [0], {0: 0}, "read_committed")
    monkeypatch.setattr(partition_watch, "leaderless", lambda _cluster, _topic: {("t", 0): why})
    assert watch.state() == f"t-0 is {why}"
    assert (watch.reason_to_end(0) is not None) == is_lasting


@pytest.mark.night  # it takes as long as the command waits
def test_consume_ends_with_one_line_and_exit_code_2(broker):
    done = run("consume", "half", bootstrap=broker.bootstrap)
    assert done.returncode == 2
    assert len(done.stdout.splitlines()) == 60
    waiting, end = done.stderr.splitlines()
    assert waiting == f"waiting: half-1 is {OFFLINE}"
    assert end.startswith("stablelog: half cannot be read to its end: half-1 is offline")


@pytest.mark.extended
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_consume_prints_no_changed_record(broker, told, capsys, isolation):
    """The broker hands out what it has not read; the consumer checks the CRC, and says at once what is damaged."""
    with pytest.raises(
        DamageError, match=r"changed-0: the batch at offset [0-9]+ is damaged: its CRC is wrong"
    ):
        read(broker, "changed", isolation=isolation)
    printed = capsys.readouterr().out.splitlines()
    assert printed == [f"{number:04d}" * 16 for number in range(len(printed))]


@pytest.mark.extended
@pytest.mark.parametrize("group", [None, "new"])
def test_consume_names_the_partition_with_a_damaged_batch_and_ends(broker, told, capsys, group):
    why = "damaged-0 is damaged at offset [0-9]+ or after it: the broker's log names the file"
    with pytest.raises(UnavailableError, match=f"damaged cannot be read to its end: {why}"):
        read(broker, "damaged", group and unique(group))
    assert re.fullmatch(f"waiting: {why}", told[0])
    printed = capsys.readouterr().out.splitlines()
    assert printed == [f"{number:04d}" * 16 for number in range(len(printed))]


@pytest.mark.extended
def test_consume_that_follows_says_what_it_waits_for_and_goes_on_waiting(broker):
    command = [sys.executable, "-m", "stablelog.cli.main", "consume", "half", "--follow"]
    with subprocess.Popen(
        [*command, "--bootstrap", broker.bootstrap],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as following:
        assert following.stderr.readline() == f"waiting: half-1 is {OFFLINE}\n"
        assert following.poll() is None
        following.send_signal(signal.SIGINT)
        following.wait(60)


@pytest.mark.extended
def test_a_watch_says_that_a_partition_can_be_read_again(monkeypatch, told):
    faults = [{("t", 1): OFFLINE}, {("t", 1): OFFLINE}, {}]

    def leaderless(_cluster, _topic):
        return faults.pop(0) if len(faults) > 1 else {}

    monkeypatch.setattr(partition_watch, "leaderless", leaderless)
    with PartitionWatch("here:1", "t", [0, 1], {}, "read_committed") as watch:
        until(lambda: len(told) == 2, "it is told")
        assert watch.reason_to_end(0.0) is None
    assert told == [f"waiting: t-1 is {OFFLINE}", "the command continues: t can be read"]


# -- commands that list partitions -----------------------------------------------------------------------------------


def test_a_list_of_topics_and_the_log_count_the_offline_partitions(broker):
    (found,) = answer("topics", "list", bootstrap=broker.bootstrap)
    assert {"topic": "half", "partitions": 2, "offline": 1, "opening": 0} in found
    assert sum(row["offline"] for row in found) == 1
    log = broker.log_path.read_text()
    assert "1 of 4 partitions stay offline: half-1" in log
    assert "opened 3 of 4 partitions" in log


def test_a_topic_with_an_offline_partition_is_described(broker):
    (found,) = answer("topics", "describe", "half", bootstrap=broker.bootstrap)
    whole, offline = found["partitions"]
    assert (whole["high_watermark"], whole["unavailable"]) == (60, None)
    assert whole["state"] == "online"
    assert offline == {**dict.fromkeys(whole), "partition": 1, "state": "offline", "unavailable": OFFLINE}
    assert OFFLINE in run("topics", "describe", "half", bootstrap=broker.bootstrap).stdout


def test_a_group_of_an_offline_partition_is_described(broker):
    (found,) = answer("groups", "describe", "lags", bootstrap=broker.bootstrap)
    whole, offline = found["partitions"]
    assert (whole["end"], whole["lag"], whole["unavailable"]) == (60, 0, None)
    assert (offline["offset"], offline["end"], offline["lag"]) == (60, None, None)
    assert offline["unavailable"] == OFFLINE


@pytest.mark.extended
def test_offsets_are_reset_and_records_trimmed_beside_an_offline_partition(broker):
    words = ("--to", "5", "--topic", "half", "--execute")
    (found,) = answer("groups", "reset", unique("new"), *words, bootstrap=broker.bootstrap)
    assert [(row["new_offset"], row["unavailable"]) for row in found["partitions"]] == [
        (5, None),
        (None, OFFLINE),
    ]
    (found,) = answer("topics", "trim", "half", "--before", "5", bootstrap=broker.bootstrap)
    assert [(row["new_start"], row["unavailable"]) for row in found["partitions"]] == [
        (5, None),
        (None, OFFLINE),
    ]


def test_the_state_of_a_partition_is_one_word():
    assert [leaders.state_of(why) for why in (None, OFFLINE, OPENING)] == [
        "online",
        "offline",
        "opening",
    ]


def test_hanging_transactions_are_found_beside_an_offline_partition(broker):
    done = run("transactions", "find-hanging", bootstrap=broker.bootstrap)
    assert done.returncode == 0
    assert done.stderr == f"half-1 is left out: it is {OFFLINE}\n"


@pytest.mark.extended
def test_consume_from_an_offset_reads_beside_an_offline_partition(broker, told, capsys):
    with pytest.raises(UnavailableError, match="half-1 is offline"):
        consume.consume("half", start="50", bootstrap=[broker.bootstrap])
    assert len(capsys.readouterr().out.splitlines()) == 10


@pytest.mark.parametrize("start", ["-5", "@0"])
def test_an_offset_that_is_to_be_found_in_an_offline_partition_is_refused(broker, start, capsys):
    with pytest.raises(
        UnavailableError, match=r"cannot be found in half-1, which is offline: .* --partition"
    ):
        consume.consume("half", start=start, bootstrap=[broker.bootstrap])
    consume.consume("half", start="-5", partitions=[0], bootstrap=[broker.bootstrap])
    assert len(capsys.readouterr().out.splitlines()) == 5
