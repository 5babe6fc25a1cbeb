"""What does the native client write, blocking and with asyncio, beside aiokafka on the same broker?

Each client writes the same records with the same keys to a commit-ordered topic of four partitions, in transactions of 1,
100 and 10,000 records, one after the other. The figures are records per second, the time from the begin of a transaction
to the end of its commit, and the processor time of the client's process.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from aiokafka import AIOKafkaProducer

import stablelog
import stablelog.aio
from bench.contestants import OURS
from bench.report import Section

AIOKAFKA: Final = "aiokafka"
TOPIC: Final = "client-writes"
PARTITIONS: Final = 4
VALUE: Final = b"v" * 100
# Records of a transaction, and transactions of a run.
SHAPES: Final = ((1, 150), (100, 40), (10_000, 4))
BATCH_SIZE: Final = 256 << 10  # aiokafka's default of 16 KiB makes it slower
WAYS: Final = ("blocking", "blocking, write_many", "asyncio", "asyncio, write_many")


@dataclass(frozen=True, slots=True)
class Written:
    """What a client has written, one transaction after the other.

    Attributes:
        records: how many records.
        seconds: how long each transaction took.
        processor_s: the processor time of this process.
    """

    records: int
    seconds: Sequence[float]
    processor_s: float

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / sum(self.seconds)

    @property
    def p50_ms(self) -> float:
        """The median time of a transaction."""
        return statistics.median(self.seconds) * 1_000

    @property
    def cost_us(self) -> float:
        """Processor time of a record."""
        return self.processor_s / self.records * 1_000_000


@contextmanager
def _timed(seconds: list[float]) -> Iterator[None]:
    begun = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - begun)


def blocking(bootstrap: str, keys: Sequence[bytes], count: int, *, many: bool) -> Written:
    """Write transactions with the blocking client. The first one, which connects, is not counted."""
    seconds: list[float] = []
    with stablelog.connect(bootstrap) as client:
        for number in range(count + 1):
            if number == 1:
                seconds.clear()
                processor_s = time.process_time()
            with _timed(seconds), client.transaction() as txn:
                if many:
                    txn.write_many(TOPIC, [VALUE] * len(keys), keys=keys)
                else:
                    for key in keys:
                        txn.write(TOPIC, VALUE, key=key)
    return Written(count * len(keys), seconds, time.process_time() - processor_s)


async def _in_transactions(
    begin: Callable[[], Any], write: Callable[[Any], Awaitable[None]], keys: Sequence[bytes], count: int
) -> Written:
    seconds: list[float] = []
    for number in range(count + 1):
        if number == 1:
            seconds.clear()
            processor_s = time.process_time()
        with _timed(seconds):
            async with begin() as txn:
                await write(txn)
    return Written(count * len(keys), seconds, time.process_time() - processor_s)


async def in_asyncio(bootstrap: str, keys: Sequence[bytes], count: int, *, many: bool) -> Written:
    """Write transactions with the asyncio client."""

    async def write(txn: stablelog.aio.AsyncTransaction) -> None:
        if many:
            await txn.write_many(TOPIC, [VALUE] * len(keys), keys=keys)
        else:
            for key in keys:
                await txn.write(TOPIC, VALUE, key=key)

    async with stablelog.aio.connect(bootstrap) as client:
        return await _in_transactions(client.transaction, write, keys, count)


async def with_aiokafka(bootstrap: str, keys: Sequence[bytes], count: int) -> Written:
    """Write transactions with aiokafka."""
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, transactional_id="bench", max_batch_size=BATCH_SIZE
    ) as producer:

        async def write(_txn: object) -> None:
            for key in keys:
                await producer.send(TOPIC, VALUE, key)

        return await _in_transactions(producer.transaction, write, keys, count)


def measure(way: str, bootstrap: str, keys: Sequence[bytes], count: int) -> Written:
    """Write transactions in one of `WAYS`, or with aiokafka."""
    if way == AIOKAFKA:
        return asyncio.run(with_aiokafka(bootstrap, keys, count))
    many = way.endswith("write_many")
    if way.startswith("blocking"):
        return blocking(bootstrap, keys, count, many=many)
    return asyncio.run(in_asyncio(bootstrap, keys, count, many=many))


def run(run_count: int, divisor: int, tell: Callable[[str], object]) -> list[Section]:
    """Measure each way and aiokafka in turn, in each run."""
    section = Section("Writes of the native client, 100 B", beside=AIOKAFKA)
    with stablelog.serve() as broker, stablelog.connect(broker.bootstrap) as client:
        client.admin.topics.create(TOPIC, partitions=PARTITIONS, configs={"stablelog.order": "commit"})
        for size, full in SHAPES:
            keys, count = [b"%08d" % number for number in range(size)], max(full // divisor, 1)
            for number in range(run_count):
                tell(f"transactions of {size:,} records, run {number + 1} of {run_count}")
                ways = (*WAYS, AIOKAFKA)[:: 1 if number % 2 else -1]
                written = {way: measure(way, broker.bootstrap, keys, count) for way in ways}
                for way in WAYS:
                    for contestant, one in ((OURS, written[way]), (AIOKAFKA, written[AIOKAFKA])):
                        what = f"transactions of {size:,}, {way}"
                        section.row(f"{what}, records/s", wanted=1.0).add(contestant, one.rate)
                        section.row(f"{what}, p50 ms").add(contestant, one.p50_ms)
                        section.row(f"{what}, processor time of a record, µs").add(contestant, one.cost_us)
    return [section]
