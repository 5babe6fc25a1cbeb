"""`stablelog repair` and `stablelog verify` on a data directory."""

import os
import pty
import re
import shutil
import subprocess
import sys

import pytest
from crc32c import crc32c
from typer.testing import CliRunner

import stablelog
from stablelog.cli.commands import app
from stablelog.data_directory.checkpoints import RECOVERY_POINT_CHECKPOINT
from stablelog.data_directory.settings_file import encode_settings
from stablelog.env.lock import DirectoryLock
from stablelog.errors import UnavailableError

SETTINGS_OF_ANOTHER = encode_settings({"no.setting": "1"}).decode()
LOG = f"{0:020d}.log"
SMALL = {"stablelog_disk_reserve_bytes": 65536}  # The directories are copied.


@pytest.fixture(scope="module")
def stopped(module_path):
    from confluent_kafka import Producer

    with stablelog.serve(module_path / "stopped", **SMALL) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(6):
            producer.produce("t", b"%d" % number)
            producer.flush()
        # librdkafka is told to go by hand: it would wait for a broker that has stopped.
        del producer
    return module_path / "stopped"


@pytest.fixture
def data(stopped, tmp_path):
    """The directory of a stopped broker: topic t with six records, and a group's offsets."""
    return shutil.copytree(stopped, tmp_path / "data")


def run(*words, answer=None):
    return CliRunner().invoke(app, [str(word) for word in words], input=answer)


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(bytes(content))


def everything(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def positions(path):
    from stablelog.batch.header import read_header

    content, at, found = path.read_bytes(), 0, []
    while at < len(content):
        found.append(at)
        at += read_header(content, at).size
    return found


@pytest.mark.extended
def test_a_whole_directory_needs_no_repair(data):
    result = run("repair", data)
    assert result.exit_code == 0
    assert re.search(r"\d+ partitions examined, 0 with a damaged log", result.output)


@pytest.mark.extended
def test_repair_shows_what_a_cut_loses_and_changes_nothing_without_consent(data):
    path = data / "t-0" / LOG
    flip(path, positions(path)[2] + 30)
    before = path.read_bytes()
    result = run("repair", data)
    assert isinstance(result.exception, UnavailableError)
    assert "answer on a terminal, or agree with --yes" in str(result.exception)
    assert f"t-0: {LOG} is damaged at byte {positions(path)[2]}" in result.output
    assert "A cut ends the log at offset 2" in result.output
    assert "3 whole batches, with 3 records and 0 transaction markers, up to offset 5" in result.output
    assert path.read_bytes() == before
    assert sorted(found.name for found in (data / "t-0").glob("*.cut")) == []


def run_on_terminal(data, typed):
    """Run `stablelog repair` with these bytes typed on a terminal. Returns its exit code and its output."""
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "stablelog.cli.main", "repair", str(data)]
    with subprocess.Popen(command, stdin=end, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as asking:
        os.close(end)
        os.write(terminal, typed)
        output, _ = asking.communicate(timeout=300)
    os.close(terminal)
    return asking.returncode, output


@pytest.mark.extended
@pytest.mark.parametrize(("typed", "code"), [(b"n\n", 1), (b"\n", 1), (b"\x04", 1), (b"y\n", 0)])
def test_repair_ends_with_1_if_its_question_is_answered_with_no(data, typed, code):
    """Also with the end of the input (Ctrl-D): the damage stays."""
    path = data / "t-0" / LOG
    flip(path, positions(path)[2] + 30)
    before = path.read_bytes()
    ended, output = run_on_terminal(data, typed)
    assert ended == code, output
    assert (b"Nothing was changed." in output) is (code == 1)
    assert b"Traceback" not in output
    assert (path.read_bytes() == before) is (code == 1)


@pytest.mark.extended
def test_repair_cuts_with_consent_and_the_broker_serves_what_is_left(data):
    from confluent_kafka import Consumer, TopicPartition

    path = data / "t-0" / LOG
    flip(path, positions(path)[2] + 30)
    before = path.read_bytes()
    result = run("repair", data, "--yes")
    assert result.exit_code == 0, result.output
    assert (data / "t-0" / f"{0:020d}.cut").read_bytes() == before[
        positions(path)[-1] and path.stat().st_size :
    ]
    assert "t 0 2\n" in (data / RECOVERY_POINT_CHECKPOINT).read_text()
    with stablelog.serve(data) as broker:
        settings = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        consumer = Consumer(settings)
        consumer.assign([TopicPartition("t", 0, 0)])
        found = [message.value() for message in consumer.consume(2, 60)]
        assert consumer.get_watermark_offsets(TopicPartition("t", 0), 60) == (0, 2)
        consumer.close()
    assert found == [b"0", b"1"]


@pytest.mark.extended
def test_repair_leaves_a_directory_alone_that_a_broker_has_open(data):
    lock = DirectoryLock(data)
    try:
        result = run("repair", data, "--yes")
    finally:
        lock.release()
    assert isinstance(result.exception, UnavailableError)
    assert "another broker is running" in str(result.exception)


@pytest.mark.parametrize("command", ["repair", "verify", "inspect"])
def test_a_directory_of_something_else_is_named(tmp_path, command):
    (tmp_path / "some.log").write_text("of a program")
    result = run(command, tmp_path)
    assert isinstance(result.exception, UnavailableError)
    assert "is neither a data directory" in str(result.exception)


def write(text):
    return lambda path: path.write_text(text)


def change(old, new):
    return lambda path: path.write_text(path.read_text().replace(old, new))


def lose(path):
    path.unlink()


def lose_directory(path):
    import shutil

    shutil.rmtree(path)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("cluster.json", lose, "shows that stablelog has written this directory"),
        ("cluster.json", lambda path: flip(path, 40), "is not a list of topics"),
        ("cluster.json", write("x"), "is not a list of topics: Expecting value"),
        (
            "cluster.json",
            change('"crc"', '"crd"'),
            "is not a list of topics: it has no crc. Restore the file",
        ),
        (
            "broker.json",
            write(f"[]\n{crc32c(b'[]'):08x}\n"),
            "a value in it is of another type than expected",
        ),
        ("t-0/partition.metadata", write("version: 0\n"), "contains no valid topic id: it has no topic_id"),
        ("meta.properties", lose, "is gone; the next start writes it again"),
        ("meta.properties", change("version=1", "version=2"), "of version 2; this release reads"),
        (
            "meta.properties",
            change("version=1", "version=0"),
            "says version=0; the next start writes it again",
        ),
        ("meta.properties", change("node.id=1", "node.id=q"), "says node.id=q, which is not a number"),
        ("meta.properties", change("node.id=1\n", ""), "does not name the node"),
        (".kafka_cleanshutdown", change(":0", ":9"), "of version 9; this release reads versions up to 0"),
        (".kafka_cleanshutdown", write('{"version":0,"bro'), "is damaged"),
        (".kafka_cleanshutdown", change("version", "vershon"), "is damaged"),
        (
            "broker.json",
            write(SETTINGS_OF_ANOTHER),
            "has a setting that this release does not accept: there is no broker setting",
        ),
        ("t-0", lose_directory, "is missing; cluster.json names it"),
        ("t-0/log-start-offset", lose, "it is unknown where the log begins"),
        ("t-0/log-start-offset", lambda path: flip(path, 2), "is damaged"),
        ("t-0/partition.metadata", lambda path: flip(path, 25), "topic id"),
        ("t-0", lambda path: lose(path / LOG), "the partition was made with one"),
        ("recovery-point-offset-checkpoint", lambda path: path.write_text("0\n9\n"), "no checkpoint"),
    ],
)
def test_verify_names_what_is_missing_or_damaged_in_a_data_directory(data, name, damage, said):
    result = run("verify", data)
    assert (result.exit_code, "0 findings" in result.output) == (0, True), result.output
    damage(data / name)
    result = run("verify", data)
    assert result.exit_code == 1, result.output
    assert said.replace("no checkpoint", "is not a checkpoint of offsets") in result.output
    named = [line for line in result.output.splitlines() if str(data / name) in line]
    assert named
    assert all(line.count(f"{data / name}") == 1 or name == "t-0" for line in named), named
    assert "Error" not in result.output, "messages are without Python's names"


def test_one_partition_is_told_in_the_singular(data):
    assert "1 partition, 0 findings" in run("verify", data / "t-0").output


@pytest.mark.extended
@pytest.mark.parametrize("served", ["data", "commits"])
def test_repair_takes_the_leader_epoch_from_the_logs_where_the_list_of_topics_is_an_older_copy(
    served, request, tmp_path
):
    from stablelog.batch.header import read_header

    directory = request.getfixturevalue(served)
    older = (directory / "cluster.json").read_bytes()
    with stablelog.serve(directory) as broker:
        commit(broker, 2, "z")
    (directory / "cluster.json").write_bytes(older)
    logs = {path: path.read_bytes() for path in directory.rglob("[0-9]*.log")}
    epochs = [
        read_header(content, positions(path)[-1]).leader_epoch for path, content in logs.items() if content
    ]
    result = run("repair", directory, "--yes")
    assert (result.exit_code, "0 with a damaged log" in result.output) == (0, True), result.output
    assert {path: path.read_bytes() for path in directory.rglob("[0-9]*.log")} == logs
    assert run("verify", directory).exit_code == 0
    # A record that is added to a commit log is of no earlier leader epoch than the batches before it.
    path = directory / "__transaction_state-0" / LOG
    flip(path, positions(path)[0] + 30)
    assert "A record is added" in run("repair", directory, "--yes").output
    assert read_header(path.read_bytes()).leader_epoch == max(epochs)


# -- commit logs ----------------------------------------------------------------------------------------------------


def create(broker, topic, configs):
    """Create a topic of one partition."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for made in admin.create_topics([NewTopic(topic, 1, 1, config=configs)]).values():
        made.result(60)


def commit(broker, count, transactional_id="y"):
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": transactional_id, "linger.ms": 0}
    )
    producer.init_transactions(60)
    for number in range(count):
        producer.begin_transaction()
        producer.produce("o", b"%d" % number)
        producer.commit_transaction(60)
    del producer


@pytest.fixture(scope="module")
def committed(module_path):
    made = module_path / "committed"
    with stablelog.serve(made / "data", **SMALL) as broker:
        create(broker, "o", {"stablelog.order": "commit"})
        commit(broker, 2, "x")
    shutil.copytree(made / "data" / "__transaction_state-0", made / "older")
    with stablelog.serve(made / "data", **SMALL) as broker:
        commit(broker, 8, "x")
    return made


@pytest.fixture
def commits(committed, tmp_path):
    """A stopped broker's directory: ten commits to the commit-ordered topic o, and a copy of the commit log after two."""
    shutil.copytree(committed, tmp_path, dirs_exist_ok=True)
    return tmp_path / "data"


def commit_sequences(data):
    from stablelog.batch.header import headers_in
    from stablelog.batch.markers import read_marker

    content = (data / "o-0" / LOG).read_bytes()
    markers = [
        read_marker(content[at : at + header.size]) for at, header in headers_in(content) if header.is_control
    ]
    return [marker.commit_sequence for marker in markers if marker.commit_sequence > 0]


@pytest.mark.extended
@pytest.mark.parametrize("at_once", [True, False], ids=["directory", "commit log alone"])
def test_after_a_commit_log_was_cut_no_commit_sequence_is_given_out_twice(commits, at_once):
    path = commits / "__transaction_state-0" / LOG
    found = positions(path)
    flip(path, found[len(found) // 2] + 30)
    result = run("repair", commits if at_once else commits / "__transaction_state-0", "--yes")
    assert result.exit_code == 0, result.output
    assert "loses decisions of 1 transactional ids; commits among them: #" in result.output
    assert "and #10 was given out" in result.output
    with stablelog.serve(commits) as broker:
        commit(broker, 2)
    assert commit_sequences(commits) == list(range(1, 13))
    assert run("verify", commits).exit_code == 0
    assert "contains commits up to" not in run("repair", commits, "--yes").output


@pytest.mark.extended
def test_a_crash_between_the_cut_and_the_record_leaves_a_commit_log_that_can_be_repaired(
    commits, monkeypatch
):
    from stablelog.cli import repair as repair_cli

    path = commits / "__transaction_state-0" / LOG
    flip(path, positions(path)[-3] + 30)
    with monkeypatch.context() as patch:
        patch.setattr(repair_cli, "append_next_numbers", lambda *_words, **_options: None)
        run("repair", commits, "--yes")
    assert "after #10" in run("repair", commits, "--yes").output
    with stablelog.serve(commits) as broker:
        commit(broker, 1)
    assert commit_sequences(commits) == list(range(1, 12))


@pytest.mark.extended
def test_a_commit_log_of_an_older_backup_does_not_give_out_what_a_partition_has(commits):
    import shutil

    shutil.rmtree(commits / "__transaction_state-0")
    shutil.copytree(commits.parent / "older", commits / "__transaction_state-0")
    (commits / RECOVERY_POINT_CHECKPOINT).unlink()
    with stablelog.serve(commits) as broker:
        commit(broker, 1)
        log_path = broker.log_path
    assert commit_sequences(commits) == list(range(1, 12))
    assert "the commit log has lost its end, or is from an older backup" in log_path.read_text()


# -- which directory ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["t-0", "."], ids=["partition", "directory"])
def test_repair_leaves_a_directory_alone_that_a_broker_has_open_also_behind_a_link(data, tmp_path, named):
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / (named if named != "." else "data")
    link.symlink_to(data / named)
    before = (data / "t-0" / LOG).read_bytes()
    lock = DirectoryLock(data)
    try:
        flip(data / "t-0" / LOG, positions(data / "t-0" / LOG)[2] + 30)
        result = run("repair", link, "--yes")
    finally:
        lock.release()
    assert isinstance(result.exception, UnavailableError)
    assert "another broker is running" in str(result.exception)
    assert (data / "t-0" / LOG).stat().st_size == len(before)


def test_repair_refuses_a_partition_without_a_data_directory_around_it(data, tmp_path):
    import shutil

    shutil.copytree(data / "t-0", tmp_path / "alone" / "t-0")
    result = run("repair", tmp_path / "alone" / "t-0", "--yes")
    assert isinstance(result.exception, UnavailableError)
    assert "is not a data directory" in str(result.exception)
    assert "Name the data directory" in str(result.exception)


def test_one_directory_that_cannot_be_examined_does_not_keep_the_others_from_repair(data):
    for name in ("empty-0", "odd-0"):
        (data / name).mkdir()
    (data / "odd-0" / "log-start-offset").write_text("x")
    path = data / "t-0" / LOG
    flip(path, positions(path)[2] + 30)
    result = run("repair", data, "--yes")
    assert result.exit_code == 1
    assert "empty-0: cannot be repaired" in result.output
    assert "A cut ends the log at offset 2" in result.output
    assert path.stat().st_size == positions(path)[1] * 2


@pytest.mark.extended
@pytest.mark.parametrize(
    ("partition", "name"),
    [("t-0", "log-start-offset"), ("o-0", "log-start-offset"), ("o-0", "view-start-offset")],
)
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole log", "damaged log"])
def test_a_lost_start_offset_is_named_and_nothing_is_cut(data, partition, name, is_whole):
    if partition == "o-0":
        with stablelog.serve(data) as broker:
            create(broker, "o", {"stablelog.order": "commit"})
            commit(broker, 3)
    path = data / partition / LOG
    if not is_whole:
        flip(path, positions(path)[2] + 30)
    lose(data / partition / name)
    before = everything(data / partition)
    result = run("repair", data, "--yes")
    assert result.exit_code == 1, result.output
    assert f"{partition}: cannot be repaired: {data / partition / name} is missing" in result.output
    assert "0 with a damaged log" in result.output
    assert everything(data / partition) == before


@pytest.mark.parametrize("command", ["repair", "verify"])
def test_a_data_directory_without_partitions_is_whole(data, tmp_path, command):
    import shutil

    (tmp_path / "bare").mkdir()
    shutil.copy(data / "meta.properties", tmp_path / "bare")
    result = run(command, tmp_path / "bare")
    assert result.exit_code == 0, result.output
    assert "0 partitions" in result.output


@pytest.mark.parametrize(
    ("damage", "said"),
    [(lose, "is missing, although"), (lambda path: flip(path, 40), "is not a list of topics")],
    ids=["lost", "damaged"],
)
def test_without_the_list_of_topics_nothing_is_cut(data, damage, said):
    flip(data / "t-0" / LOG, positions(data / "t-0" / LOG)[2] + 30)
    damage(data / "cluster.json")
    before = everything(data)
    result = run("repair", data, "--yes")
    assert isinstance(result.exception, UnavailableError)
    for words in ("cluster.json", said, "Nothing was changed", "an older copy is sufficient"):
        assert words in str(result.exception)
    assert everything(data) == before


# -- what a start serves --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rolled(module_path):
    from confluent_kafka import Producer

    with stablelog.serve(module_path / "rolled", **SMALL) as broker:
        create(broker, "t", {"segment.bytes": "1024"})
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(12):
            producer.produce("t", b"%d" % number + bytes(400))
            producer.flush()
        del producer
    return module_path / "rolled"


@pytest.fixture
def sealed(rolled, tmp_path):
    """A stopped broker's directory: topic t with several segments, and a rotted record in the second batch of the first."""
    data = shutil.copytree(rolled, tmp_path / "data")
    path = data / "t-0" / LOG
    assert len(positions(path)) < 6
    flip(path, positions(path)[1] + 65)
    return data


@pytest.mark.extended
@pytest.mark.parametrize("name", [".", "t-0"])
def test_what_a_start_serves_is_shown_and_not_cut(sealed, name):
    from tests.waiting import until

    before = everything(sealed)
    result = run("repair", sealed / name, "--yes")
    assert result.exit_code == 0, result.output
    assert "1 with a damaged log" in result.output
    assert "A start accepts this damage" in result.output
    assert "A cut at the damage would end the log at offset 1" in result.output
    assert "10 records and 0 transaction markers" in result.output
    assert f"{sealed / 't-0'} --at-first-damage" in result.output
    assert everything(sealed) == before
    with stablelog.serve(sealed) as broker:
        until(lambda: watermarks(broker) == (0, 12), "t-0 is served")


@pytest.mark.extended
def test_what_a_start_serves_is_cut_if_that_is_asked_for_one_partition(sealed):
    from tests.waiting import until

    before = everything(sealed)
    result = run("repair", sealed, "--yes", "--at-first-damage")
    assert isinstance(result.exception, UnavailableError)
    assert "name the directory of one partition" in str(result.exception)
    assert everything(sealed) == before
    result = run("repair", sealed / "t-0", "--yes", "--at-first-damage")
    assert result.exit_code == 0, result.output
    assert "A cut ends the log at offset 1" in result.output
    assert "0 with a damaged log" in run("repair", sealed).output
    with stablelog.serve(sealed) as broker:
        until(lambda: watermarks(broker) == (0, 1), "t-0 is served")


@pytest.mark.extended
def test_only_what_a_start_refuses_is_cut(sealed):
    from tests.waiting import until

    last = max((sealed / "t-0").glob("*.log"))
    last.write_bytes(last.read_bytes()[:-1])
    result = run("repair", sealed, "--yes")
    assert result.exit_code == 0, result.output
    assert "A start accepts this damage" in result.output
    assert "A cut ends the log at offset 11" in result.output
    with stablelog.serve(sealed) as broker:
        until(lambda: watermarks(broker) == (0, 11), "t-0 is served")


@pytest.mark.extended
def test_damage_in_a_coordinators_log_is_not_passed_over(commits):
    path = commits / "__transaction_state-0" / LOG
    found = positions(path)
    flip(path, found[len(found) // 2] + 65)
    result = run("repair", commits, "--yes")
    assert result.exit_code == 0, result.output
    assert "accepts this damage" not in result.output
    assert "This is the commit log of" in result.output


# -- what the files of a partition do not show by themselves --------------------------------------------------------


def without_a_batch(path):
    found, content = positions(path), path.read_bytes()
    path.write_bytes(content[: found[2]] + content[found[3] :])


def shorter(path):
    path.write_bytes(path.read_bytes()[: positions(path)[2]])


def with_another_epoch(path):
    flip(path, positions(path)[2] + 15)


@pytest.mark.parametrize("damage", [without_a_batch, with_another_epoch])
def test_a_whole_batch_that_is_refused_where_the_cut_begins_is_counted(data, damage):
    damage(data / "t-0" / LOG)
    records = 3 if damage is without_a_batch else 4
    told = run("repair", data, "--yes").output
    assert f"removes {records} whole batches, with {records} records and 0 transaction markers" in told


@pytest.mark.extended
@pytest.mark.parametrize(
    "damage", [shorter, without_a_batch, lambda path: flip(path, positions(path)[2] + 5)]
)
def test_what_a_start_refuses_verify_names_and_repair_mends(data, damage):
    from tests.waiting import until

    damage(data / "t-0" / LOG)
    assert run("verify", data).exit_code == 1
    result = run("repair", data, "--yes")
    assert result.exit_code == 0, result.output
    assert "loses the offsets 2 to 5, which were durable." in result.output
    assert "t 0 2\n" in (data / RECOVERY_POINT_CHECKPOINT).read_text()
    assert "0 with a damaged log" in run("repair", data).output
    assert run("verify", data).exit_code == 0
    with stablelog.serve(data) as broker:
        until(lambda: watermarks(broker) == (0, 2), "t-0 is served")


def watermarks(broker):
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    try:
        return consumer.get_watermark_offsets(TopicPartition("t", 0), 20)
    except KafkaException:
        return None
    finally:
        consumer.close()


@pytest.mark.extended
def test_a_damaged_start_of_a_view_is_named_before_anything_is_cut(commits):
    path = commits / "o-0" / LOG
    flip(path, positions(path)[2] + 30)
    (commits / "o-0" / "view-start-offset").write_text("garbage")
    before = {found: found.read_bytes() for found in commits.rglob("*") if found.is_file()}
    result = run("repair", commits, "--yes")
    assert result.exit_code == 1, result.output
    assert f"o-0: cannot be repaired: {commits / 'o-0' / 'view-start-offset'} is damaged" in result.output
    assert {found: found.read_bytes() for found in commits.rglob("*") if found.is_file()} == before
