"""Brokers that answer from a script, and a shell that runs steps of the client over them, in a time of its own."""

import io
import sys
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from stablelog.client.core.cluster import Cluster
from stablelog.client.core.steps import Emit, Open
from stablelog.errors import UnavailableError
from stablelog.wire.message_classes import message_class
from tests.client.stepping import ScriptedTime, run_steps

NODES = {1: "one", 2: "two", 3: "three"}  # by id, the host; the port is always the same
PORT = 9092
NONE, NO_TIME = ErrorCode.none, timedelta(0)


def reply(request, /, **fields):
    """The response to a request, in the request's version."""
    response = message_class(request.__api_key__, request.__version__, "response")
    if "throttle_time" in response.__dataclass_fields__:
        fields.setdefault("throttle_time", NO_TIME)
    return response(**fields)


def part(request, name, /, **fields):
    """A structure of the response to a request, by the name that the kio library gives to its class."""
    response = message_class(request.__api_key__, request.__version__, "response")
    return getattr(sys.modules[response.__module__], name)(**fields)


class Brokers(ScriptedTime):
    """Brokers, and the shell of a client that runs steps.

    Args:
        answers: by the name of a request, such as "CreateTopics": a function of the request that returns the response, or
            an error that is raised; or a list of these, one for each request, of which the last one stays.
        topics: the number of partitions of each topic. The brokers lead the partitions in turn.
        last_versions: the last version that the brokers support of some APIs; -1 for none.

    Attributes:
        asked: the host and the request of each request, in order.
        given: the items that the steps gave.
        away: the hosts to which no connection can be made.
    """

    def __init__(self, answers=None, topics=None, last_versions=None):
        self.answers, self.topics, self.last_versions = answers or {}, topics or {}, last_versions or {}
        super().__init__()
        self.asked, self.given, self.away = [], [], set()

    def cluster(self, **settings):
        return Cluster(f"one:{PORT}", **{"deadline_s": 5, **settings})

    def run(self, steps):
        return run_steps(steps, self.perform)

    def perform(self, effect):
        match effect:
            case Open(address):
                host = address.partition(":")[0]
                if host in self.away:
                    raise UnavailableError(f"{address} is away")
                return Link(host, self)
            case Emit(item):
                return self.given.append(item)
        return super().perform(effect)

    def requests(self, name):
        """The requests of one kind, with the hosts that they went to."""
        return [(host, request) for host, request in self.asked if kind_of(request) == name]

    def request(self, name):
        """The only request of one kind."""
        ((_, request),) = self.requests(name)
        return request

    def answer(self, host, request):
        self.asked.append((host, request))
        assert len(self.asked) < 1000, "the client asks without end"
        entity_writer(type(request))(io.BytesIO(), request)  # it can be sent
        given = self.answers.get(kind_of(request)) or getattr(self, f"_{kind_of(request).lower()}")
        if isinstance(given, list):
            given = given.pop(0) if len(given) > 1 else given[0]
        if isinstance(given, Exception):
            raise given
        return given(request)

    def _metadata(self, request):
        def topic(name):
            partitions = tuple(
                part(
                    request,
                    "MetadataResponsePartition",
                    error_code=NONE,
                    partition_index=index,
                    leader_id=1 + index % len(NODES),
                )
                for index in range(self.topics.get(name, 0))
            )
            code = NONE if name in self.topics else ErrorCode.unknown_topic_or_partition
            return part(
                request,
                "MetadataResponseTopic",
                error_code=code,
                name=name,
                topic_id=None,
                partitions=partitions,
                is_internal=name.startswith("__"),
            )

        names = self.topics if request.topics is None else [one.name for one in request.topics]
        brokers = tuple(
            part(request, "MetadataResponseBroker", node_id=node_id, host=host, port=PORT)
            for node_id, host in NODES.items()
        )
        return reply(
            request, error_code=NONE, cluster_id="c", brokers=brokers, topics=tuple(map(topic, names))
        )

    def _findcoordinator(self, request):
        return reply(
            request,
            coordinators=tuple(
                part(
                    request,
                    "Coordinator",
                    key=key,
                    node_id=1 + number % 3,
                    host=NODES[1 + number % 3],
                    port=PORT,
                    error_code=NONE,
                    error_message=None,
                )
                for number, key in enumerate(request.coordinator_keys)
            ),
        )


def kind_of(request):
    return type(request).__name__.removesuffix("Request")


class Link:
    """A connection to one of the brokers."""

    is_closed = is_awaiting = False
    client_id = "scripted"

    def __init__(self, host, brokers):
        self.features = {"transaction.version": 2}
        self.host, self.address = host, f"{host}:{PORT}"
        self._brokers = brokers

    def negotiate(self):
        return
        yield

    def close(self):
        self.is_closed = True

    def supports_api(self, api_key, version=0):
        return self._brokers.last_versions.get(api_key, version) >= version

    def newest_version(self, api_key, newest):
        return min(newest, self._brokers.last_versions.get(api_key, newest))

    def request_steps(self, request):
        return self._brokers.answer(self.host, request)
        yield

    def request_unchanged_steps(self, request, _response_class=None):
        return self._brokers.answer(self.host, request)
        yield

    def request_all_steps(self, requests):
        return [self._brokers.answer(self.host, request) for request in requests]
        yield
