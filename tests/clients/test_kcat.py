"""kcat, unmodified, against a running broker."""

import json
import shutil
import subprocess

import pytest

from tests.clients.drivers import Confluent, unique
from tests.spark.reading import settled

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(KCAT is None, reason="kcat is not on the path; Debian has it: apt-get install kcat"),
]


@pytest.fixture
def kcat(stablelog_broker):
    """Runs kcat with arguments and, if given, lines on its standard input; returns what it prints."""

    def run(*arguments, lines=None):
        done = subprocess.run(
            [KCAT, "-b", stablelog_broker.bootstrap, *arguments],
            input=lines,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def topic(kcat):
    name = unique("kcat")
    kcat("-P", "-t", name, "-p", "0", "-K", ":", lines="k1:one\nk2:two\nk3:three\n")
    return name


def consume(kcat, topic, *arguments):
    return kcat("-C", "-q", "-e", "-t", topic, *arguments)


def test_what_it_produces_it_consumes(kcat, topic):
    assert consume(kcat, topic, "-f", "%p %o %k=%s\n") == "0 0 k1=one\n0 1 k2=two\n0 2 k3=three\n"


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_and_idempotence(kcat, codec):
    topic = unique("codec")
    settings = ("-z", codec, "-X", "enable.idempotence=true", "-X", "acks=all")
    kcat("-P", "-t", topic, "-p", "0", *settings, lines="".join(f"{'x' * 100}{n}\n" for n in range(50)))
    assert consume(kcat, topic).splitlines() == [f"{'x' * 100}{n}" for n in range(50)]


def test_headers_and_null_values(kcat):
    topic = unique("headers")
    kcat("-P", "-t", topic, "-p", "0", "-H", "a=1", "-H", "b=", "-H", "none", "-K", ":", "-Z", lines="k:\n")
    (message,) = map(json.loads, consume(kcat, topic, "-J").splitlines())
    assert message["headers"] == ["a", "1", "b", "", "none", None]
    assert (message["key"], message["payload"]) == ("k", None)
    assert (message["topic"], message["partition"], message["offset"]) == (topic, 0, 0)
    assert message["tstype"] == "create"


def test_from_offsets(kcat, topic):
    for argument, wanted in (
        ("beginning", ["one", "two", "three"]),
        ("1", ["two", "three"]),
        ("-1", ["three"]),
        ("end", []),
        ("s@0", ["one", "two", "three"]),
    ):
        assert consume(kcat, topic, "-o", argument).splitlines() == wanted, argument
    assert consume(kcat, topic, "-o", "1", "-c", "1").splitlines() == ["two"]


def test_isolation(kcat, topic, stablelog_broker):
    """It reads committed records unless it is told otherwise, also from the middle of an aborted transaction."""
    with Confluent(stablelog_broker.bootstrap).transactions(unique("txn")) as run:
        run(topic, [b"aborted-1", b"aborted-2"], commit=False)
        run(topic, [b"committed"], commit=True)
    settled(stablelog_broker.bootstrap, topic)  # kcat stops at the first end that it is told of
    for offset, before in (("0", ["one", "two", "three"]), ("3", []), ("4", []), ("5", [])):
        read = consume(kcat, topic, "-o", offset, "-X", "isolation.level=read_committed")
        assert read.splitlines() == [*before, "committed"]
    everything = consume(kcat, topic, "-o", "3", "-X", "isolation.level=read_uncommitted")
    assert everything.splitlines() == ["aborted-1", "aborted-2", "committed"]


def test_metadata(kcat, topic, stablelog_broker):
    told = json.loads(kcat("-L", "-J", "-t", topic))
    assert [broker["name"] for broker in told["brokers"]] == [stablelog_broker.bootstrap]
    (described,) = told["topics"]
    assert described["topic"] == topic
    assert [(each["partition"], each["leader"]) for each in described["partitions"]] == [
        (0, told["brokers"][0]["id"])
    ]
    assert f'topic "{topic}" with 1 partitions' in kcat("-L")


def test_offsets_by_time(kcat, topic):
    (first, *_) = map(json.loads, consume(kcat, topic, "-J").splitlines())
    assert kcat("-Q", "-t", f"{topic}:0:{first['ts']}").split()[-1] == "0"
    assert kcat("-Q", "-t", f"{topic}:0:-1").split()[-1] == "3"


def test_a_group_goes_on_where_it_left_off(kcat, topic):
    group = unique("group")
    arguments = ("-q", "-e", "-X", "auto.offset.reset=earliest", "-G", group, topic)
    assert kcat(*arguments).splitlines() == ["one", "two", "three"]
    kcat("-P", "-t", topic, "-p", "0", lines="four\n")
    assert kcat(*arguments).splitlines() == ["four"], "what it had read is committed"
