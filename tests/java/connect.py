"""Workers of Kafka Connect in distributed mode, with exactly-once sources."""

import json
import subprocess
import urllib.error
import urllib.request

from peers import apache_kafka
from tests.java.dump import SHORT_LIVED
from tests.waiting import until

MAIN = "org.apache.kafka.connect.cli.ConnectDistributed"
# A worker is starting, its group changes, or what is asked for is not there yet.
FOR_NOW = {404, 409, 500, 503}
# A killed worker shall be missed, and its tasks shall begin elsewhere, within seconds.
SETTINGS = {
    "group.id": "connect",
    "exactly.once.source.support": "enabled",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "500",
    "scheduled.rebalance.max.delay.ms": "500",
    "offset.flush.interval.ms": "1000",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "plugin.discovery": "service_load",
    "config.storage.topic": "connect-configs",
    "config.storage.replication.factor": "1",
    "offset.storage.topic": "connect-offsets",
    "offset.storage.replication.factor": "1",
    "offset.storage.partitions": "2",
    "status.storage.topic": "connect-status",
    "status.storage.replication.factor": "1",
    "status.storage.partitions": "1",
}


class Worker:
    """A Java process with a worker.

    Args:
        bootstrap: the broker.
        folder: for its settings and what it logs.
        name: of both files.
        class_path: Connect's jars, and connectors.
        settings: over `SETTINGS`.

    Raises:
        NotAvailableError: there is no Java.
    """

    def __init__(self, bootstrap, folder, name, class_path, **settings):
        (self.port,) = apache_kafka.reserve_ports(self, 1)
        self.name, self._log = name, folder / f"{name}.log"
        self.url = f"http://127.0.0.1:{self.port}"
        given = SETTINGS | {"bootstrap.servers": bootstrap, "listeners": self.url} | settings
        config = folder / f"{name}.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        options = [*SHORT_LIVED, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        self._command = [apache_kafka.java(), *options, "-cp", class_path, MAIN, str(config)]
        self.start()

    def start(self):
        """Start the process; it may answer later."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def is_well(self):
        """Fails if the process has ended by itself."""
        assert self._process.poll() is None, f"{self.name} has ended:\n{self.log_tail()}"
        return True

    def log_tail(self):
        """The last lines that it has logged."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-40:])

    def ask(self, method, path, content=None):
        """What the worker answers to a request; None while it cannot, because it starts or its group changes."""
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(
            f"{self.url}{path}", body, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.loads(response.read() or b"{}")
        except urllib.error.HTTPError as error:
            if error.code in FOR_NOW:
                return None
            raise
        except OSError:
            return None

    def configure(self, connector, settings):
        """Set the settings of a connector, which makes it if it is not there."""
        until(
            lambda: self.is_well() and self.ask("PUT", f"/connectors/{connector}/config", settings),
            self.log_tail,
            patience_s=120,
        )

    def failures(self, connector):
        """The traces of the connector and of its tasks, of those that have failed."""
        status = self.ask("GET", f"/connectors/{connector}/status") or {"connector": {}, "tasks": []}
        return [
            one["trace"] for one in (status["connector"], *status["tasks"]) if one.get("state") == "FAILED"
        ]

    def stop_connector(self, connector):
        """Stop the connector, and wait until none of its tasks runs."""
        self.ask("PUT", f"/connectors/{connector}/stop")

        def has_stopped():
            status = self.ask("GET", f"/connectors/{connector}/status")
            return (
                self.is_well()
                and status
                and status["connector"]["state"] == "STOPPED"
                and not status["tasks"]
            )

        until(has_stopped, self.log_tail, patience_s=120)

    def offsets(self, connector):
        """[(partition, offset)] of the connector's source, as Connect has stored them."""
        found = until(lambda: self.ask("GET", f"/connectors/{connector}/offsets"), self.log_tail)
        return [(row["partition"], row["offset"]) for row in found["offsets"]]

    def stop(self):
        """Stop the worker in order."""
        self._process.terminate()
        assert self._process.wait(120) is not None

    def kill(self):
        """Kill it with -9; fine if it has ended."""
        self._process.kill()
        self._process.wait()
