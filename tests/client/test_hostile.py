"""A broker that is broken, or means harm: whatever it answers, the client says so in a sentence, and soon."""

import socket
import struct
import threading
from contextlib import contextmanager, suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import stablelog
from stablelog.batch.records import Record, encode_batch
from stablelog.client.blocking.cluster import LATEST, BlockingCluster
from stablelog.client.blocking.commits import describe_commits
from stablelog.client.blocking.connection import SocketConnection
from stablelog.client.blocking.cuts import describe_cut
from stablelog.client.blocking.producer import BlockingProducer
from stablelog.errors import StablelogError, UnavailableError
from stablelog.wire.api import ApiKey
from stablelog.wire.fetch import read_fetch_response
from stablelog.wire.messages import message_class
from tests.client.faults import LENGTH, Proxy, frame
from tests.client.transactions import SILENCE_S, create
from tests.declared_apis import APIS
from tests.scale import examples

FETCH, METADATA, API_VERSIONS_KEY = 1, 3, 18


@contextmanager
def answering(answer):
    """The address of a broker that answers each request by what `answer(request)` says; None to hang up."""

    def serve(accepted):
        with accepted:
            try:
                while (reply := answer(frame(accepted))) is not None:
                    accepted.sendall(reply)
            except OSError:
                pass

    def accept():
        while True:
            try:
                accepted, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(accepted,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def framed(request, body):
    """An answer to this request."""
    content = request[8:12] + body  # the correlation id
    return LENGTH.pack(len(content)) + content


@pytest.mark.parametrize("size", [-1, 0, 3, (1 << 30) + 1, 2**31 - 1])
def test_an_answer_of_an_impossible_size_is_not_waited_for(size):
    with (
        answering(lambda _request: LENGTH.pack(size) + bytes(64)) as address,
        SocketConnection(address, timeout_s=SILENCE_S) as connection,
        pytest.raises(
            UnavailableError,
            match=f"did not respond to api_versions: the broker announced a response of {size} bytes",
        ),
    ):
        assert connection.versions


def test_a_claim_of_more_than_was_sent_takes_no_memory():
    """kio's reader sets aside what a count claims: 16 GiB here, which ends the process."""
    claim = struct.pack(">hi", 0, 2**31 - 1) + bytes(100)
    with (
        answering(lambda request: framed(request, claim)) as address,
        SocketConnection(address, timeout_s=SILENCE_S) as connection,
        pytest.raises(
            UnavailableError,
            match="sent an invalid response to api_versions: a list announces 2147483647 items",
        ),
    ):
        connection.request_unchanged(message_class(API_VERSIONS_KEY, 0, "request")())


def test_an_api_without_a_name_is_named_by_its_number():
    with (
        answering(lambda request: framed(request, b"")) as address,
        SocketConnection(address, timeout_s=SILENCE_S) as connection,
        pytest.raises(UnavailableError, match="sent an invalid response to API 4: too short"),
        connection.closing_on_decode_error(4),
    ):
        raise ValueError("too short")


@given(st.binary(max_size=200), st.integers(4, 12))
@example(b"", 12)
@example(bytes(200), 4)
def test_no_answer_to_a_fetch_does_more_than_stumble(body, version):
    with suppress(
        struct.error, ValueError, IndexError
    ):  # `SocketConnection.closing_on_decode_error` makes a sentence of these
        read_fetch_response(version, memoryview(body))


class Spoiling:
    """Spoils the answers of one API: some bytes, or the end."""

    def __init__(self):
        self.key, self.changes, self.left = None, {}, None

    def __call__(self, key, answer):
        if key != self.key:
            return answer
        body = bytearray(answer[8:])
        if self.left is not None:
            del body[int(self.left * len(body)) :]
        for place, byte in self.changes.items():
            if body:
                body[int(place * (len(body) - 1))] = byte
        return LENGTH.pack(4 + len(body)) + answer[4:8] + bytes(body)


@pytest.fixture(scope="module")
def spoiled(stablelog_broker):
    """A proxy before the broker, and a topic that has a transaction."""
    topic = create(stablelog_broker.bootstrap)
    with stablelog.connect(stablelog_broker.bootstrap) as client, client.transaction() as txn:
        for number in range(20):
            txn.write(topic, b"%d" % number, key=b"k")
    spoil = Spoiling()
    with Proxy((stablelog_broker.host, stablelog_broker.port), lambda *_: None, spoil) as proxy:
        yield proxy, spoil, topic


def converse(cluster, topic):
    """Everything that a client asks of a broker."""
    cluster.metadata()
    cluster.list_offsets({(topic, 0): LATEST})
    cluster.log_directories([(topic, 0)])
    describe_cut(cluster, [topic])
    describe_commits(cluster, topic, 0)
    cluster.fetch(topic, 0, 0, wait_ms=0)
    producer = BlockingProducer(cluster, "spoiled", deadline_s=0)
    try:
        producer.begin()
        producer.append(topic, 0, bytearray(encode_batch([Record(0, 0, None, b"v")])))
        producer.flush()
        producer.end(commit=False)
    finally:
        producer.close()


ASKED = [0, FETCH, 2, METADATA, API_VERSIONS_KEY, 22, 26, 35, 10_004, 10_005]


@pytest.mark.extended
@settings(max_examples=examples(150), deadline=None)
@given(
    st.sampled_from(ASKED),
    st.dictionaries(st.floats(0, 1), st.integers(0, 255), max_size=4),
    st.one_of(st.none(), st.floats(0, 1)),
)
def test_whatever_is_answered_only_our_own_errors_come_out(spoiled, key, changes, left):
    proxy, spoil, topic = spoiled
    spoil.key, spoil.changes, spoil.left = key, changes, left
    with BlockingCluster(proxy.bootstrap, deadline_s=0, timeout_s=5) as cluster:
        original = cluster.open_connection
        cluster.open_connection = lambda _address, probe=None: original(proxy.bootstrap, probe)
        with suppress(StablelogError):
            converse(cluster, topic)


def test_an_answer_about_something_else_is_no_answer(stablelog_broker):
    """What was asked for is missing in it."""
    topic = create(stablelog_broker.bootstrap)

    # throttle time, no brokers, no cluster id, a controller, no topics, an error code since version 13, no tags
    nothing = bytes(4) + b"\1\0" + bytes(4) + b"\1" + bytes(2 * (APIS[METADATA].last_version >= 13)) + b"\0"

    def emptied(key, answer):
        return framed(bytes(4) + answer[:8], b"\0" + nothing) if key == METADATA else answer

    with (
        Proxy((stablelog_broker.host, stablelog_broker.port), lambda *_: None, emptied) as proxy,
        BlockingCluster(proxy.bootstrap, deadline_s=0, timeout_s=SILENCE_S) as cluster,
        pytest.raises(UnavailableError, match=f"does not contain the requested topic '{topic}'"),
    ):
        cluster.metadata([topic])


@pytest.mark.parametrize(
    ("served", "message"),
    [
        ((0, 1), "supports PRODUCE only up to version 1, but this client only from version 3 on"),
        ((99, 100), "supports PRODUCE only from version 99 on, but this client only up to version 12"),
    ],
)
def test_versions_that_the_client_does_not_know_are_refused_by_name(
    stablelog_broker, monkeypatch, served, message
):
    with BlockingCluster(stablelog_broker.bootstrap) as cluster:
        connection = cluster.any_connection()
        monkeypatch.setattr(SocketConnection, "versions", {ApiKey.PRODUCE: served})
        with pytest.raises(UnavailableError) as refused:
            connection.newest_version(ApiKey.PRODUCE, 12)
    assert message.lower() in str(refused.value).lower()
