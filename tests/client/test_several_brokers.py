"""What the client asks which of several brokers, over brokers that answer from a script."""

from types import SimpleNamespace

from kio.schema.errors import ErrorCode

from stablelog.client.core.admin.transactions import list_transactions
from stablelog.client.core.cluster import Cluster
from stablelog.client.core.coordinators import GROUP_COORDINATOR, TRANSACTION_COORDINATOR
from stablelog.client.core.steps import Now, Open

NODES = {1: "one", 2: "two", 3: "three"}  # by id, the host; the port is always the same
PORT = 9092


class Brokers:
    """Three brokers, and the shell of a client that runs steps.

    Attributes:
        asked: the host and the request of each request, in order.
    """

    def __init__(self):
        self.asked = []

    def run(self, steps):
        answer = None
        while True:
            try:
                effect = steps.send(answer)
            except StopIteration as end:
                return end.value
            if isinstance(effect, Open):
                answer = Link(effect.address.partition(":")[0], self)
            else:
                assert isinstance(effect, Now), effect
                answer = 0.0

    def requests(self, name):
        """The requests of one kind, with the hosts that they went to."""
        return [(host, request) for host, request in self.asked if type(request).__name__ == f"{name}Request"]

    def answer(self, host, request):
        none, name = ErrorCode.none, type(request).__name__
        if name == "MetadataRequest":
            brokers = [SimpleNamespace(node_id=node, host=at, port=PORT) for node, at in NODES.items()]
            return SimpleNamespace(error_code=none, cluster_id="c", brokers=brokers, topics=())
        if name == "FindCoordinatorRequest":
            found = [
                SimpleNamespace(
                    key=key,
                    node_id=1 + number % 3,
                    host=NODES[1 + number % 3],
                    port=PORT,
                    error_code=none,
                    error_message=None,
                )
                for number, key in enumerate(request.coordinator_keys)
            ]
            return SimpleNamespace(coordinators=found)
        assert name == "ListTransactionsRequest", name
        state = SimpleNamespace(transactional_id=f"of-{host}", producer_id=1, transaction_state="Ongoing")
        return SimpleNamespace(error_code=none, unknown_state_filters=(), transaction_states=(state,))


class Link:
    """A connection to one of the brokers."""

    is_closed = False

    def __init__(self, host, brokers):
        self.host, self.address = host, f"{host}:{PORT}"
        self._brokers = brokers

    def negotiate(self):
        return
        yield

    def speaks(self, *_arguments):
        return True

    def ask_steps(self, request):
        self._brokers.asked.append((self.host, request))
        return self._brokers.answer(self.host, request)
        yield


def test_the_coordinators_of_several_keys_are_asked_for_in_one_request_and_once():
    brokers, cluster = Brokers(), Cluster(f"one:{PORT}")
    found = brokers.run(cluster.coordinator_ids(["a", "b", "c", "a"], GROUP_COORDINATOR))
    assert found == {"a": 1, "b": 2, "c": 3}
    assert brokers.run(cluster.coordinator_ids(["c", "d"], GROUP_COORDINATOR)) == {"c": 3, "d": 1}
    brokers.run(cluster.coordinator_ids(["a", "d"], GROUP_COORDINATOR))
    keys = [request.coordinator_keys for _, request in brokers.requests("FindCoordinator")]
    assert keys == [("a", "b", "c"), ("d",)]


def test_the_coordinator_of_a_transactional_id_is_asked_for_once():
    """Not before each request, if there are several brokers."""
    brokers, cluster = Brokers(), Cluster(f"one:{PORT}")
    brokers.run(cluster.metadata(()))
    for _ in range(3):
        attempt = cluster.retrying("working", lambda: cluster.coordinator("x", TRANSACTION_COORDINATOR))
        assert brokers.run(attempt).host == "one"
    assert len(brokers.requests("FindCoordinator")) == 1
    cluster.forget_metadata()  # as after an error
    brokers.run(cluster.coordinator("x", TRANSACTION_COORDINATOR))
    assert len(brokers.requests("FindCoordinator")) == 2


def test_every_broker_is_asked_for_its_transactions():
    brokers = Brokers()
    found = brokers.run(list_transactions(Cluster(f"one:{PORT}")))
    assert [one.transactional_id for one in found] == ["of-one", "of-three", "of-two"]
    assert [host for host, _ in brokers.requests("ListTransactions")] == ["one", "two", "three"]
