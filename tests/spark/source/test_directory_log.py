"""A data directory that a broker has open is read through the broker."""

import pytest

import stablelog
from stablelog.errors import UsageError
from stablelog.spark import count
from tests.clients.drivers import Confluent, unique
from tests.spark.reading import make, rows, tasks

pytestmark = pytest.mark.extended


def test_a_directory_is_refused_while_its_broker_runs_and_read_when_it_has_stopped(tmp_path):
    data, topic = tmp_path / "data", unique("running")
    with stablelog.serve(data) as broker:
        make(broker.bootstrap, topic, 1)
        Confluent(broker.bootstrap).produce(topic, [b"a", b"b"])
        given = {"path": str(data), "subscribe": topic}
        for ask in (tasks, count):
            with pytest.raises(
                UsageError, match=f"{data} is in use by a running broker, .*kafka.bootstrap.servers"
            ):
                ask(given)
        assert (
            count({"bootstrap": broker.bootstrap, "subscribe": topic, "mount": str(data), "scan": "files"})
            == 2
        )
        broker.kill()
        assert rows(given, "value") == [(b"a",), (b"b",)]
        broker.start()
        with pytest.raises(UsageError, match="is in use by a running broker"):
            tasks(given)
    assert rows(given, "value") == [(b"a",), (b"b",)]
