"""What the client sees is what the broker has, through a restart too, and every failure is a sentence."""

import pickle
import random
import re
import socket
import threading

import pytest

import stablelog
from stablelog.batch.records import decode_records
from stablelog.client.blocking.cluster import EARLIEST, LATEST, BlockingCluster
from stablelog.client.blocking.connection import SocketConnection
from stablelog.client.responses import UnknownTopicOrPartitionError
from stablelog.errors import OffsetOutOfRangeError, RefusedError, UnavailableError, UsageError
from tests.client.transactions import SILENCE_S
from tests.clients.drivers import Confluent, unique
from tests.spark.reading import settled


@pytest.fixture
def cluster(stablelog_broker):
    with BlockingCluster(f"127.0.0.1:1,{stablelog_broker.bootstrap}", timeout_s=SILENCE_S) as cluster:
        yield cluster


@pytest.mark.extended
def test_one_address_that_answers_is_enough(cluster, stablelog_broker):
    topic = unique("client")
    Confluent(stablelog_broker.bootstrap).produce(topic, [b"a"])
    found = cluster.metadata([topic])[topic]
    assert found.name == topic
    assert 0 in found.partitions
    assert cluster.metadata()[topic] == found
    assert list(cluster.metadata(re.compile(re.escape(topic)))) == [topic]
    assert cluster.metadata(re.compile(re.escape(topic[:-1]))) == {}


@pytest.mark.extended
def test_offsets_and_raw_batches(cluster, stablelog_broker):
    topic = unique("client")
    client = Confluent(stablelog_broker.bootstrap)
    with client.transactions(unique("t")) as run:
        run(topic, [b"a", b"b"], commit=True)
        run(topic, [b"c"], commit=False)
        run(topic, [b"d"], commit=True)
    settled(stablelog_broker.bootstrap, topic)
    target = (topic, 0)
    assert cluster.list_offsets({target: EARLIEST})[target].offset == 0
    end = cluster.list_offsets({target: LATEST})[target].offset
    fetched = cluster.fetch(topic, 0, 0)
    assert fetched.last_stable_offset == fetched.high_watermark == end
    assert fetched.start_offset == 0
    assert [record.value for record in decode_records(fetched.records)] == [b"a", b"b"]
    assert [first for _, first in fetched.aborted] == [3]
    assert cluster.fetch(topic, 0, 0, isolation="read_uncommitted").aborted == []
    assert len(cluster.fetch(topic, 0, end, wait_ms=1).records) == 0
    with pytest.raises(OffsetOutOfRangeError, match=f"{topic}-0 has no offset 99"):
        cluster.fetch(topic, 0, 99)
    far = 4_000_000_000_000
    assert cluster.list_offsets({target: far})[target].offset == -1


@pytest.mark.parametrize("version", [4, 5, 7, 9, 11, 12])
def test_every_version_of_fetch_reads_the_same(cluster, stablelog_broker, version, monkeypatch):
    topic = unique("client")
    with Confluent(stablelog_broker.bootstrap).transactions(unique("t")) as run:
        run(topic, [b"a"], commit=False)
        run(topic, [b"b"], commit=True)
    settled(stablelog_broker.bootstrap, topic)
    wanted = cluster.fetch(topic, 0, 0)
    monkeypatch.setattr(
        SocketConnection, "newest_version", lambda self, key, newest=None: version if key == 1 else 7
    )
    got = cluster.fetch(topic, 0, 0)
    assert bytes(got.records) == bytes(wanted.records)
    assert got.aborted == wanted.aborted
    assert got.last_stable_offset == wanted.last_stable_offset


@pytest.mark.extended
def test_a_broker_that_knows_only_the_first_version_of_each_api_is_understood(
    cluster, stablelog_broker, monkeypatch
):
    topic = unique("client")
    Confluent(stablelog_broker.bootstrap).produce(topic, [b"a"])

    def asked():
        target = (topic, 0)
        return (
            cluster.coordinator("id").address,
            cluster.metadata([topic])[topic].partitions[0].leader_id,
            cluster.metadata()[topic].partitions[0].leader_id,
            cluster.log_directories([target]),
            cluster.list_offsets({target: EARLIEST})[target].offset,
            cluster.list_offsets({target: LATEST})[target].offset,
        )

    wanted = asked()
    cluster.close()
    cluster.forget_metadata()
    versions = SocketConnection.versions.fget
    first = property(lambda self: {key: (first, first) for key, (first, _) in versions(self).items()})
    monkeypatch.setattr(SocketConnection, "versions", first)
    assert asked() == wanted


def test_what_is_not_there_is_named_at_once(cluster):
    with pytest.raises(RefusedError, match="there is no topic 'nowhere'"):
        cluster.metadata(["nowhere"])
    with pytest.raises(RefusedError, match="there is no topic 'nowhere'"):
        cluster.fetch("nowhere", 0, 0)


@pytest.mark.extended
def test_a_partition_that_is_not_there_is_named(cluster, stablelog_broker):
    topic = unique("client")
    Confluent(stablelog_broker.bootstrap).produce(topic, [b"a"])
    with pytest.raises(RefusedError, match=f"topic '{topic}' has no partition 99"):
        cluster.list_offsets({(topic, 99): LATEST})


@pytest.mark.extended
def test_it_pickles_as_its_arguments(cluster, stablelog_broker):
    topic = unique("client")
    Confluent(stablelog_broker.bootstrap).produce(topic, [b"a"])
    found = cluster.metadata([topic])
    again = pickle.loads(pickle.dumps(cluster))
    with again:
        assert again.bootstrap == cluster.bootstrap
        assert again.metadata([topic]) == found


@pytest.mark.parametrize("bootstrap", ["http://127.0.0.1:1", "", " , ", "nowhere", "host:port", "a b:1"])
def test_an_address_that_is_none_is_refused(bootstrap):
    with pytest.raises(UsageError, match="host:port"):
        BlockingCluster(bootstrap)


def test_nobody_there_is_said_after_the_deadline():
    with (
        BlockingCluster("127.0.0.1:1", deadline_s=0.1) as nobody,
        pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"),
    ):
        nobody.metadata()


@pytest.mark.extended
def test_a_broker_that_comes_back_is_found_again():
    with stablelog.serve() as broker, BlockingCluster(broker.bootstrap, deadline_s=60) as cluster:
        Confluent(broker.bootstrap).produce("again", [b"a"])
        before = bytes(cluster.fetch("again", 0, 0).records)
        broker.kill()
        starting = threading.Thread(target=broker.start)
        starting.start()
        assert bytes(cluster.fetch("again", 0, 0).records) == before
        starting.join()


def test_a_connection_that_was_closed_is_opened_anew(cluster):
    cluster.metadata()
    cluster.any_connection().close()
    assert cluster.any_connection().versions


def test_an_answer_that_is_cut_off_is_no_answer():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            accepted, _ = server.accept()
            accepted.recv(4096)
            accepted.sendall(b"\0\0\0\x20" + b"\0\0")
            accepted.close()

        serving = threading.Thread(target=serve)
        serving.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with (
            SocketConnection(address) as connection,
            pytest.raises(UnavailableError, match="did not respond"),
        ):
            assert connection.versions
        serving.join()


def test_a_topic_that_is_to_be_written_and_is_missing_is_named_with_the_command_that_makes_it(cluster):
    for _ in range(2):  # the first request has not made it either
        with pytest.raises(UnknownTopicOrPartitionError, match="`stablelog topics create absent` creates it"):
            cluster.partition_counts(["absent"])
    assert "absent" not in cluster.metadata()


def test_a_lent_connection_is_lent_again_unless_it_broke_or_waits(cluster, stablelog_broker):
    address = stablelog_broker.bootstrap
    first = cluster.lend_connection(address)
    assert first.versions
    cluster.return_connection(first)
    assert cluster.lend_connection(address) is first
    first.send(18, 0, [b""], flexible=False)
    cluster.return_connection(first)
    assert first.is_closed
    second = cluster.lend_connection(address)
    assert second is not first
    second.close()
    cluster.return_connection(second)
    assert cluster.lend_connection(address) is not second


@pytest.mark.parametrize("step", ["sendmsg", "recv"])
def test_a_connection_that_was_interrupted_in_the_middle_is_not_lent_again(
    cluster, stablelog_broker, step, monkeypatch
):
    """Half a request may be sent, or half an answer read."""

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(socket.socket, step, interrupted)
        connection = cluster.lend_connection(stablelog_broker.bootstrap)
        with pytest.raises(KeyboardInterrupt):
            assert connection.versions
    assert connection.is_closed
    cluster.return_connection(connection)
    assert cluster.lend_connection(stablelog_broker.bootstrap).versions


@pytest.mark.parametrize("sizes", [[1, 4, 4091], [4095, 4096, 4097, 10_000], [3] * 4000])
def test_what_arrives_together_is_received_in_the_pieces_that_are_asked_for(sizes):
    """Whatever lies before and behind the bytes that one system call receives."""
    sent = random.Random(1).randbytes(sum(sizes))
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        SocketConnection(f"127.0.0.1:{server.getsockname()[1]}", timeout_s=60) as connection,
    ):
        peer, _ = server.accept()
        writing = threading.Thread(target=lambda: (peer.sendall(sent), peer.close()))
        writing.start()
        assert b"".join(connection.receive_exactly(size) for size in sizes) == sent
        with pytest.raises(OSError, match="closed the connection"):
            connection.receive_exactly(1)
        writing.join(60)
