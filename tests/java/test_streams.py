"""Kafka Streams and Java's consumer while the broker is killed with -9 and its partitions open late.

STABLELOG_KILLS says how often.
"""

import json
import os
import subprocess
import threading
from collections import defaultdict

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from peers import apache_kafka
from tests import slow_opening
from tests.clients.keyed_writer import KEYS, KeyedWriter
from tests.java.client import compiled
from tests.java.dump import SHORT_LIVED
from tests.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.filterwarnings("ignore")]

KILLS = int(os.environ.get("STABLELOG_KILLS", "3"))
PARTITIONS = 3
REFUSALS = 2  # of fetches of each partition, before it opens


class App:
    """The Java process, and what it has told."""

    def __init__(self, bootstrap, state_dir):
        path = compiled("StreamsApp", apache_kafka.streams_jars())
        options = [*SHORT_LIVED, "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]
        self._process = subprocess.Popen(
            [apache_kafka.java(), *options, "-cp", path, "StreamsApp", bootstrap, str(state_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.states, self.thrown, self.deaths, self.counts, self.polled_count = (
            [],
            [],
            [],
            defaultdict(list),
            0,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            told = json.loads(line)
            if "state" in told:
                self.states.append(told["state"])
            elif "thrown" in told:
                self.thrown.append(told["thrown"])
            elif "died" in told:
                self.deaths.append(told["died"])
            else:
                for key, count in told["polled"]:
                    self.counts[key].append(count)
                self.polled_count += len(told["polled"])

    def is_well(self):
        """Fails as soon as Streams has given up, or a poll has thrown."""
        assert self._process.poll() is None, "the Java process has ended"
        assert not self.deaths, "\n".join(self.deaths)
        assert not {"ERROR", "PENDING_ERROR"} & set(self.states), self.states
        assert self.thrown == []
        return True

    def stop(self):
        self._process.stdin.close()
        self._process.wait(120)
        self._reader.join(10)

    def kill(self):
        self._process.kill()
        self._process.wait()


def goes_on(app):
    """Wait until more has come through Streams."""
    before = app.polled_count
    until(lambda: app.is_well() and app.polled_count > before + 2 * KEYS, "nothing comes through Streams")


def test_streams_and_a_consumer_live_through_kills_while_partitions_open_late(
    kafka_jars, tmp_path, monkeypatch
):
    with slow_opening.serve(tmp_path / "data", monkeypatch) as (broker, opening):
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for made in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in ("in", "out")]).values():
            made.result(30)
        try:
            app = App(broker.bootstrap, tmp_path / "state")
        except apache_kafka.NotAvailableError as missing:
            pytest.skip(str(missing))
        writer = KeyedWriter(broker.bootstrap)
        try:
            for _ in range(KILLS):
                goes_on(app)
                opening.hold()
                broker.kill()
                broker.start()
                wanted = opening.refused_count() + REFUSALS * PARTITIONS
                until(
                    lambda wanted=wanted: app.is_well() and opening.refused_count() >= wanted,
                    "no fetch comes while partitions are opening",
                )
                opening.release()
            goes_on(app)
            total = writer.stop()
            until(
                lambda: app.is_well() and app.polled_count >= total,
                lambda: f"{app.polled_count} of {total} came through Streams",
            )
            app.stop()
        finally:
            app.kill()
    print(
        KILLS, "kills", total, "records", opening.refused_count(), "fetches of opening partitions", app.states
    )
    assert app.states[-1] == "NOT_RUNNING"
    assert app.counts == {key: list(range(1, count + 1)) for key, count in writer.truth.items()}
