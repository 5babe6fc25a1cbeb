"""A broker in memory, and a shell that runs the client's steps over it: without a socket, a clock or a thread."""

import io
from collections import defaultdict, deque
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32, i64

from stablelog.batch.header import headers_in
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.client.core.connection import BrokerConnection
from stablelog.client.core.frames import SIZE
from stablelog.client.core.steps import Emit, Now, Open, Pause, Receive, Send
from stablelog.client.core.transaction_reader import TransactionReader
from stablelog.errors import UnavailableError
from stablelog.types import SecurityProtocol
from stablelog.wire.api import ApiKey
from stablelog.wire.extension.commits import DescribedCommit
from stablelog.wire.extension.cut import CutPartition, CutTopic
from stablelog.wire.fetch import FetchedPartition, FetchedTopic, decode_fetch_request, encode_fetch_response
from stablelog.wire.messages import CLIENT_ID_SIZE, PREFIX, message_class
from tests.client.stepping import run_steps

ADDRESS = "broker:9092"
TOPIC, PARTITIONS = "orders", 2
NO_TIME = timedelta(0)
ASKED_MAX = 50_000
SERVED = {
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.METADATA: 13,
    ApiKey.FIND_COORDINATOR: 4,
    ApiKey.API_VERSIONS: 3,
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.COMMIT_JOINT: 0,
    ApiKey.ABORT_JOINT: 0,
    ApiKey.DESCRIBE_COMMITS: 0,
    ApiKey.DESCRIBE_CUT: 0,
}


class ModelBroker:
    """Commit-ordered topics of one broker: the rules that matter to a client, in the plainest form.

    Args:
        leader_count: as many brokers lead the partitions in turn, with one mind between them.

    Attributes:
        visible: what readers see: the values of each partition by position.
        asked: the API keys of the requests, in order.
        unresolved: the commit sequences of commits whose markers are not all durable.
        throttle_ms: the throttle time of the responses. Fetch responses with one are empty.
        wait_until: called with a condition and seconds: waits in the time of the shell.
    """

    def __init__(self, leader_count=1):
        self.visible = {}
        self.asked = []
        self.unresolved = set()
        self.throttle_ms = 0
        self.wait_until = lambda _condition, _seconds: None
        self.addresses = [ADDRESS, *(f"broker{n}:9092" for n in range(1, leader_count))]
        self._last_sequence = 0
        self._batches = defaultdict(list)  # partition -> (end, batch), in commit order
        self._producers = {}  # transactional id -> [producer id, epoch, is open]
        self._written = defaultdict(dict)  # (producer id, epoch) -> {(partition, base sequence): values}
        self._joint = {}  # key -> (version, commit sequence, digest)
        self._commits = defaultdict(list)  # partition -> DescribedCommit
        self._ends = defaultdict(int)  # partition -> the next position

    def answer(self, frame):
        """The response to a request, both as frames without their size."""
        key, version, correlation_id = PREFIX.unpack_from(frame)
        (size,) = CLIENT_ID_SIZE.unpack_from(frame, PREFIX.size)
        self.asked.append(key)
        assert len(self.asked) < ASKED_MAX, "the client asks without end"
        request_class = message_class(key, version, "request")
        at = PREFIX.size + CLIENT_ID_SIZE.size + size + bool(request_class.__flexible__)
        if key == ApiKey.FETCH:
            topics = [] if self.throttle_ms else self.fetch(decode_fetch_request(version, frame, at))
            return b"".join(
                encode_fetch_response(
                    version, correlation_id, ErrorCode.none, 0, topics, throttle_ms=self.throttle_ms
                )
            )
        request = entity_reader(request_class)(frame, at)[0]
        messages = SimpleNamespace(response=message_class(key, version, "response"))
        response = getattr(self, ApiKey(key).snake_name)(request, messages.response)
        if hasattr(response, "throttle_time"):
            response = replace(response, throttle_time=timedelta(milliseconds=self.throttle_ms))
        body = io.BytesIO()
        entity_writer(messages.response)(body, response)
        tags = b"\0" if messages.response.__flexible__ and key != ApiKey.API_VERSIONS else b""
        return SIZE.pack(correlation_id) + tags + body.getvalue()

    def api_versions(self, _request, response):
        from kio.schema.api_versions.v3.response import ApiVersion, FinalizedFeatureKey

        served = tuple(
            ApiVersion(api_key=i16(key), min_version=i16(version), max_version=i16(version))
            for key, version in SERVED.items()
        )
        feature = FinalizedFeatureKey(
            name="transaction.version", max_version_level=i16(2), min_version_level=i16(2)
        )
        return response(
            error_code=ErrorCode.none, api_keys=served, throttle_time=NO_TIME, finalized_features=(feature,)
        )

    def sasl_handshake(self, _request, response):
        """The listener has no login."""
        return response(error_code=ErrorCode.illegal_sasl_state, mechanisms=())

    def metadata(self, request, response):
        from kio.schema.metadata.v13 import response as v13

        topics = tuple(
            v13.MetadataResponseTopic(
                error_code=ErrorCode.none,
                name=topic.name,
                topic_id=None,
                partitions=tuple(
                    v13.MetadataResponsePartition(
                        error_code=ErrorCode.none,
                        partition_index=i32(index),
                        leader_id=i32(index % len(self.addresses)),
                    )
                    for index in range(PARTITIONS)
                ),
            )
            for topic in request.topics or ()
        )
        named = [address.split(":") for address in self.addresses]
        return response(
            throttle_time=NO_TIME,
            brokers=tuple(
                v13.MetadataResponseBroker(node_id=i32(node_id), host=host, port=i32(int(port)))
                for node_id, (host, port) in enumerate(named)
            ),
            topics=topics,
            error_code=ErrorCode.none,
        )

    def find_coordinator(self, request, response):
        from kio.schema.find_coordinator.v4.response import Coordinator

        host, _, port = ADDRESS.partition(":")
        return response(
            throttle_time=NO_TIME,
            coordinators=tuple(
                Coordinator(
                    key=key,
                    node_id=i32(0),
                    host=host,
                    port=i32(int(port)),
                    error_code=ErrorCode.none,
                    error_message=None,
                )
                for key in request.coordinator_keys
            ),
        )

    def init_producer_id(self, request, response):
        known = self._producers.setdefault(request.transactional_id, [len(self._producers), -1, False])
        self._written.pop(tuple(known[:2]), None)
        known[1:] = [known[1] + 1, False]
        return response(
            throttle_time=NO_TIME,
            error_code=ErrorCode.none,
            producer_id=i64(known[0]),
            producer_epoch=i16(known[1]),
        )

    def produce(self, request, response):
        from kio.schema.produce.v12 import response as v12

        def result(index, code):
            return v12.PartitionProduceResponse(
                index=index,
                error_code=code,
                base_offset=i64(7 if code is ErrorCode.none else -1),
                record_errors=(),
            )

        return response(
            responses=tuple(
                v12.TopicProduceResponse(
                    name=topic.name,
                    partition_responses=tuple(
                        result(one.index, self._append(request.transactional_id, one.index, one.records))
                        for one in topic.partition_data
                    ),
                )
                for topic in request.topic_data
            )
        )

    def _append(self, transactional_id, partition, records):
        ((_, header),) = headers_in(memoryview(records))
        producer = self._producers[transactional_id]
        who = (header.producer_id, header.producer_epoch)
        if who != tuple(producer[:2]) or (not producer[2] and who in self._written):
            return ErrorCode.invalid_producer_epoch
        batches = self._written[who]
        end = sum(len(values) for (index, _), values in batches.items() if index == partition)
        if (partition, header.base_sequence) in batches:
            return ErrorCode.none
        if header.base_sequence != end:
            return ErrorCode.out_of_order_sequence_number
        values = [record.value for record in decode_records(memoryview(records), 0)]
        batches[partition, header.base_sequence] = values
        producer[2] = True
        return ErrorCode.none

    def open_transaction(self, transactional_id):
        """Open the transaction of a producer, as its first batch or offset does."""
        self._producers[transactional_id][2] = True

    def commit_joint(self, request, response):
        version, sequence, digest = self._joint.get(request.key, (-1, -1, None))
        if version >= request.version:
            known = (sequence, digest) if version == request.version else (-1, None)
            return response(
                error_code=ErrorCode.none, commit_sequence=i64(known[0]), already=True, digest=known[1]
            )
        ((child, producer_id, epoch),) = [
            (one.transactional_id, one.producer_id, one.producer_epoch) for one in request.children
        ]
        if self._producers[child] != [producer_id, epoch, True]:
            return response(error_code=ErrorCode.invalid_txn_state, error_message="the child is not open")
        self._producers[child][2] = False
        sequence = self._show(self._written[producer_id, epoch])
        self._joint[request.key] = (request.version, sequence, request.digest)
        return response(error_code=ErrorCode.none, commit_sequence=i64(sequence), digest=request.digest)

    def _show(self, batches):
        found = defaultdict(list)
        for (partition, _), values in sorted(batches.items(), key=lambda item: item[0]):
            found[partition] += values
        return self.commit(found)

    def commit(self, values, *, resolved=True, is_child=False):
        """A transaction of another writer: the values by partition. Returns its commit sequence, which is that of the
        transaction before it if it is another child of the same joint commit.
        """
        self._last_sequence = sequence = self._last_sequence + (not is_child)
        if not resolved:
            self.unresolved.add(sequence)
        for partition in sorted(values):
            start, end = self.write_outside(partition, values[partition])
            self._commits[partition].append(
                DescribedCommit(
                    start_offset=i64(start),
                    end_offset=i64(end),
                    commit_sequence=i64(sequence),
                    time_ms=i64(0),
                )
            )
            self.visible |= {
                (TOPIC, partition, start + n): value for n, value in enumerate(values[partition])
            }
        return sequence

    def write_outside(self, partition, values):
        """Records outside transactions. Returns their positions, from and to before."""
        start = self._ends[partition]
        self._ends[partition] = end = start + len(values)
        records = [Record(0, 0, None, value, ()) for value in values]
        self._batches[partition].append((end, encode_batch(records, base_offset=start)))
        return start, end

    def change(self, partition, number, change):
        """Change the bytes of the batch with this number."""
        end, batch = self._batches[partition][number]
        self._batches[partition][number] = (end, change(batch))

    def abort_joint(self, request, response):
        if self._joint.get(request.key, (-1,))[0] >= request.version:
            return response(error_code=ErrorCode.none, committed=True)
        for child in request.children:
            known = self._producers[child.transactional_id]
            if known[:2] == [child.producer_id, child.producer_epoch]:
                known[1:] = [known[1] + 1, False]  # nothing more comes from it
        return response(error_code=ErrorCode.none)

    def describe_commits(self, request, response):
        def found():
            return [
                one
                for one in self._commits[request.partition_index]
                if one.commit_sequence >= request.commit_sequence and one.end_offset > request.offset
            ]

        self.wait_until(found, request.max_wait_ms / 1000)
        return response(
            error_code=ErrorCode.none,
            log_start_offset=i64(0),
            end_offset=i64(self._ends[request.partition_index]),
            commits=tuple(found()[: request.count_max]),
        )

    def describe_cut(self, request, response):
        resolved = min(self.unresolved, default=self._last_sequence + 1) - 1

        def offset(partition):
            later = [one for one in self._commits[partition] if one.commit_sequence > resolved]
            return later[0].start_offset if later else i64(self._ends[partition])

        partitions = tuple(
            CutPartition(partition_index=i32(index), offset=offset(index)) for index in range(PARTITIONS)
        )
        return response(
            error_code=ErrorCode.none,
            commit_sequence=i64(resolved),
            last_commit_sequence=i64(self._last_sequence),
            topics=tuple(CutTopic(name=name, partitions=partitions) for name in request.topics),
        )

    def fetch(self, request):
        def found():
            return [
                FetchedTopic(topic.name, None, [self.fetched(one) for one in topic.partitions])
                for topic in request.topics
            ]

        def is_enough():
            return any(one.size >= request.size_min for topic in found() for one in topic.partitions)

        self.wait_until(is_enough, request.wait_ms_max / 1000)
        return found()

    def fetched(self, wanted):
        """What a response to a fetch has of one partition."""
        end = self._ends[wanted.partition]
        batches = [batch for until, batch in self._batches[wanted.partition] if until > wanted.fetch_offset]
        return FetchedPartition(
            wanted.partition,
            high_watermark=end,
            last_stable_offset=end,
            log_start_offset=0,
            aborted=(),
            records=batches[:2],
        )


def reading(cluster, selection):
    """The steps of a reader up to its time limit. They give transactions."""
    core = TransactionReader(selection)
    steps, answer, failure = core.read_steps(cluster), None, None
    while True:
        effect = steps.send(answer) if failure is None else steps.throw(failure)
        answer = failure = None
        if isinstance(effect, Emit):
            core.deliver_item(effect.item)
            if effect.item.transaction is None:
                return
            effect = Emit(effect.item.transaction)
        try:
            answer = yield effect
        except Exception as error:
            failure = error


class ModelConnection(BrokerConnection):
    """A connection to the broker in memory."""

    def __init__(self, address):
        super().__init__(address)
        self.arrived = deque()  # frames of responses; None for one that was lost
        self._is_closed = False
        self._unread = memoryview(b"")

    def close(self):
        self._is_closed = True

    def after_fork(self):
        self.close()

    @property
    def is_closed(self):
        return self._is_closed

    def receive(self, size):
        if self._is_closed:
            raise OSError("closed")
        if not self._unread:
            frame = self.arrived.popleft()
            if frame is None:
                raise OSError("lost")
            self._unread = memoryview(SIZE.pack(len(frame)) + frame)
        received, self._unread = self._unread[:size], self._unread[size:]
        assert len(received) == size
        return received


class ModelShell:
    """Runs steps over a broker in memory, in a time of its own.

    Args:
        broker: the broker.
        fate: called for each request with its API key: "request" to lose it, "answer" to lose its response, "late" to
            lose its response and let the broker get it only after the next request, "away" if no connection can be made; else None.
        at_effect: called before each effect.

    Attributes:
        now: the seconds.
        given: what the steps gave, each with the time.
        planned: what happens by itself: (time, call), sorted by time.
    """

    def __init__(self, broker, fate=lambda _key: None, at_effect=lambda: None):
        self.broker = broker
        broker.wait_until = self._wait_until
        self.now = 0.0
        self.given = []
        self.planned = []
        self._fate = fate
        self._at_effect = at_effect
        self._late = []

    def run(self, steps):
        def perform(effect):
            self._at_effect()
            return self.perform(effect)

        return run_steps(steps, perform)

    def pass_time(self, seconds):
        """Let time pass, and happen what is planned."""
        self._wait_until(lambda: False, seconds)

    def _wait_until(self, condition, seconds):
        end = self.now + seconds
        while self.now < end and not condition():
            if not self.planned or self.planned[0][0] > end:
                self.now = end
                return
            at, call = self.planned.pop(0)
            self.now = max(self.now, at)
            call()

    def perform(self, effect):
        match effect:
            case Now():
                return self.now
            case Pause(seconds):
                self.pass_time(seconds)
            case Emit(item):
                self.given.append((self.now, item))
            case Open(address, probe):
                assert address in self.broker.addresses
                if probe is SecurityProtocol.SSL:
                    raise UnavailableError("no TLS here")
                if self._fate(None) == "away":
                    raise UnavailableError("away")
                return ModelConnection(address)
            case Receive(connection, size):
                return connection.receive(size)
            case Send(connection, pieces):
                self._send(connection, b"".join(pieces))
        return None

    def _send(self, connection, sent):
        (size,) = SIZE.unpack_from(sent)
        frame = sent[SIZE.size :]
        assert len(frame) == size
        fate = self._fate(PREFIX.unpack_from(frame)[0])
        if fate == "late":
            self._late.append(frame)
        answer = self.broker.answer(frame) if fate not in ("late", "request") else None
        connection.arrived.append(answer if fate is None else None)
        if fate != "late":
            self.arrive()

    def arrive(self):
        """Let the requests arrive that are late."""
        late, self._late = self._late, []
        for frame in late:
            self.broker.answer(frame)
