"""Positions of readers after `stablelog restore` has made the directory of the broker from its store, and at another cluster."""

import json

import pytest

import stablelog
from stablelog.env.objects.opening import open_store
from stablelog.errors import DataLossError, UsageError
from stablelog.tier.prefix import Prefix
from tests.client.faces import FACES, connected
from tests.client.transactions import create
from tests.commands import run
from tests.waiting import until

TIERED = {"remote.storage.enable": "true", "segment.bytes": "1500", "stablelog.order": "commit"}
OFTEN = {"remote_log_manager_task_interval_ms": 50, "stablelog_remote_coordinator_copy_interval_ms": 100}
TOPICS = ("restored-orders", "restored-stock")
pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("restored positions")]  # one restore for all
by = pytest.mark.parametrize("cut", [True, False], ids=["cut", "partitions"])


def rows(transactions):
    return [(*record[:3], record.value) for one in transactions for record in one.records]


def write(client, first, count):
    """Transactions over both topics."""
    for number in range(first, first + count):
        with client.transaction() as txn:
            for topic in TOPICS:
                txn.write(topic, value=b"%d" % number * 40, partition=0)


def positions(client, cut):
    """What a program has got after each transaction: [(rows, text of the position)]."""
    reader, got, found = client.read(TOPICS, cut=cut, wait=0), [], []
    found.append(([], str(reader.position)))
    for one in reader:
        got = got + rows([one])
        found.append((got, str(reader.position)))
    return found


def rest(client, cut, text):
    return rows(client.read(TOPICS, cut=cut, after=text, wait=0))


class Restored:
    """A broker that was restored from its store, and that has new transactions at the offsets of those that are lost."""

    def __init__(self, directory, serve):
        self.url = f"file://{directory}/store"
        with serve(directory / "old", self.url) as broker, connected(FACES[0], broker.bootstrap) as client:
            for topic in TOPICS:
                client.client.admin.topics.create(topic, partitions=1, configs=TIERED)
            write(client, 0, 40)
            until(
                lambda: all(self.is_copied(broker, topic) for topic in TOPICS), "the segments are not copied"
            )
            self.positions = {cut: positions(client, cut) for cut in (True, False)}
            broker.kill()
        done = run("restore", self.url, "--data", str(directory / "new"), "--json")
        assert done.returncode == 0, done.stderr
        self.report = json.loads(done.stdout)
        self.lost_from = {one["topic"]: one["lost_from"] for one in self.report["ranges"]}
        assert set(TOPICS) <= self.lost_from.keys(), self.report

    def is_copied(self, broker, topic):
        prefix = Prefix(open_store(self.url))
        for partition in prefix.partitions(topic):
            sealed = max(int(path.stem) for path in (broker.data / f"{topic}-0").glob("*.log"))
            manifest = prefix.last_manifest(partition)
            return sealed > 0 and manifest is not None and manifest.end_offset == sealed
        return False

    def is_found(self, got):
        """Whether the restore has found all records that a program has got."""
        return all(offset < self.lost_from[topic] for topic, _, offset, _ in got)


@pytest.fixture(scope="module")
def serve():
    def serve(data, url):
        return stablelog.serve(data, stablelog_remote_url=url, **OFTEN)

    return serve


@pytest.fixture(scope="module")
def restored(module_path, serve):
    found = Restored(module_path, serve)
    with serve(module_path / "new", found.url) as broker:
        with connected(FACES[0], broker.bootstrap) as client:
            found.kept = {cut: positions(client, cut)[-1][0] for cut in (True, False)}
            write(client, 1000, 60)
            found.now = {cut: positions(client, cut)[-1][0] for cut in (True, False)}
        found.broker = broker
        yield found


@by
def test_a_position_before_the_end_of_the_copy_goes_on_there(restored, face, cut):
    with connected(face, restored.broker.bootstrap) as client:
        kept = [(got, text) for got, text in restored.positions[cut] if restored.is_found(got)]
        assert 2 < len(kept) < len(restored.positions[cut])
        for got, text in [*kept[::9], kept[-1]]:
            assert sorted(got + rest(client, cut, text)) == sorted(restored.now[cut])


@by
def test_a_position_after_records_that_are_lost_is_refused_by_name(restored, face, cut):
    """Also where new records have taken the log beyond it."""
    with connected(face, restored.broker.bootstrap) as client:
        lost = [text for got, text in restored.positions[cut] if not restored.is_found(got)]
        assert lost
        for text in [lost[0], *lost[1::9]]:
            with pytest.raises(DataLossError, match="was restored from a copy that ends at offset"):
                rest(client, cut, text)


@by
def test_a_position_of_another_cluster_is_refused_by_name(restored, stablelog_broker, face, cut):
    with connected(face, stablelog_broker.bootstrap) as client:
        for _, text in restored.positions[cut][1:3]:
            with pytest.raises(UsageError, match="the position is of the cluster"):
                rest(client, cut, text)
        for topic in TOPICS:
            create(stablelog_broker.bootstrap, name=topic)
        try:
            for _, text in restored.positions[cut][1:3]:
                with pytest.raises(UsageError, match="the position is of the cluster"):
                    rest(client, cut, text)
        finally:
            with stablelog.connect(stablelog_broker.bootstrap) as admin:
                for topic in TOPICS:
                    admin.admin.topics.delete(topic)
