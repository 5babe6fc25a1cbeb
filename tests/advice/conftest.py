"""What rows share: directories of stopped brokers, and a broker with an object store."""

import base64
import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

import stablelog
from tests import secured as secured_brokers
from tests.advice.store_rows import Kafkas
from tests.cli.test_repair import committed, rolled, stopped
from tests.cli.test_unreadable import fill
from tests.client.transactions import create
from tests.spark.objects.stored import Stored, serving
from tests.spark.objects.test_kafka_tiers import histories
from tests.spark.reading import make

__all__ = ["committed", "histories", "rolled", "stopped"]


@pytest.fixture(scope="module")
def tiers(module_path):
    """A broker whose store has the topics `plain` and `ordered`, which is in commit order."""
    with serving(module_path / "tiers") as broker:
        found = Stored(broker, f"file://{module_path}/tiers/store")
        found.write("plain", 11)
        found.write("ordered", 12, **{"stablelog.order": "commit"})
        yield found


@pytest.fixture(scope="module")
def secured(module_path):
    """A broker with a listener of each security protocol."""
    folder = module_path / "secured"
    folder.mkdir()
    with secured_brokers.secured(folder) as server:
        create(server.at["PLAINTEXT"], name="orders")
        yield server


@pytest.fixture(scope="module")
def secured_by_tls_12(module_path):
    """As `secured`; with TLS 1.2 the broker does not say what is wrong with a client's certificate."""
    folder = module_path / "tls12"
    folder.mkdir()
    with secured_brokers.secured(folder, **{"ssl.enabled.protocols": "TLSv1.2"}) as server:
        create(server.at["PLAINTEXT"], name="orders")
        yield server


@dataclass
class Unreadable:
    """A broker whose topic `half` has a whole and an offline partition, until `mend` starts it with all of its files.

    Attributes:
        broker: the broker.
        kept: where the directory of the offline partition is.
    """

    broker: object
    kept: Path

    def mend(self):
        self.broker.stop()
        shutil.rmtree(self.broker.data / "half-1", ignore_errors=True)
        shutil.copytree(self.kept, self.broker.data / "half-1")
        self.broker.start()


@pytest.fixture(scope="module")
def unreadable(module_path):
    data = module_path / "unreadable"
    with stablelog.serve(data) as broker:
        make(broker.bootstrap, "half", 2)
        for index in range(2):
            fill(broker.bootstrap, "half", index)
        broker.stop()
        shutil.move(data / "half-1", module_path / "half-1")
        broker.start()
        yield Unreadable(broker, module_path / "half-1")


@pytest.fixture(scope="module")
def kafkas(histories, module_path):
    """A broker with what Kafka's plugins have tiered of the topic `plain`."""
    data = module_path / "kafkas"
    shutil.copytree(module_path / "data", data)
    identity = re.search("topic_id: (.*)", (data / "plain-0" / "partition.metadata").read_text())[1]
    padding = "=" * (-len(identity) % 4)
    topic_id = uuid.UUID(bytes=base64.urlsafe_b64decode(identity + padding))
    with stablelog.serve(data) as broker:
        yield Kafkas(histories["plain"], broker, topic_id)
