"""Producers on bare sockets: transactions of one record in the requests that librdkafka 2.16 sends.

One thread serves all of them and decodes nothing but error codes, so that the broker has the processor. librdkafka has
threads of its own for each producer: on two cores they take the broker's place and its caches, which costs the broker
processor time that is not its own.
"""

import selectors
import socket
import struct
import time
from collections.abc import Iterator
from typing import Self

from confluent_kafka.admin import AdminClient, NewTopic

from bench.loads import PATIENCE_S, QUIET
from stablelog.batch.records import Record, encode_batch
from stablelog.varint import encode_uvarint

CLIENT_ID = b"bare"
PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS, END = (0, 10), (22, 4), (24, 0), (26, 1)
SIZE = struct.Struct(">i")
HEADER = struct.Struct(">hhih")  # API key, version, correlation id, size of the client id
INITIALIZED = struct.Struct(
    ">4x x 4x hqh"
)  # error, producer id, epoch behind correlation id, tags and throttle time
ERROR = struct.Struct(">h")
VALUE = bytes(100)
ANSWER_SIZE_MAX = 4096


class BareProducers:
    """Producers that commit transactions of one record of 100 B side by side, each with its own id and topic.

    Args:
        bootstrap: the broker.
        prefix: of the transactional ids and topics.
        count: of the producers.
    """

    def __init__(self, bootstrap: str, prefix: str, count: int) -> None:
        names = [f"{prefix}-{number}" for number in range(count)]
        admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
        for made in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
            made.result()
        host, _, port = bootstrap.rpartition(":")
        self._producers = [_BareProducer((host, int(port)), name.encode()) for name in names]

    def commit(self, count: int) -> None:
        """Commit so many transactions from each producer."""
        with selectors.DefaultSelector() as selector:
            for producer in self._producers:
                steps = producer.transactions(count)
                next(steps)
                selector.register(producer.connection, selectors.EVENT_READ, steps)
            while selector.get_map():
                ready = selector.select(PATIENCE_S)
                assert ready, f"the broker has not answered for {PATIENCE_S:g} s"
                for key, _ in ready:
                    if next(key.data, None) is None:
                        selector.unregister(key.fileobj)

    def close(self) -> None:
        """Close the connections."""
        for producer in self._producers:
            producer.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _BareProducer:
    """One producer on one connection; the broker is its own coordinator."""

    def __init__(self, address: tuple[str, int], name: bytes) -> None:
        self.connection = socket.create_connection(address, timeout=PATIENCE_S)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._name = name
        self._sequence = 0
        self._send(INIT_PRODUCER_ID, b"\0" + _compact(name) + struct.pack(">iqh", 60_000, -1, -1) + b"\0")
        error, self._producer_id, self._epoch = INITIALIZED.unpack_from(self._receive())
        assert error == 0, f"InitProducerId was answered with error {error}"
        text = ERROR.pack(len(name)) + name
        identity = text + struct.pack(">qh", self._producer_id, self._epoch)
        self._partitions = identity + SIZE.pack(1) + text + struct.pack(">ii", 1, 0)
        self._end = identity + b"\1"
        self._before_batch = (
            b"\0"
            + _compact(name)
            + struct.pack(">hi", -1, 30_000)
            + b"\2"
            + _compact(name)
            + b"\2"
            + SIZE.pack(0)
        )

    def transactions(self, count: int) -> Iterator[bool]:
        """Commit transactions. Yields whenever a request has been sent; go on when the answer can be read."""
        for _ in range(count):
            self._send(ADD_PARTITIONS, self._partitions)
            yield True
            self._check(self._receive()[-2:], "AddPartitionsToTxn")
            batch = encode_batch(
                [Record(0, time.time_ns() // 1_000_000, None, VALUE)],
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                base_sequence=self._sequence,
                transactional=True,
            )
            self._sequence += 1
            self._send(PRODUCE, self._before_batch + encode_uvarint(len(batch) + 1) + batch + b"\0\0\0")
            yield True
            before_error = 4 + 1 + 1 + 1 + len(self._name) + 1 + 4  # correlation id, tags, topic, partition
            self._check(self._receive()[before_error : before_error + 2], "Produce")
            self._send(END, self._end)
            yield True
            self._check(self._receive()[-2:], "EndTxn")

    def _send(self, api: tuple[int, int], body: bytes) -> None:
        frame = HEADER.pack(*api, 0, len(CLIENT_ID)) + CLIENT_ID + body
        self.connection.sendall(SIZE.pack(len(frame)) + frame)

    def _receive(self) -> bytes:
        answer = self.connection.recv(ANSWER_SIZE_MAX)
        while len(answer) < SIZE.size or len(answer) < SIZE.size + SIZE.unpack_from(answer)[0]:
            more = self.connection.recv(ANSWER_SIZE_MAX)
            assert more, "the broker closed the connection"
            answer += more
        return answer[SIZE.size :]

    @staticmethod
    def _check(code: bytes, what: str) -> None:
        (error,) = ERROR.unpack(code)
        assert error == 0, f"{what} was answered with error {error}"


def _compact(text: bytes) -> bytes:
    return encode_uvarint(len(text) + 1) + text
