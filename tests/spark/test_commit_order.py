"""A commit-ordered topic in Spark: the order of the commits from every position, and never from the files."""

import json
import shutil

import pytest
from confluent_kafka import Producer

from stablelog.errors import UsageError
from tests.clients.drivers import Confluent, unique
from tests.spark.histories import OPEN_MS
from tests.spark.reading import make, rows


@pytest.fixture(scope="module")
def topic(stablelog_broker):
    """Three writers whose transactions overlap, a fourth one's stays open, all over several segments."""
    name = unique("ordered")
    config = {"stablelog.order": "commit", "segment.bytes": "1500"}
    make(stablelog_broker.bootstrap, name, 1, **config)
    writers = []
    for _ in range(4):
        settings = {"bootstrap.servers": stablelog_broker.bootstrap, "linger.ms": 0, "log_level": 0}
        settings |= {"transactional.id": unique("writer"), "transaction.timeout.ms": OPEN_MS}
        writers.append(Producer(settings))
        writers[-1].init_transactions()
        writers[-1].begin_transaction()
    for round_number in range(12):
        for number, writer in enumerate(writers):
            writer.produce(name, b"%d.%d" % (number, round_number), partition=0)
            writer.flush()
        ending = writers[(2 * round_number) % 3]
        (ending.abort_transaction if round_number % 4 == 3 else ending.commit_transaction)()
        ending.begin_transaction()
    yield name
    for writer in writers:
        writer.abort_transaction()


@pytest.mark.extended
def test_a_range_from_any_position_is_what_a_consumer_gets(stablelog_broker, topic):
    whole = Confluent(stablelog_broker.bootstrap).read(topic)
    assert [offset for offset, _ in whole] == sorted(offset for offset, _ in whole)
    given = {"bootstrap": stablelog_broker.bootstrap, "subscribe": topic}
    assert rows(given, "value", "offset") == [(value, offset) for offset, value in whole]
    for start in range(0, whole[-1][0], 3):
        starting = json.dumps({topic: {"0": start}})
        found = rows({**given, "startingOffsets": starting}, "value", "offset")
        assert found == [(value, offset) for offset, value in whole if offset >= start]


@pytest.mark.extended
def test_its_files_are_refused_to_committed_readers(stablelog_broker, topic, tmp_path):
    given = {"bootstrap": stablelog_broker.bootstrap, "subscribe": topic}
    with pytest.raises(UsageError, match="commit order"):
        rows({**given, "scan": "files"}, "value")
    shutil.copytree(stablelog_broker.data / f"{topic}-0", tmp_path / f"{topic}-0")
    with pytest.raises(UsageError, match="commit order"):
        rows({"path": str(tmp_path)}, "value")
    written = Confluent(stablelog_broker.bootstrap).read(topic, committed=False)
    uncommitted = {**given, "scan": "files", "isolation": "read_uncommitted"}
    assert rows(uncommitted, "value", "offset") == [(value, offset) for offset, value in written]
