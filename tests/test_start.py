"""The pages for beginners: what they say is so, their pictures are drawn from a broker, and what they show runs."""

import inspect
import re
import socket
import warnings
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, TopicPartition

import stablelog
from demo.pictures import commit_order, cut, open_transaction, partition, story
from demo.pictures.pen import PALETTES
from demo.pictures.writers import Writers
from tests import documented
from tests.commands import run
from tests.fresh_copy import bash, make_copy

START = Path(__file__).parents[1] / "docs" / "start"
PICTURED = " ".join(documented.page("transactions.md").split())
PICTURES = {
    "partition": partition,
    "open": open_transaction,
    "commit-order": commit_order,
    "cut": cut,
}
WORDS_MAX = {"transactions.md": 1500}
TIMEOUT_S = 240
BLOCK = re.compile(r"^```(\w+)\n((?:.*\n)*?)^```$|(?<=\n\n)((?:    .*\n)+)", re.M)
TYPED = documented.take("first-log.md")
(WRITTEN,) = documented.take("transactions.md", "txn.write(")
(READ,) = documented.take("transactions.md", "client.read(")


@pytest.fixture
def writers():
    with stablelog.serve() as broker, Writers(broker) as made:
        yield made


def names(read):
    return [value[0] for _, value in read]


def draws(name, found):
    """Each picture of the documents is what is drawn now."""
    for palette in PALETTES:
        drawn = PICTURES[name].draw(palette, found)
        assert drawn == (START / f"{name}-{palette.name}.svg").read_text(), "run `make picture`"


def test_the_page_with_pictures_is_short():
    for name, words in WORDS_MAX.items():
        assert len(documented.page(name).split()) <= words


@pytest.mark.extended
def test_the_partition_is_one_of_a_broker(writers):
    found = partition.play(writers)
    start, stable, high = found.bounds
    (late,) = [txn for txn in found.transactions if txn.writer == partition.LATE]
    assert (late.marker, late.spans[0][0]) == (None, stable)
    assert 0 < start < stable < high
    readable = {offset for txn in found.transactions if txn.is_committed for offset in txn.offsets}
    assert [at for at, _ in writers.read(partition.TOPIC)] == sorted(
        at for at in readable if start <= at < stable
    )
    draws("partition", found)


def test_readers_stop_at_an_open_transaction(writers):
    found = open_transaction.play(writers)
    assert names(found.before) == ["A", "A"]
    assert names(found.after) == ["A", "A", "B", "C", "C", "B"]
    assert f"B begins at offset {found.stable}. A reader that went past offset {found.stable} " in PICTURED
    draws("open", found)


def test_who_holds_readers_back_is_said(writers):
    story.begin(writers)
    _, stable, high = writers.bounds(story.TOPIC)
    told = run("topics", "describe", story.TOPIC, bootstrap=writers.broker.bootstrap).stdout
    (row,) = re.findall(r"^│ +0 .*$", told, re.M)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[3:7] == [str(stable), str(high), str(high - stable), f"B since offset {stable}"]
    writers.end("B")
    _, stable, high = writers.bounds(story.TOPIC)
    assert stable == high


def test_librdkafka_reads_committed_records_by_default_and_others_do_not(writers):
    story.begin(writers)
    settings = {"bootstrap.servers": writers.broker.bootstrap, "group.id": "g", "enable.partition.eof": True}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(story.TOPIC, 0, 0)])
    values = []
    while (message := consumer.poll(TIMEOUT_S)).error() is None:
        values.append(message.value())
    consumer.close()
    assert values == [b"A1", b"A2"]
    with warnings.catch_warnings(action="ignore"):  # kafka-python uses what Python has deprecated
        from kafka import KafkaConsumer
    default = inspect.signature(AIOKafkaConsumer).parameters["isolation_level"].default
    assert default == KafkaConsumer.DEFAULT_CONFIG["isolation_level"] == "read_uncommitted"


def test_commit_order_is_the_order_of_the_commits(writers):
    found = commit_order.play(writers)
    assert names(found.before) == ["A", "A", "C", "C"]
    assert names(found.after) == ["A", "A", "C", "C", "B", "B"]
    assert found.sequences == {"A": 1, "C": 2, "B": 3}
    marker = found.transactions[0].marker
    assert "the offset 2, and 3 and 4 are the positions" in PICTURED
    assert (marker, [offset for offset, _ in found.after[:2]]) == (2, [3, 4])
    draws("commit-order", found)


def test_a_cut_is_between_two_commits_and_other_ends_tear_one(writers):
    found = cut.play(writers)
    orders, stock = (found.cut[topic] for topic in ("orders", "stock"))
    ends = f"position {orders} of `orders`, and position {stock} of `stock`"
    assert f"the cut has R = {cut.CUT_AT}, {ends}" in PICTURED
    taken = {}
    for topic, commits in found.commits.items():
        records = [one.commit_sequence for one in commits for _ in range(one.start_offset, one.end_offset)]
        for one in commits:
            assert (one.end_offset <= found.cut[topic]) == (one.commit_sequence <= cut.CUT_AT)
        taken[topic] = records[: cut.LIMIT].count(3)
    assert f"takes {cut.LIMIT} records of each topic" in PICTURED
    assert (taken["stock"], taken["orders"]) == (2, 1)
    draws("cut", found)


def test_the_blocks_of_the_page_with_pictures_run(writers, capsys):
    for topic in ("orders", "stock"):
        writers.create(topic, stablelog_order="commit")
    exec(WRITTEN + READ, {"client": writers.client})
    assert capsys.readouterr().out == "1 [b'3 chairs']\n"
    (transaction,) = writers.client.read(["orders", "stock"], wait=0)
    assert [record.value for record in transaction.records] == [b"3 chairs", b"-3 chairs"]


@pytest.mark.extended
def test_the_first_log_is_typed_from_the_first_line_to_the_last(tmp_path):
    copy = make_copy(tmp_path, is_installed=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    script, expected = [], []
    for language, fenced, indented in BLOCK.findall(documented.page("first-log.md")):
        block = fenced or re.sub("^    ", "", indented, flags=re.M)
        assert block in TYPED
        if language == "python":
            (copy / "shop.py").write_text(block)  # `bash` sets STABLELOG_BOOTSTRAP
            script.append("python shop.py")
        elif language == "text":
            expected.append(block)
        elif "kill -9" in block:
            script.append(f"{block}wait || true")  # the next block is typed when the broker has gone
        else:
            script.append(block.replace("--data first-log &", f"--data first-log --port {port} &"))
    printed = bash("\n".join(script), copy, port, TIMEOUT_S)
    for block in expected:
        at = printed.find(block)
        assert at >= 0, (block, printed)
        printed = printed[at + len(block) :]
