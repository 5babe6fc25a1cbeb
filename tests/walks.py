"""Walks: through which modules a request and a start pass, in the order in which each module is first reached.

`python -m tests.walks` prints the walks of docs/how-it-works/tour.md with all their modules.
"""

import asyncio
import contextlib
import sys
import tempfile
import threading
from inspect import CO_OPTIMIZED
from pathlib import Path

import stablelog
from stablelog.broker.requests.router import Router
from stablelog.broker.server import Server
from stablelog.broker.settings.config import BrokerConfig
from tests.broker.desk import (
    add_partitions_fields,
    batch,
    end_fields,
    frame,
    init_fields,
    produce_fields,
    read_answer,
)
from tests.declared_apis import APIS

SOURCE = Path(stablelog.__file__).parent
PRODUCE, ADD_PARTITIONS, END_TXN, INIT_PRODUCER = 0, 24, 26, 22
VERSIONS = {PRODUCE: 9, ADD_PARTITIONS: 3, END_TXN: 3, INIT_PRODUCER: 4}
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "stablelog.disk.reserve.bytes": "0",
    "stablelog.scrub.bytes.per.second": "0",
}


@contextlib.contextmanager
def watched():
    """The modules whose functions are called while the block runs, in the order of their first calls.

    Bodies of classes and of modules are left out: they run when a module is imported.
    """
    reached = {}

    def called(code_frame, event, _argument):
        code = code_frame.f_code
        if event == "call" and code.co_flags & CO_OPTIMIZED and code.co_filename.startswith(str(SOURCE)):
            reached.setdefault(code.co_filename[len(str(SOURCE)) + 1 :])

    threading.setprofile_all_threads(called) if sys.version_info >= (3, 12) else threading.setprofile(called)
    sys.setprofile(called)
    try:
        yield reached
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


class Client:
    """A connection of a client, whose own code is in no module of the product."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer

    async def request(self, api_key, **fields):
        """Send a request and return its response."""
        version = VERSIONS[api_key]
        request = frame(api_key, version, **fields)
        self._writer.write(len(request).to_bytes(4, "big") + request)
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        return read_answer(api_key, version, await self._reader.readexactly(size))[0]


async def _transaction(client, transactional_id, producer):
    """Write a record in a transaction."""
    targets = add_partitions_fields(VERSIONS[ADD_PARTITIONS], transactional_id, producer, [("t", 0)])
    await client.request(ADD_PARTITIONS, **targets)
    await client.request(
        PRODUCE,
        **produce_fields(
            VERSIONS[PRODUCE],
            "t",
            0,
            batch(b"v", producer=producer, sequence=0),
            transactional_id=transactional_id,
        ),
    )


async def _durable(broker):
    """Wait until all that was appended is durable, markers too."""
    for log in broker.partitions:
        waiting = broker.flush.durable_future(log, log.end_offset)
        if waiting is not None:
            await waiting


async def _walk(directory):
    with watched() as start:
        server = await Server.open(BrokerConfig(SETTINGS), directory)
    broker = server.broker
    broker.topic_files.create("t", 1, {})
    router = Router(broker)
    for api_key, version in VERSIONS.items():
        router.prepare_api(APIS[api_key], version)  # the first request of an API imports its messages
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    client = Client(reader, writer)
    fields = produce_fields(VERSIONS[PRODUCE], "t", 0, batch(b"v"))
    await client.request(PRODUCE, **fields)
    with watched() as produce:
        await client.request(PRODUCE, **fields)
    for _ in range(2):
        answer = await client.request(INIT_PRODUCER, **init_fields(VERSIONS[INIT_PRODUCER], "id"))
        producer = answer.producer_id, answer.producer_epoch
        await _transaction(client, "id", producer)
        with watched() as end:
            await client.request(END_TXN, **end_fields("id", producer, committed=True))
            await _durable(broker)
    writer.close()
    await server.stop()
    return {"A produce": list(produce), "The end of a transaction": list(end), "A start": list(start)}


def walks():
    """The modules of each walk of docs/how-it-works/tour.md, by its heading, in the order in which they are reached."""
    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(_walk(Path(directory) / "data"))


if __name__ == "__main__":
    for heading, modules in walks().items():
        rooms = {module.rpartition("/")[0] for module in modules}
        sys.stdout.write(f"{heading}: {len(modules)} modules of {len(rooms)} rooms\n")
        for module in modules:
            sys.stdout.write(f"    {module}\n")
