"""MirrorMaker 2 from one stablelog broker to another, exactly once: its worker and both brokers are killed with -9.

STABLELOG_KILLS says how often.
"""

import os
import threading

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from peers import apache_kafka
from stablelog.testing.history import Fate
from tests.chaos.test_kill import PARTITIONS, Writer, read_values
from tests.clients.follower import Follower
from tests.java.connect import Worker
from tests.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.night, pytest.mark.filterwarnings("ignore")]

KILLS = int(os.environ.get("STABLELOG_KILLS", "1"))
NAME = "mirror"
MIRRORED = "source.t"


def settings(source, target):
    """Of the connector that mirrors records."""
    converter = "org.apache.kafka.connect.converters.ByteArrayConverter"
    return {
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "key.converter": converter,
        "value.converter": converter,
        "source.cluster.alias": "source",
        "source.cluster.bootstrap.servers": source,
        "target.cluster.alias": "target",
        "exactly.once.support": "required",
        "target.cluster.bootstrap.servers": target,
        "source.consumer.isolation.level": "read_committed",
        "topics": "t",
        "replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
    }


def admin_of(broker):
    return AdminClient(
        {"bootstrap.servers": broker.bootstrap, "log_level": 0, "error_cb": lambda _error: None}
    )


@pytest.mark.timeout(600 + 60 * KILLS)
def test_the_mirror_has_each_committed_record_once_and_in_order(tmp_path):
    stopping = threading.Event()
    with (
        stablelog.serve(tmp_path / "source") as source,
        stablelog.serve(tmp_path / "target", group_initial_rebalance_delay_ms=0) as target,
    ):
        admin = admin_of(source)
        admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(30)
        try:
            path = f"{apache_kafka.connect_jars()}/*"
            worker = Worker(target.bootstrap, tmp_path, "worker", path)
        except apache_kafka.NotAvailableError as missing:
            pytest.skip(str(missing))
        writers = [Writer(f"writer-{n}", source.bootstrap, stopping) for n in range(2)]
        for writer in writers:
            writer.start()
        follower = None

        def trouble():
            return "\n".join([*worker.failures(NAME), worker.log_tail()])

        def goes_on():
            before = follower.count
            until(lambda: worker.is_well() and follower.count > before + 50, trouble, patience_s=120)

        try:
            worker.configure(NAME, settings(source.bootstrap, target.bootstrap))
            admin = admin_of(target)
            until(lambda: worker.is_well() and MIRRORED in admin.list_topics(timeout=30).topics, trouble)
            follower = Follower(target.bootstrap, MIRRORED, PARTITIONS)
            goes_on()
            for kill in range(KILLS):
                victims = ((source, target, worker), (worker,), (source,), (target,))[kill % 4]
                for one in victims:
                    one.kill()
                for one in victims:
                    one.start()
                goes_on()
            stopping.set()
            for writer in writers:
                writer.join(120)
            truth = read_values(source.bootstrap, "read_committed")
            total = sum(map(len, truth.values()))
            until(
                lambda: worker.is_well() and follower.count >= total,
                lambda: f"{follower.count} of {total} records came\n{trouble()}",
            )
            worker.stop()
        finally:
            worker.kill()
            if follower is not None:
                follower.stop()
    print(KILLS, "kills", total, "records", sum(txn.fate is Fate.ABORTED for txn in writers[0].transactions))
    assert any(txn.fate is Fate.ABORTED for writer in writers for txn in writer.transactions)
    assert follower.partitions == {p: [value for _, value in rows] for p, rows in truth.items()}
