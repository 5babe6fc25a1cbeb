"""Produce of batches that are encoded once: what a broker takes for a batch of a size, a codec and a kind of records.

A bare socket sends the requests, so that the broker has the processor. Each request has one batch. Five requests are
under way. The broker runs with `stablelog.flush=os`, so that no fsync hides what a batch takes.
"""

import random
import socket
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from bench.loads import PATIENCE_S, QUIET
from stablelog.batch.header import Codec
from stablelog.batch.records import Record, encode_batch

SIZE = struct.Struct(">i")
HEADER = struct.Struct(">hhih")  # API key, version, correlation id, size of the client id
CLIENT_ID = b"bare"
PRODUCE = (0, 7)
UNDER_WAY = 5
NOW_MS = 1_700_000_000_000
RECORDS_PER_MS = 20  # of the timestamps
WORDS = [b"%x" % (number * 2_654_435_761 % 2**32) for number in range(256)]


class Kind(NamedTuple):
    """The batches of a row.

    Attributes:
        record_size: the size of a value, in bytes; of the mean value if the sizes differ.
        batch_size: the size of a batch before compression, in bytes.
        codec: the compression of the batches.
        is_mixed: whether the sizes of the values differ.
        count: the number of batches of a slice.
    """

    record_size: int
    batch_size: int
    codec: Codec
    is_mixed: bool
    count: int

    @property
    def what(self) -> str:
        """The kind in words, for the report."""
        sizes = "of different sizes, " if self.is_mixed else ""
        return (
            f"produce batches of {self.batch_size // 1000:,} KB, records of {self.record_size:,} B, {sizes}"
            f"{self.codec.name.lower()}"
        )


def batches_of(kind: Kind) -> list[bytes]:
    """Encode some different batches of a kind. The values are words, which lz4 compresses to about half their size."""
    rng = random.Random(f"batches {kind}")
    return [_batch(kind, rng) for _ in range(4)]


def _batch(kind: Kind, rng: random.Random) -> bytes:
    records, size = [], 0
    while True:
        wanted = kind.record_size
        if kind.is_mixed:
            wanted = max(1, int(rng.gauss(wanted, wanted / 4)))
        value = b" ".join(rng.choices(WORDS, k=wanted // 8 + 1))[:wanted].ljust(wanted)
        size += len(value) + 12
        if records and size > kind.batch_size:
            return encode_batch(records, codec=kind.codec)
        records.append(Record(0, NOW_MS + len(records) // RECORDS_PER_MS, None, value))


def producing(bootstrap: str, topic: str, kind: Kind) -> tuple[Callable[[], object], float]:
    """Create a topic. Return a function that produces the batches of a slice, and their MB without compression."""
    settings = {"max.message.bytes": str(2 << 20), "message.timestamp.after.max.ms": str(2**62)}
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result()
    host, _, port = bootstrap.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    frames = [_frame(topic.encode(), batch) for batch in batches_of(kind)]
    answers = connection.makefile("rb")

    def produce() -> None:
        sent = 0
        for answered in range(kind.count):
            while sent < min(answered + UNDER_WAY, kind.count):
                connection.sendall(frames[sent % len(frames)])
                sent += 1
            answer = answers.read(SIZE.unpack(answers.read(SIZE.size))[0])
            (error,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(topic) + 4 + 4)
            assert error == 0, f"Produce was answered with error {error}"

    return produce, kind.count * kind.batch_size / 1e6


def _frame(topic: bytes, batch: bytes) -> bytes:
    body = struct.pack(">hhi", -1, -1, 30_000) + SIZE.pack(1) + struct.pack(">h", len(topic)) + topic
    body += struct.pack(">iii", 1, 0, len(batch)) + batch
    frame = HEADER.pack(*PRODUCE, 0, len(CLIENT_ID)) + CLIENT_ID + body
    return SIZE.pack(len(frame)) + frame


def kinds() -> Mapping[str, Kind]:
    """The kinds of batches by the names of their rows."""
    found = {}
    for batch_name, batch_size, count in (("16k", 16_000, 600), ("1m", 1_000_000, 20)):
        for record_name, record_size in (("100", 100), ("1k", 1_000)):
            for codec_name, codec in (("", Codec.NONE), ("-lz4", Codec.LZ4)):
                for mixed_name, is_mixed in (("", False), ("-mixed", True)):
                    name = f"batches-{batch_name}-{record_name}{codec_name}{mixed_name}"
                    found[name] = Kind(record_size, batch_size, codec, is_mixed, count)
    return found
