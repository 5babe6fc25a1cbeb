"""`stablelog produce`: forms of input, options, and what is written if a record is not valid."""

import os
import pty
import subprocess
import sys

import pyarrow as pa
import pytest
from pyarrow import parquet

from stablelog.batch.header import headers_in
from tests.cli.test_cli import answer
from tests.clients.drivers import unique
from tests.commands import COMMAND, run
from tests.spark.reading import settled
from tests.waiting import until


@pytest.fixture
def topic(stablelog_broker):
    name = unique("produce")
    answer("topics", "create", name, "--partitions", "2", bootstrap=stablelog_broker.bootstrap)
    return name


def read(broker, topic, *fields):
    settled(broker.bootstrap, topic)
    found = answer("consume", topic, bootstrap=broker.bootstrap)
    return [tuple(record.get(name) for name in fields) for record in found]


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_a_topic_that_is_missing_is_named_with_the_command_that_makes_it(stablelog_broker, command):
    name, at = unique("missing"), stablelog_broker.bootstrap
    refused = run(command, name, bootstrap=at, given="never\n")
    assert refused.returncode == 2
    hint = f"there is no topic {name!r} at {at}. `stablelog topics create {name}` creates it"
    assert refused.stderr.startswith(f"stablelog: {hint}")
    assert name not in str(answer("topics", "list", bootstrap=at))


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_a_topic_with_a_mistyped_name_is_named_rightly(stablelog_broker, topic, command):
    refused = run(command, topic[:-1], bootstrap=stablelog_broker.bootstrap, given="never\n")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert f"; did you mean {topic}" in refused.stderr


@pytest.mark.extended
def test_what_consume_writes_as_json_is_what_produce_reads(stablelog_broker, topic):
    at, copy = stablelog_broker.bootstrap, unique("copy")
    answer("topics", "create", copy, "--partitions", "2", bootstrap=at)
    given = (
        '{"key": "k", "value": "v", "partition": 1, "timestamp_ms": 1790000000000, "headers": [{"name": "a", "value": null}]}\n'
        '{"key_base64": "/w==", "value": null, "partition": 0, "headers": [{"name": "b", "value_base64": "/w=="}]}\n'
    )
    answer("produce", topic, "--input", "json", bootstrap=at, given=given)
    lines = run("consume", topic, "--json", bootstrap=at).stdout
    answer("produce", copy, "--input", "json", bootstrap=at, given=lines)
    fields = ("partition", "offset", "timestamp_ms", "key", "key_base64", "value", "headers")
    # A consumer gets the two partitions in any order.
    copied = sorted(read(stablelog_broker, copy, *fields), key=str)
    assert copied == sorted(read(stablelog_broker, topic, *fields), key=str)
    assert sorted(record[3:] for record in copied if record[0] == 1) == [
        ("k", None, "v", [{"name": "a", "value": None}])
    ]
    assert [record[2] for record in copied if record[0] == 1] == [1_790_000_000_000]
    assert [record[3:] for record in copied if record[0] == 0] == [
        (None, "/w==", None, [{"name": "b", "value_base64": "/w=="}])
    ]


@pytest.mark.extended
@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_timestamp_of_any_sign_comes_out_as_it_went_in(stablelog_broker, topic, form):
    at, given = stablelog_broker.bootstrap, [0, -1, -2, -2_208_988_800_000, 1_790_000_000_000, 1 - (1 << 63)]
    lines = "".join(f'{{"value": "v", "timestamp_ms": {one}, "partition": 0}}\n' for one in given)
    rows = "value,timestamp_ms,partition\n" + "".join(f"v,{one},0\n" for one in given)
    answer("produce", topic, "--input", form, bootstrap=at, given=lines if form == "json" else rows)
    assert [found for (found,) in read(stablelog_broker, topic, "timestamp_ms")] == given
    copied = run("consume", topic, "--json", bootstrap=at).stdout
    answer("produce", topic, "--input", "json", bootstrap=at, given=copied)
    assert [found for (found,) in read(stablelog_broker, topic, "timestamp_ms")] == given * 2


def test_options_complete_records_that_lack_a_part(stablelog_broker, topic):
    words = ("--key", "K", "-p", "1", "-H", "a=1", "-H", "b=x=y", "--timestamp", "2026-09-21T13:46:40Z", "-Z")
    text = "value,key,partition,timestamp_ms,header.c\nv,k,0,1790000000001,2\n,,,,\n"
    given = ("--input", "csv", *words)
    answer("produce", topic, *given, bootstrap=stablelog_broker.bootstrap, given=text)
    found = read(stablelog_broker, topic, "partition", "key", "value", "timestamp_ms", "headers")
    assert sorted(found, key=str) == [
        (0, "k", "v", 1_790_000_000_001, [{"name": "c", "value": "2"}]),
        (1, "K", None, 1_789_998_400_000, [{"name": "a", "value": "1"}, {"name": "b", "value": "x=y"}]),
    ]


@pytest.mark.extended
def test_rows_of_parquet_are_written(stablelog_broker, topic, tmp_path):
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"key": ["a", "b"], "value": ["1", None], "partition": [0, 0]}), path)
    words = ("--input", "parquet", "--file", str(path), "--transaction")
    (done,) = answer("produce", topic, *words, bootstrap=stablelog_broker.bootstrap)
    assert done == {"topic": topic, "records": 2, "transactions": 1}
    assert read(stablelog_broker, topic, "offset", "key", "value") == [(0, "a", "1"), (1, "b", None)]


@pytest.mark.parametrize(("codec", "number"), [("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)])
def test_batches_are_compressed(stablelog_broker, topic, codec, number):
    given = "the same line\n" * 100
    words = ("-p", "0", "--compression", codec)
    answer("produce", topic, *words, bootstrap=stablelog_broker.bootstrap, given=given)
    (log,) = (stablelog_broker.data / f"{topic}-0").glob("*.log")
    codecs = {header.attributes & 7 for _, header in headers_in(log.read_bytes())}
    assert number in codecs


@pytest.mark.extended
@pytest.mark.parametrize(
    ("words", "written", "said"),
    [
        ((), ["a", "b"], "Before it, 2 records were written"),
        (("--transaction",), [], "Nothing was written"),
        (("--transactional-id", "ID"), [], "Nothing was written"),
        (("--batch", "1"), ["a", "b"], "Before it, 2 records were written, in 2 transactions"),
        (("--batch", "2"), ["a", "b"], "Before it, 2 records were written, in 1 transaction"),
        (("--batch", "3"), [], "Nothing was written"),
    ],
)
def test_a_bad_line_is_refused_and_nothing_of_its_transaction_is_committed(
    stablelog_broker, topic, words, written, said
):
    given = '{"value": "a"}\n{"value": "b"}\n{"valeu": "c"}\n{"value": "d"}\n'
    words = [unique("id") if word == "ID" else word for word in words]
    done = run(
        "produce",
        topic,
        "--input",
        "json",
        "-p",
        "0",
        *words,
        bootstrap=stablelog_broker.bootstrap,
        given=given,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("stablelog: line 3 has the unknown field 'valeu'; did you mean value?")
    assert done.stderr.endswith(f". {said}\n")
    assert [value for (value,) in read(stablelog_broker, topic, "value")] == written


@pytest.mark.extended
def test_batches_are_transactions_of_their_own(stablelog_broker, topic):
    at = stablelog_broker.bootstrap
    given = "".join(f"{number}\n" for number in range(7))
    (done,) = answer("produce", topic, "--batch", "3", "-p", "0", bootstrap=at, given=given)
    assert done == {"topic": topic, "records": 7, "transactions": 3}
    settled(at, topic)
    offsets = [offset for (offset,) in read(stablelog_broker, topic, "offset")]
    assert offsets == [0, 1, 2, 4, 5, 6, 8]  # a marker follows each transaction
    assert answer("produce", topic, "--batch", "3", bootstrap=at, given="")[0]["transactions"] == 0
    assert "in 1 transaction\n" in run("produce", topic, "--batch", "3", bootstrap=at, given="x").stdout


@pytest.mark.extended
def test_a_new_transactional_id_belongs_to_the_group_of_the_topic(stablelog_broker):
    at, name, group = stablelog_broker.bootstrap, unique("paid"), unique("payments")
    answer("topics", "create", name, "--config", f"stablelog.group={group}", bootstrap=at)
    answer("produce", name, "--transaction", bootstrap=at, given="x\n")
    ids = [row["transactional_id"] for row in answer("transactions", "list", bootstrap=at)[0]]
    assert any(one.startswith(f"{group}/stablelog-produce-") for one in ids)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"value": "v", "partition": 2}', "line 2: {topic} has no partition 2, only 0 to 1"),
        ('{"value": "LONG"}', "line 2: "),
    ],
)
def test_a_record_that_the_topic_cannot_have_is_named(stablelog_broker, topic, line, why):
    given = f'{{"value": "a"}}\n{line}\n'.replace("LONG", "x" * 2_000_000)
    words = ("produce", topic, "--input", "json", "--transaction")
    done = run(*words, bootstrap=stablelog_broker.bootstrap, given=given)
    assert done.returncode == 2
    assert done.stderr.startswith(f"stablelog: {why.format(topic=topic)}")
    assert done.stderr.endswith(". Nothing was written\n")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--transaction", "--batch", "2"), "choose one of them"),
        (("--input", "parquet"), "needs --file"),
        (("--header", "a"), "--header 'a' is not valid: write NAME=VALUE"),
        (("--timestamp", "soon"), "--timestamp soon is not valid: a time is"),
        (("--input", "xml"), "'lines', 'json', 'csv', 'parquet'"),
    ],
)
def test_options_that_are_not_valid_are_refused_before_a_broker_is_asked(words, why):
    done = run("produce", "t", *words, "--timeout", "0", bootstrap="127.0.0.1:1", given="")
    assert done.returncode == 2
    assert why in done.stderr


@pytest.mark.extended
def test_a_line_is_written_while_the_input_stays_open(stablelog_broker, topic):
    command = [sys.executable, "-c", COMMAND, "produce", topic, "--bootstrap", stablelog_broker.bootstrap]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        for count in (1, 2):
            writer.stdin.write(b"x\n")
            writer.stdin.flush()
            until(lambda n=count: len(read(stablelog_broker, topic, "value")) == n, "the line is written")
        writer.stdin.close()
        assert (writer.wait(60), writer.stdout.read()) == (0, b"wrote 2 records to %s\n" % topic.encode())


@pytest.mark.extended
def test_progress_is_shown_at_a_terminal_only(stablelog_broker, topic):
    command = [sys.executable, "-c", COMMAND, "produce", topic, "--bootstrap", stablelog_broker.bootstrap]
    reading, terminal = pty.openpty()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=terminal) as writer:
        os.close(terminal)
        writer.stdin.write(b"x\n" * 2500)
        writer.stdin.close()
        shown = b""
        while piece := _read(reading):
            shown += piece
        assert (writer.wait(60), writer.stdout.read()) == (0, b"wrote 2500 records to %s\n" % topic.encode())
    os.close(reading)
    assert b"2,500 records" in shown
    assert run("produce", topic, bootstrap=stablelog_broker.bootstrap, given="x\n").stderr == ""


def _read(terminal):
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # Linux says so at the end of a terminal
        return b""
