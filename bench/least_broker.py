"""A broker that does next to nothing, for the share of a latency that no broker can take from a client.

It answers Produce and Fetch of one partition at once, from memory: nothing is checked, indexed or written to a file. All
other requests go to a real broker, which has to advertise this one's address.
"""

import contextlib
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence

from kio.schema.errors import ErrorCode

import stablelog
from bench.loads import receive
from stablelog.wire.api import Api, ApiKey
from stablelog.wire.fetch import FetchedPartition, FetchedTopic, encode_fetch_response
from stablelog.wire.messages import PREFIX, Buffer, decode_request
from stablelog.wire.produce import ProducedPartition, ProducedTopic, encode_produce_response

NO_SESSION = 0


class Partition:
    """The only partition. Each batch is handed out once, to whoever asks first."""

    def __init__(self) -> None:
        self._unread: list[bytearray] = []
        self._end_offset = 0
        self._topic_id: uuid.UUID | None = None

    def produce(self, frame: Buffer, version: int, correlation_id: int) -> Sequence[Buffer]:
        """Keep a batch of one record, and acknowledge it."""
        _, request = decode_request(Api(ApiKey.PRODUCE, version, version), version, frame)
        (topic,) = request.topics
        batch = bytearray(topic.partitions[0].records)
        offset, self._end_offset = self._end_offset, self._end_offset + 1
        batch[:8] = offset.to_bytes(8, "big")
        self._unread.append(batch)
        produced = ProducedPartition(0, base_offset=offset, log_start_offset=0)
        return encode_produce_response(version, correlation_id, [ProducedTopic(topic.name, [produced])])

    def fetch(self, frame: Buffer, version: int, correlation_id: int) -> Sequence[Buffer]:
        """Hand out what was not, or nothing, without a wait. The first request tells the topic's id."""
        if self._topic_id is None:
            _, request = decode_request(Api(ApiKey.FETCH, version, version), version, bytes(frame))
            self._topic_id = request.topics[0].topic_id
        records, self._unread = self._unread, []
        fetched = FetchedPartition(
            0,
            high_watermark=self._end_offset,
            last_stable_offset=self._end_offset,
            log_start_offset=0,
            records=records,
        )
        topic = FetchedTopic("", self._topic_id, [fetched])
        return encode_fetch_response(version, correlation_id, ErrorCode.none, NO_SESSION, [topic])


def answer_all(client: socket.socket, upstream: tuple[str, int], partition: Partition) -> None:
    """Answer a client's requests, one after the other, until it goes."""
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with client, socket.create_connection(upstream) as real:
        while size := client.recv(4, socket.MSG_WAITALL):
            frame = bytearray(int.from_bytes(size, "big"))
            receive(client, memoryview(frame))
            api_key, version, correlation_id = PREFIX.unpack_from(frame)
            if api_key == ApiKey.PRODUCE:
                answer = partition.produce(frame, version, correlation_id)
            elif api_key == ApiKey.FETCH:
                answer = partition.fetch(frame, version, correlation_id)
            else:
                real.sendall(size + frame)
                content = bytearray(int.from_bytes(real.recv(4, socket.MSG_WAITALL), "big"))
                receive(real, memoryview(content))
                answer = [content]
            client.sendall(b"".join([sum(map(len, answer)).to_bytes(4, "big"), *answer]))


def main() -> None:
    """Listen, print the port, read the real broker's, and answer until the process is killed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        upstream = ("127.0.0.1", int(sys.stdin.readline()))
        partition = Partition()
        while True:
            client, _ = listener.accept()
            threading.Thread(target=answer_all, args=(client, upstream, partition), daemon=True).start()


@contextlib.contextmanager
def serve() -> Iterator[str]:
    """Run it while the block runs. Yields the address for clients."""
    command = [sys.executable, "-m", "bench.least_broker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = f"127.0.0.1:{int(process.stdout.readline())}"
            with stablelog.serve(advertised_listeners=f"PLAINTEXT://{address}") as real:
                print(real.port, file=process.stdin, flush=True)
                yield address
        finally:
            process.kill()


if __name__ == "__main__":
    main()
