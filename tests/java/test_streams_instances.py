"""Two instances of a Kafka Streams application, exactly once, with a repartition topic and a changelog: instances and the
broker are killed with -9.

STABLELOG_KILLS says how often.
"""

import json
import os
import subprocess
import threading

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from peers import apache_kafka
from tests.clients.follower import Follower
from tests.clients.keyed_writer import KEYS, KeyedWriter, totals_by_last_digit
from tests.java.client import compiled
from tests.java.dump import SHORT_LIVED
from tests.scale import randomness
from tests.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.filterwarnings("ignore")]

KILLS = int(os.environ.get("STABLELOG_KILLS", "1"))
PARTITIONS = 3


class Instance:
    """A Java process with an instance of the application, its states, and the traces of what its threads died of."""

    def __init__(self, name, command, errors):
        self.name, self._command, self._errors = name, command, errors
        self.states, self.deaths = [], []
        self.start()

    def start(self):
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, lines):
        for line in lines:
            told = json.loads(line)
            if "state" in told:
                self.states.append(told["state"])
            else:
                self.deaths.append(told["died"])

    def is_well(self):
        """Fails as soon as Streams has given up."""
        assert self._process.poll() is None, f"{self.name} has ended:\n{self._errors.read_text()[-2000:]}"
        assert not self.deaths, "\n".join(self.deaths)
        assert not {"ERROR", "PENDING_ERROR"} & set(self.states), self.states
        return True

    def stop(self):
        self._process.stdin.close()
        assert self._process.wait(120) == 0
        self._reader.join(10)

    def kill(self):
        self._process.kill()
        self._process.wait()
        self._reader.join(10)


def command(bootstrap, state_dir, standbys):
    """What starts an instance. Its store is in memory if RocksDB cannot be had."""
    folders = [apache_kafka.streams_jars()]
    try:
        folders.append(apache_kafka.rocksdb_jars())
    except apache_kafka.NotAvailableError as missing:
        print(missing)
    options = [*SHORT_LIVED, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    path = compiled("StreamsTotals", *folders)
    return [
        apache_kafka.java(),
        *options,
        "-cp",
        path,
        "StreamsTotals",
        bootstrap,
        str(state_dir),
        str(standbys),
    ]


@pytest.mark.night
@pytest.mark.timeout(600 + 60 * KILLS)
def test_each_record_is_counted_once_through_kills_of_instances_and_of_the_broker(kafka_jars, tmp_path):
    chance = randomness(KILLS)
    with stablelog.serve(tmp_path / "data", group_initial_rebalance_delay_ms=0) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        topics = [NewTopic("in", PARTITIONS, 1), NewTopic("totals", PARTITIONS, 1)]
        for made in admin.create_topics(topics).values():
            made.result(30)
        try:
            standbys = chance.randrange(2)
            commands = [command(broker.bootstrap, tmp_path / f"state-{n}", standbys) for n in range(2)]
        except apache_kafka.NotAvailableError as missing:
            pytest.skip(str(missing))
        instances = [Instance(f"instance {n}", one, tmp_path / f"{n}.err") for n, one in enumerate(commands)]
        writer, follower = KeyedWriter(broker.bootstrap), Follower(broker.bootstrap, "totals", PARTITIONS)

        def goes_on():
            before = follower.count
            until(
                lambda: all(one.is_well() for one in instances) and follower.count > before + 2 * KEYS,
                lambda: f"no count comes: {[one.states for one in instances]}",
                patience_s=120,
            )

        try:
            goes_on()
            for kill in range(KILLS):
                victims = ([broker, chance.choice(instances)], [chance.choice(instances)], [broker])[kill % 3]
                for one in victims:
                    one.kill()
                for one in victims:
                    one.start()
                goes_on()
            total = writer.stop()
            until(
                lambda: all(one.is_well() for one in instances) and follower.count >= total,
                lambda: f"{follower.count} of {total} counts came",
                patience_s=120,
            )
            for one in instances:
                one.stop()
        finally:
            for one in instances:
                one.kill()
            follower.stop()
        topics = set(admin.list_topics(timeout=30).topics)
    print(KILLS, "kills", total, "records", standbys, "standbys", [one.states for one in instances])
    assert {"totals-by-group-repartition", "totals-counts-changelog"} <= topics
    assert follower.values == totals_by_last_digit(writer.truth)
