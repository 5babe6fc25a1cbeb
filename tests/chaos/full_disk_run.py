"""A broker on a small file system that is filled to the last byte, with 10,000 transactions open.

Run in a mount namespace of its own: `unshare --user --map-root-user --mount python -m tests.chaos.full_disk_run DIR`.
It mounts a tmpfs at DIR, prints what it has seen, and ends with 1 and a traceback if something is not as it should be.
"""

import contextlib
import errno
import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

from confluent_kafka import Consumer
from kio.schema.errors import ErrorCode

import stablelog
from tests.broker.desk import batch, frame, init_fields, part, produce_fields, read_answer
from tests.clients.drivers import unique
from tests.clients.proxy import LENGTH, receive
from tests.clients.reading import read_to_end
from tests.waiting import until

NONE = ErrorCode.none
SIZE = "256m"
TXN_COUNT = int(os.environ.get("STABLELOG_FULL_DISK_TXNS", "10000"))
PROBE_COUNT = 300  # transactions by which the pace of the machine is known
PARTITION_COUNT = 4
PIPELINED_COUNT = 100
PRODUCE, LIST_OFFSETS, LIST_TRANSACTIONS, DELETE_TOPICS, ALTER_CONFIGS, LOG_DIRS, CREATE_TOPICS, INIT = (
    0,
    2,
    66,
    20,
    44,
    35,
    19,
    22,
)
TIMEOUT = timedelta(seconds=30)
REFUSED = bytes(100_000)  # more than is left of the pages that files have begun


class Client:
    """A client of raw frames that sends many before it reads the answers."""

    def __init__(self, port):
        self._connection = socket.create_connection(("127.0.0.1", port), 120)

    def ask_all(self, api_key, version, requests):
        """The answers to many requests, in their order."""
        answers = []
        for at in range(0, len(requests), PIPELINED_COUNT):
            some = requests[at : at + PIPELINED_COUNT]
            frames = [frame(api_key, version, **fields) for fields in some]
            self._connection.sendall(b"".join(LENGTH.pack(len(one)) + one for one in frames))
            for _ in some:
                data = receive(self._connection)
                assert data is not None, "the broker has closed the connection"
                answers.append(read_answer(api_key, version, data)[0])
        return answers

    def ask(self, api_key, version, **fields):
        """The answer to one request."""
        return self.ask_all(api_key, version, [fields])[0]

    def create(self, name, partition_count, **configs):
        given = tuple(
            part(
                CREATE_TOPICS,
                4,
                "request",
                "CreatableTopicConfig",
                name=key.replace("_", "."),
                value=str(value),
            )
            for key, value in configs.items()
        )
        topic = part(
            CREATE_TOPICS,
            4,
            "request",
            "CreatableTopic",
            name=name,
            num_partitions=partition_count,
            replication_factor=1,
            assignments=(),
            configs=given,
        )
        answer = self.ask(CREATE_TOPICS, 4, topics=(topic,), timeout=TIMEOUT, validate_only=False)
        assert answer.topics[0].error_code is NONE

    def produce(self, topic, *values, partition=0):
        """The code of a plain append."""
        answer = self.ask(PRODUCE, 9, **produce_fields(9, topic, partition, batch(*values)))
        return answer.responses[0].partition_responses[0].error_code

    def begin_many(self, names, timeout):
        """Open a transaction for each name, with one record. Returns how many partitions took them."""
        inits = [init_fields(6, name) | {"transaction_timeout": timeout} for name in names]
        for fields in inits:
            fields |= {"enable2_pc": False, "keep_prepared_txn": False}
        producers = self.ask_all(INIT, 6, inits)
        assert all(one.error_code is NONE for one in producers)
        began = time.monotonic()
        requests = [
            produce_fields(
                12,
                "t",
                place % PARTITION_COUNT,
                batch(b"never committed", producer=(one.producer_id, one.producer_epoch), sequence=0),
                transactional_id=name,
            )
            for place, (name, one) in enumerate(zip(names, producers, strict=True))
        ]
        answers = self.ask_all(PRODUCE, 12, requests)
        codes = {answer.responses[0].partition_responses[0].error_code for answer in answers}
        assert codes == {NONE}, codes
        return time.monotonic() - began

    def ends(self, *, committed):
        """The ends of the partitions, as a reader of this isolation is told."""
        wanted = tuple(
            part(LIST_OFFSETS, 4, "request", "ListOffsetsPartition", partition_index=index, timestamp=-1)
            for index in range(PARTITION_COUNT)
        )
        topic = part(LIST_OFFSETS, 4, "request", "ListOffsetsTopic", name="t", partitions=wanted)
        answer = self.ask(LIST_OFFSETS, 4, replica_id=-1, isolation_level=int(committed), topics=(topic,))
        assert all(one.error_code is NONE for one in answer.topics[0].partitions)
        return [one.offset for one in answer.topics[0].partitions]

    def open_count(self):
        """How many transactions are open, or decided and not complete."""
        states = ("Ongoing", "PrepareCommit", "PrepareAbort")
        answer = self.ask(LIST_TRANSACTIONS, 0, state_filters=states, producer_id_filters=())
        return len(answer.transaction_states)

    def usable_size(self):
        return self.ask(LOG_DIRS, 4, topics=()).results[0].usable_bytes


def read(broker, isolation):
    """All values of the topic that a consumer of this isolation gets."""
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": unique("reader"),
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "log_level": 0,
    }
    consumer = Consumer(settings)
    try:
        found = [read_to_end(consumer, "t", index) for index in range(PARTITION_COUNT)]
        return [message.value() for messages in found for message in messages]
    finally:
        consumer.close()


def fill(path):
    """Leave no free byte. Returns how many were taken."""
    taken = 0
    with path.open("wb", buffering=0) as ballast:
        size = 1 << 20
        while size:
            try:
                taken += ballast.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 2
    volume = os.statvfs(path)
    assert volume.f_bavail == 0
    return taken


def say(what, began):
    print(f"{time.monotonic() - began:5.1f} s  {what}", flush=True)


def run(mount):
    """The scenario."""
    began = time.monotonic()
    data, ballast = mount / "data", mount / "ballast"
    with stablelog.serve(data, log_retention_ms=-1, log_retention_check_interval_ms=10**9) as broker:
        client = Client(broker.port)
        client.create("t", PARTITION_COUNT)
        for name in ("gone", "shrunk"):
            client.create(name, 1, segment_bytes=1 << 20, file_delete_delay_ms=0, max_message_bytes=2 << 20)
            for _ in range(40):
                assert client.produce(name, bytes(1_000_000)) is NONE
        for index in range(PARTITION_COUNT):
            assert client.produce("t", b"before", partition=index) is NONE
        probe_s = client.begin_many([f"probe-{n}" for n in range(PROBE_COUNT)], timedelta(minutes=10))
        timeout_s = int(2 * probe_s * TXN_COUNT / PROBE_COUNT) + 8
        opened_s = client.begin_many([f"id-{n}" for n in range(TXN_COUNT)], timedelta(seconds=timeout_s))
        assert client.open_count() == TXN_COUNT + PROBE_COUNT
        say(
            f"{TXN_COUNT} transactions were opened in {opened_s:.1f} s; they time out after {timeout_s} s",
            began,
        )

        say(f"{fill(ballast)} bytes of ballast leave no free byte", began)
        assert client.produce("t", REFUSED) is ErrorCode.kafka_storage_error
        assert client.usable_size() == 0
        assert client.open_count() == TXN_COUNT + PROBE_COUNT, "all were open when the disk was full"
        assert read(broker, "read_committed") == [b"before"] * PARTITION_COUNT
        assert len(read(broker, "read_uncommitted")) == PARTITION_COUNT + TXN_COUNT + PROBE_COUNT
        say("readers are served", began)

        until(
            lambda: client.open_count() == PROBE_COUNT,
            "the transactions time out",
            patience_s=timeout_s + 120,
        )
        say("all transactions have timed out", began)
        client.ask_all(  # a producer with its id aborts what is open
            26,
            3,
            [
                {"transactional_id": f"probe-{n}", "producer_id": n, "producer_epoch": 0, "committed": False}
                for n in range(PROBE_COUNT)
            ],
        )
        until(lambda: client.open_count() == 0, "the rest is ended by its producers")
        until(lambda: client.ends(committed=True) == client.ends(committed=False), "readers have passed them")
        assert client.usable_size() == 0, "and there is no room yet"
        assert client.produce("t", REFUSED) is ErrorCode.kafka_storage_error

        config = part(
            ALTER_CONFIGS,
            1,
            "request",
            "AlterableConfig",
            name="retention.bytes",
            config_operation=0,
            value="2000000",
        )
        resource = part(
            ALTER_CONFIGS,
            1,
            "request",
            "AlterConfigsResource",
            resource_type=2,
            resource_name="shrunk",
            configs=(config,),
        )
        altered = client.ask(ALTER_CONFIGS, 1, resources=(resource,), validate_only=False)
        assert altered.responses[0].error_code is NONE
        until(lambda: size_of(data / "shrunk-0") < 8 << 20, "retention frees room")
        deleted = client.ask(DELETE_TOPICS, 4, topic_names=("gone",), timeout=TIMEOUT)
        assert deleted.responses[0].error_code is NONE
        until(lambda: not list(data.glob("gone-*")), "the deletion frees room")
        say("retention and the deletion have freed room", began)

        until(lambda: client.produce("t", b"after") is NONE, "producers go on by themselves")
        assert ballast.exists()
        say("producers go on, with the ballast where it is", began)
        kept = sorted(read(broker, "read_committed"))
        assert kept == sorted([b"before"] * PARTITION_COUNT + [b"after"])
        broker.kill()
        broker.start()
        until(lambda: sorted(read(broker, "read_committed")) == kept, "a restart reads the same")
        log = broker.log_tail(10_000)
        assert log.count("is full:") == 1, log[-3000:]
        assert "Traceback" not in log
    say("done", began)


def size_of(directory):
    """Bytes in the files of a directory, some of which may go meanwhile."""
    total = 0
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def main():
    mount = Path(sys.argv[1])
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(mount)], check=True)
    run(mount)


if __name__ == "__main__":
    main()
