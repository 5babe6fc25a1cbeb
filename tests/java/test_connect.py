"""Kafka Connect in distributed mode with an exactly-once source: workers and the broker are killed with -9.

STABLELOG_KILLS says how often.
"""

import os

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from peers import apache_kafka
from tests.clients.follower import Follower
from tests.java.client import SOURCES
from tests.java.connect import Worker
from tests.scale import randomness
from tests.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.filterwarnings("ignore")]

KILLS = int(os.environ.get("STABLELOG_KILLS", "1"))
PARTITIONS = 2
TASKS = 2


def class_path(folder):
    """Connect with our source, and the folder with the file that says so."""
    jars = apache_kafka.connect_jars()
    services = folder / "META-INF" / "services"
    services.mkdir(parents=True)
    (services / "org.apache.kafka.connect.source.SourceConnector").write_text("Numbers\n")
    return f"{apache_kafka.compiled(SOURCES / 'Numbers.java', jars)}:{folder}:{jars}/*"


@pytest.mark.night
@pytest.mark.timeout(600 + 60 * KILLS)
def test_each_number_is_written_once_through_kills_of_workers_and_of_the_broker(tmp_path):
    chance = randomness(KILLS)
    with stablelog.serve(tmp_path / "data", group_initial_rebalance_delay_ms=0) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("numbers", PARTITIONS, 1)])["numbers"].result(30)
        try:
            path = class_path(tmp_path / "plugins")
            workers = [Worker(broker.bootstrap, tmp_path, f"worker-{n}", path) for n in range(2)]
        except apache_kafka.NotAvailableError as missing:
            pytest.skip(str(missing))
        follower = Follower(broker.bootstrap, "numbers", PARTITIONS)

        def goes_on():
            before = {key: len(values) for key, values in follower.values.items()}
            until(
                lambda: (
                    all(one.is_well() for one in workers)
                    and len(follower.values) == TASKS
                    and all(len(values) > before.get(key, 0) + 50 for key, values in follower.values.items())
                ),
                lambda: "\n".join([*workers[0].failures("numbers"), *(one.log_tail() for one in workers)]),
                patience_s=120,
            )

        try:
            workers[0].configure("numbers", {"connector.class": "Numbers", "tasks.max": str(TASKS)})
            goes_on()
            for kill in range(KILLS):
                victims = ([broker, chance.choice(workers)], [chance.choice(workers)], [broker])[kill % 3]
                for one in victims:
                    one.kill()
                for one in victims:
                    one.start()
                goes_on()
            workers[0].stop_connector("numbers")
            last = {
                partition["key"].encode(): offset["number"]
                for partition, offset in workers[0].offsets("numbers")
            }
            total = sum(last.values()) + len(last)
            until(lambda: follower.count >= total, lambda: f"{follower.count} of {total} numbers came")
            for one in workers:
                one.stop()
        finally:
            for one in workers:
                one.kill()
            follower.stop()
    print(KILLS, "kills", total, "numbers")
    assert len(last) == TASKS
    assert follower.values == {key: [b"%d" % n for n in range(end + 1)] for key, end in last.items()}
