"""Every command that talks to a broker: without rights, without a broker, and with records that no one can decode.

Each ends in time with the right output, or with one line on stderr and the exit code of docs/reference/commands.md.
"""

import contextlib
import json
import re
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.join_group.v3.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.sync_group.v3.request import SyncGroupRequest, SyncGroupRequestAssignment

import stablelog
from stablelog.batch.header import headers_in, write_crc
from stablelog.batch.records import Record, encode_batch
from stablelog.cli import broker as cli_broker
from stablelog.cli import commands, exit_codes, produce, record_reader
from stablelog.cli.output import FINDINGS
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.producer import BlockingProducer
from stablelog.errors import StablelogError
from tests.cli.every_command import COMMANDS, ROWS
from tests.client.faults import Proxy
from tests.client.test_time import black_hole, silent, standing_still
from tests.client.transactions import write_undecodable
from tests.commands import run
from tests.secured import MECHANISM, PASSWORD, USER, secured

pytestmark = pytest.mark.xdist_group("every command")

PLACES = {"topic": "t", "group": "g", "id": "x", "user": "zoe"}
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
DESCRIBER = "bob"
# A command without a broker takes some milliseconds, and one whose broker falls silent 10 s, on a machine that is not busy.
PATIENCE_S = 60
API_VERSIONS, METADATA = 18, 3
# What each command asks first, to find a broker that answers.
FIRST_QUESTIONS = {API_VERSIONS: 1, METADATA: 1}


def test_each_command_has_a_row():
    assert {row.command for row in ROWS} == COMMANDS


def check(done, pattern, code=2, *, is_report=False):
    """It has succeeded if there is no pattern; else it has said one line that matches. A report has a finding that does."""
    assert "Traceback" not in done.stderr, done
    if not pattern:
        assert done.returncode == 0, done
        return
    if is_report:
        assert (done.returncode, done.stderr) == (FINDINGS, ""), done
        findings = json.loads(done.stdout)["findings"]
        assert any(re.fullmatch(pattern, found["problem"]) for found in findings), findings
        return
    assert done.returncode == code, done
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("waiting: ")]
    assert re.fullmatch(f"stablelog: {pattern}", line), line


def fill(at, topic="t", group="g", transactional_id="x"):
    for words, given in (
        (("topics", "create", topic, "--partitions", "2"), None),
        (("produce", topic, "--transactional-id", transactional_id, "--partition", "0"), "a\nb\n"),
        (("consume", topic, "--group", group), None),
    ):
        done = run(*words, bootstrap=at, given=given)
        assert done.returncode == 0, done


# -- a user without rights -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(module_path):
    """A broker with ACLs, and for each user the options of a command."""
    settings = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"}
    with secured(module_path, **settings) as made:
        at = made.at["PLAINTEXT"]
        fill(at)
        assert (
            run("users", "add", DESCRIBER, "--password-file", "-", bootstrap=at, given=PASSWORD).returncode
            == 0
        )
        everything = ("--topic", "*", "--group", "*", "--transactional-id", "*", "--cluster")
        words = ("--allow", "--principal", f"User:{DESCRIBER}", "--operation", "describe", *everything)
        assert run("acls", "add", *words, bootstrap=at).returncode == 0
        options = {}
        for user in (USER, DESCRIBER):
            path = module_path / f"{user}.properties"
            password = PASSWORD.replace("\\", "\\\\")
            lines = ("security.protocol=SASL_PLAINTEXT", f"sasl.mechanism={MECHANISM}")
            path.write_text("\n".join([*lines, f"sasl.username={user}", f"sasl.password={password}"]))
            options[user] = ("--command-config", str(path), "--bootstrap", made.at["SASL_PLAINTEXT"])
        yield options


@pytest.mark.sampled(2)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.words)
@pytest.mark.parametrize("user", [USER, DESCRIBER])
def test_a_user_without_rights_is_told_which_one_is_missing(guarded, row, user):
    done = run(*row.filled(**PLACES), *guarded[user], given=row.given)
    pattern = row.denied if user == USER else row.described
    check(done, pattern.format(**PLACES) if "{user}" in pattern else pattern, is_report=row.is_report)


# -- no broker -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def closed():
    """An address at which nothing listens."""
    yield "127.0.0.1:1"


@contextlib.contextmanager
def stopped():
    """A broker that stands still."""
    with stablelog.serve() as broker, standing_still(broker):
        yield broker.bootstrap


@pytest.mark.extended
@pytest.mark.parametrize(
    "network",
    [closed, stopped, *(pytest.param(one, marks=pytest.mark.night) for one in (black_hole, silent))],
    ids=lambda network: network.__name__,
)
def test_without_a_broker_every_command_says_so_in_time(network):
    def timed(row):
        began_s = time.monotonic()
        done = run(*row.filled(**PLACES), "--timeout", "0.2", bootstrap=at, given=row.given)
        return row, done, time.monotonic() - began_s

    with network() as at, ThreadPoolExecutor(4) as threads:
        found = list(threads.map(timed, ROWS))
    for row, done, _ in found:
        why = rf"no broker responds at {re.escape(at)} within 0\.2 s.*: start it, name another address .*"
        check(done, why, exit_codes.NO_BROKER, is_report=row.is_report)
    assert [(row.words, took_s) for row, _, took_s in found if took_s > PATIENCE_S] == []


def silent_after_the_first_questions(broker):
    """A way to the broker on which nothing is answered but what finds a broker."""
    host, port = broker.bootstrap.split(":")
    return Proxy(
        (host, int(port)),
        lambda key, count: None if count <= FIRST_QUESTIONS.get(key, 0) else "silence",
    )


@pytest.mark.extended
@pytest.mark.parametrize(
    "row",
    [
        row
        for row in ROWS
        if row.words in ("topics list", "produce {topic}", "consume {topic}", "cut {topic}")
    ],
    ids=lambda row: row.command,
)
def test_a_broker_that_falls_silent_ends_a_command_in_time(stablelog_broker, row, monkeypatch, tmp_path):
    monkeypatch.setattr(cli_broker, "DEADLINE_S", 0.5)
    for module in (produce, record_reader):
        monkeypatch.setattr(module, "TIMEOUT_S", 0.5)
    (tmp_path / "given").write_text(row.given)
    words = row.filled(**PLACES) + (["--file", str(tmp_path / "given")] if row.given else [])
    with (
        silent_after_the_first_questions(stablelog_broker) as proxy,
        pytest.raises(StablelogError, match=r"did not succeed within|no broker responds"),
    ):
        commands.app([*words, "--timeout", "2", "--bootstrap", proxy.bootstrap], standalone_mode=False)


@pytest.mark.night
def test_a_broker_that_falls_silent_ends_every_command_in_time(stablelog_broker):
    def timed(row):
        with silent_after_the_first_questions(stablelog_broker) as proxy:
            began_s = time.monotonic()
            done = run(*row.filled(**PLACES), "--timeout", "5", bootstrap=proxy.bootstrap, given=row.given)
            return row, done, time.monotonic() - began_s

    with ThreadPoolExecutor(len(ROWS)) as threads:
        found = list(threads.map(timed, ROWS))
    for row, done, _ in found:
        assert done.returncode in ((FINDINGS,) if row.is_report else (2, 3)), done
        why = ".*(did not succeed within|no broker responds).*"
        check(done, why, done.returncode, is_report=row.is_report)
    assert [(row.words, took_s) for row, _, took_s in found if took_s > PATIENCE_S] == []


# -- records that no one can decode ----------------------------------------------------------------------------------


def append(at, topic, batch):
    with BlockingCluster(at) as cluster:
        producer = BlockingProducer(cluster, f"raw-{topic}")
        producer.begin()
        producer.append(topic, 0, bytearray(batch))
        producer.flush()
        producer.end(commit=True)


def change(directory, topic, changed):
    """Change the batch with `odd` on the disk of the running broker."""
    (path,) = directory.glob(f"{topic}-0/*.log")
    content = bytearray(path.read_bytes())
    for at, header in headers_in(bytes(content)):
        if b"odd" in content[at : at + header.size]:
            batch = content[at : at + header.size]
            changed(batch)
            with path.open("r+b") as file:
                file.seek(at)
                file.write(batch)


def with_unknown_codec(batch):
    (attributes,) = struct.unpack_from(">h", batch, 21)
    struct.pack_into(">h", batch, 21, attributes | 6)
    write_crc(batch)


def with_a_changed_bit(batch):
    batch[-2] ^= 1


UNREADABLE = {
    "length": r"length-0: the batch at offset 3 cannot be decoded: a record has a size of .*The next batch begins at offset 4",
    "codec": r"codec-0: the batch at offset 3 cannot be decoded: .*unknown .*codec 6\. The next batch begins at offset 4",
    "bit": r"bit-0: the batch at offset 3 is damaged: its CRC is wrong",
}


KINDS = (*UNREADABLE, "text")


def spoil(broker, kind, topic):
    """Write two good records, the odd one, and a good one."""
    at = broker.bootstrap
    fill(at, topic, f"g-{topic}", f"x-{topic}")
    if kind == "length":
        write_undecodable(at, topic)
    elif kind == "text":
        headers = (("name", b"\xff"), ("empty", None))
        batch = bytearray(encode_batch([Record(0, 0, b"\xff\xfe", None, headers)]))
        batch[batch.index(b"name")] = 0xFF
        write_crc(batch)
        append(at, topic, batch)
    else:
        append(at, topic, encode_batch([Record(0, 0, None, b"odd")]))
    assert run("produce", topic, "--partition", "0", bootstrap=at, given="z\n").returncode == 0
    if kind in ("codec", "bit"):
        change(broker.data, topic, with_unknown_codec if kind == "codec" else with_a_changed_bit)


@pytest.fixture(scope="module")
def poisoned():
    """A broker with a topic for each kind of record."""
    settings = {"stablelog.produce.proof": "header", "group.initial.rebalance.delay.ms": "0"}
    with stablelog.serve(settings=settings) as broker:
        for kind in KINDS:
            spoil(broker, kind, kind)
        yield broker


READING = [row for row in ROWS if row.command == "consume"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("topic", UNREADABLE)
@pytest.mark.parametrize("row", READING, ids=lambda row: row.words)
def test_consume_names_the_batch_that_no_one_can_decode(poisoned, row, topic):
    words = row.filled(topic=topic, group=f"other-{topic}")
    done = run(*words, bootstrap=poisoned.bootstrap)
    check(done, UNREADABLE[topic] if "-1" not in words else "")


@pytest.mark.extended
def test_consume_goes_on_at_the_batch_after_it(poisoned):
    """The message has the offset."""
    for topic in UNREADABLE:
        done = run("consume", topic, "--partition", "0", "--offset", "4", bootstrap=poisoned.bootstrap)
        assert (done.returncode, done.stdout) == (0, "z\n")
        reset = ("--to", "4", "--topic", topic, "--partition", "0", "--execute")
        assert run("groups", "reset", f"g-{topic}", *reset, bootstrap=poisoned.bootstrap).returncode == 0
        done = run("consume", topic, "--group", f"g-{topic}", bootstrap=poisoned.bootstrap)
        assert (done.returncode, done.stdout) == (0, "z\n")


@pytest.mark.parametrize("row", READING, ids=lambda row: row.words)
def test_consume_prints_records_that_are_no_text(poisoned, row):
    done = run(*row.filled(topic="text", group="other-text"), "--timeout", "5", bootstrap=poisoned.bootstrap)
    check(done, "")


@pytest.mark.extended
@pytest.mark.parametrize(
    "kind", ["length", *(pytest.param(kind, marks=pytest.mark.night) for kind in KINDS[1:])]
)
def test_every_other_command_does_its_work_beside_such_records(poisoned, kind):
    """The last ones delete the topic: it is one of this test."""
    topic = f"{kind}-lost"
    spoil(poisoned, kind, topic)
    places = {"topic": topic, "group": f"g-{topic}", "id": f"x-{topic}", "user": "zoe"}
    for row in ROWS:
        if row in READING:
            continue
        done = run(*row.filled(**places), bootstrap=poisoned.bootstrap, given=row.given)
        refused = "transactions abort" in row.words or row.words.startswith(("cut", "acls"))
        check(done, ".*" if refused and done.returncode else "")


def join(connection, group):
    """Join a classic group, with a subscription and an assignment that are none."""
    times = {"session_timeout": timedelta(seconds=60), "rebalance_timeout": timedelta(seconds=60)}
    joined = connection.request(
        JoinGroupRequest(
            group_id=group,
            member_id="",
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol(name="range", metadata=b"\xff"),),
            **times,
        )
    )
    assert joined.error_code is ErrorCode.none, joined
    assignment = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"\xff\xff\xff")
    synced = connection.request(
        SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=None,
            assignments=(assignment,),
        )
    )
    assert synced.error_code is ErrorCode.none, synced


@pytest.mark.extended
def test_a_group_whose_members_write_what_no_one_can_decode_is_shown(poisoned):
    at = poisoned.bootstrap
    with BlockingCluster(at) as cluster:
        join(cluster.any_connection(), "odd\x1b[2J")
        done = run("groups", "describe", "odd\x1b[2J", bootstrap=at)
        assert (done.returncode, done.stderr) == (0, "")
        assert "1 member" in done.stdout
        check(run("groups", "list", bootstrap=at), "")
        for words in ("groups reset {group} --to earliest --topic text", "groups delete {group}"):
            done = run(*(word.format(group="odd\x1b[2J") for word in words.split()), bootstrap=at)
            check(done, "group .* (has members|is in use): .*")


@pytest.mark.parametrize("topic", KINDS)
def test_files_with_such_records_are_inspected(poisoned, topic):
    (path,) = poisoned.data.glob(f"{topic}-0/*.log")
    done = run("inspect", str(path), "--records")
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1, 2), done
    assert done.returncode == 0 or done.stderr.count("\n") == 1 or "offset" in done.stdout
