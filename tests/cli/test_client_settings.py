"""Settings that commands take by the names of Kafka's Java clients, from `-X` and from a profile."""

import json
import re

import pytest

import stablelog
from stablelog.batch.header import Codec, headers_in
from stablelog.batch.records import Record, encode_batch
from stablelog.cli import broker as cli_broker
from stablelog.cli import consume, login
from stablelog.cli.broker import CommandBroker
from stablelog.cli.client_settings import EVERY, OF_LIBRDKAFKA, OPTIONS, SETTINGS, read_settings
from stablelog.cli.write_settings import Compression, WriteSettings
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.producer import BlockingProducer
from stablelog.errors import UnavailableError, UsageError
from tests import documented
from tests.clients.drivers import unique
from tests.commands import run

VALUES = {
    "client.id": "me",
    "default.api.timeout.ms": "7000",
    "request.timeout.ms": "6000",
    "retry.backoff.ms": "30",
    "retry.backoff.max.ms": "40",
    "batch.size": "200",
    "compression.type": "gzip",
    "delivery.timeout.ms": "9000",
    "linger.ms": "70",
    "transaction.timeout.ms": "8000",
    "auto.offset.reset": "latest",
    "group.instance.id": "one",
    "isolation.level": "read_uncommitted",
}


@pytest.fixture(autouse=True)
def _forget_who_the_command_is():
    yield
    login.set_login(None)


def words(*names):
    return [f"{name}={VALUES[name]}" for name in names]


def test_the_page_has_each_setting():
    page = documented.page("commands.md")
    table = page[page.index("### Settings of Kafka's clients") : page.index("## Read records")]
    rows = re.findall(r"^\| `([\w.]+)` \| (.+) \| (.+) \|$", table, re.M)
    assert rows == [
        (
            name,
            "all" if one.kinds == EVERY else ", ".join(f"`{kind}`" for kind in one.kinds),
            one.meaning,
        )
        for name, one in SETTINGS.items()
    ]
    assert VALUES.keys() == SETTINGS.keys()


@pytest.mark.extended
def test_the_settings_of_every_command(stablelog_broker):
    given = words(*(name for name, one in SETTINGS.items() if one.kinds == EVERY))
    broker = CommandBroker.from_options([stablelog_broker.bootstrap], None, 60, words=given)
    with broker.cluster() as cluster:
        _, (_, client_id, timeout_s, deadline_s, _, backoff_s) = cluster.__reduce__()
    assert (client_id, timeout_s, deadline_s, backoff_s) == ("me", 6, 7, (0.03, 0.04))
    with cli_broker.connect(stablelog_broker.bootstrap) as connection:
        assert connection.versions
    assert login.cluster_arguments()["client_id"] == "me"


def test_the_settings_of_produce():
    given = read_settings(
        "produce", {}, words(*(name for name, one in SETTINGS.items() if "produce" in one.kinds))
    )
    assert WriteSettings.from_options(given.values, None, None) == (Codec.GZIP, 200, 0.07, 9, 8)
    assert WriteSettings.from_options(given.values, Compression.NONE, 5)[::4] == (Codec.NONE, 5), (
        "options replace them"
    )
    assert WriteSettings.from_options({}, None, None) == (Codec.NONE, 256 << 10, 0.005, 60, 60)


@pytest.mark.extended
def test_produce_writes_batches_of_the_size_and_the_codec_that_are_given():
    with stablelog.serve() as broker:
        assert run("topics", "create", "t", "--partitions", "1", bootstrap=broker.bootstrap).returncode == 0
        given = ("-X", "batch.size=200", "-X", "compression.type=gzip")
        done = run("produce", "t", *given, bootstrap=broker.bootstrap, given="x\n" * 20)
        assert (done.returncode, done.stderr) == (0, "")
        (path,) = broker.data.glob("t-0/*.log")
        headers = [header for _, header in headers_in(path.read_bytes())]
    assert {header.codec for header in headers} == {Codec.GZIP}
    assert len(headers) > 3


@pytest.mark.extended
def test_consume_reads_by_the_isolation_and_from_the_place_that_are_given(stablelog_broker, capsys):
    topic, at = unique("t"), stablelog_broker.bootstrap
    assert run("topics", "create", topic, "--partitions", "1", bootstrap=at).returncode == 0
    with BlockingCluster(at) as cluster:
        producer = BlockingProducer(cluster, unique("x"))
        producer.begin()
        producer.append(topic, 0, bytearray(encode_batch([Record(0, 0, None, b"aborted")])))
        producer.flush()
        producer.end(commit=False)
    assert run("produce", topic, bootstrap=at, given="kept\n").returncode == 0
    consume.consume(topic, bootstrap=[at], words=["isolation.level=read_uncommitted"])
    assert capsys.readouterr().out == "aborted\nkept\n"
    consume.consume(topic, bootstrap=[at], words=["auto.offset.reset=latest"])
    assert capsys.readouterr().out == ""
    consume.consume(topic, start="earliest", bootstrap=[at], words=["auto.offset.reset=latest"])
    assert capsys.readouterr().out == "kept\n"


@pytest.mark.extended
def test_the_member_of_a_group_is_static(stablelog_broker, monkeypatch):
    topic, made = unique("t"), []
    assert run("topics", "create", topic, bootstrap=stablelog_broker.bootstrap).returncode == 0

    class Member(consume.GroupMember):
        def __init__(self, *arguments, instance_id):
            made.append(instance_id)
            super().__init__(*arguments, instance_id=instance_id)

    monkeypatch.setattr(consume, "GroupMember", Member)
    given = {"bootstrap": [stablelog_broker.bootstrap], "words": words("group.instance.id")}
    consume.consume(topic, group=unique("g"), **given)
    assert made == ["one"]
    with pytest.raises(UnavailableError, match=r"group\.instance\.id has no effect without --group"):
        consume.consume(topic, **given)


@pytest.mark.parametrize(
    ("kind", "word", "message"),
    [
        ("", "linger.ms=5", "-X linger.ms has no effect on this command, only on produce: leave it out"),
        ("produce", "isolation.level=read_committed", "has no effect on this command, only on consume"),
        ("produce", "linger.ms=soon", f"linger.ms=soon is not valid: a number from 0 to {2**31 - 1}"),
        ("consume", "isolation.level=all", "is not valid: one of read_committed, read_uncommitted"),
        ("produce", "compression.type=zip", "compression.type='zip' is not valid: one of none, gzip"),
        ("", "request.timeout.ms=0", "request.timeout.ms='0' is not valid: a number of milliseconds from 1"),
        ("consume", "group.instance.id=", "group.instance.id is not valid"),
        ("", "acks=1", "-X: acks is no setting that a command takes"),
        ("", "client.idd=x", "did you mean client.id"),
        ("", "securty.protocol=SSL", "did you mean security.protocol"),
        ("", "bootstrap.servers=x:1", "the value of bootstrap.servers is given by the option --bootstrap"),
        ("consume", "group.id=x", "the value of group.id is given by the option --group"),
        ("produce", "transactional.id=x", "is given by the option --transactional-id"),
        *(
            ("", f"{name}=1", f"-X: {name} is a name of librdkafka; Kafka's name is {kafka}")
            for name, kafka in OF_LIBRDKAFKA.items()
        ),
    ],
)
def test_what_has_no_effect_is_refused_by_name(kind, word, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        read_settings(kind, {}, [word])


def test_no_name_means_two_things():
    assert not SETTINGS.keys() & (OPTIONS.keys() | OF_LIBRDKAFKA.keys())


@pytest.mark.extended
def test_a_profile_has_the_settings_of_several_commands(stablelog_broker, tmp_path, monkeypatch):
    (tmp_path / "stablelog").mkdir()
    lines = [
        f"{json.dumps(name)} = {json.dumps(value)}" for name, value in VALUES.items() if "group" not in name
    ]
    head = f"[p]\nbootstrap = {json.dumps(stablelog_broker.bootstrap)}\n[p.settings]\n"
    (tmp_path / "stablelog" / "profiles.toml").write_text(head + "\n".join(lines))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    topic = unique("t")
    assert run("topics", "create", topic, "--profile", "p").returncode == 0
    assert run("produce", topic, "--profile", "p", given="a\n").returncode == 0
    done = run("consume", topic, "--profile", "p", "-X", "auto.offset.reset=earliest")
    assert (done.returncode, done.stdout) == (0, "a\n")
    with pytest.raises(UsageError, match=r"the profile: message\.timeout\.ms is a name of librdkafka"):
        read_settings("", {"message.timeout.ms": "5"}, [])
