"""The broker's metrics for Prometheus.

Counters are plain numbers on the hot path; everything else is read when a scrape asks for it. The library is imported
only if metrics are served.

Invariant: the broker's state is read on its event loop only. The HTTP server of the library answers each scrape in a
thread of its own, which waits for the loop's samples.
"""

import asyncio
import concurrent.futures
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from stablelog.errors import Unavailable
from stablelog.log.partition import Partition
from stablelog.wire.messages import api_name

if TYPE_CHECKING:
    from stablelog.broker.broker import Broker

# name -> (type, help, label names). docs/operating.md lists them, and a test holds that list to this table.
METRICS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "stablelog_requests": ("counter", "Requests answered, by API.", ("api",)),
    "stablelog_appended_bytes": ("counter", "Bytes of record batches that producers sent.", ()),
    "stablelog_fetched_bytes": ("counter", "Bytes of record batches handed out.", ()),
    "stablelog_flush_rounds": ("counter", "Rounds of group flush.", ()),
    "stablelog_unexpected_errors": (
        "counter",
        "Unexpected exceptions, by the request or task in which they were raised.",
        ("where",),
    ),
    "stablelog_disk_full": (
        "gauge",
        "1 while the disk is full and clients' writes are refused; otherwise 0.",
        (),
    ),
    "stablelog_connections": ("gauge", "Open connections.", ()),
    "stablelog_fetch_sessions": ("gauge", "Fetch sessions kept.", ()),
    "stablelog_scrubbed_bytes": ("counter", "Bytes of segments that the scrub has read.", ()),
    "stablelog_damaged_batches": (
        "gauge",
        "Batches and whole segments of a partition that are known to be damaged; nothing is read from them.",
        ("topic", "partition"),
    ),
    "stablelog_log_size_bytes": ("gauge", "Bytes of a partition's log.", ("topic", "partition")),
    "stablelog_log_start_offset": ("gauge", "First offset of a partition.", ("topic", "partition")),
    "stablelog_high_watermark": (
        "gauge",
        "First offset of a partition that is not durable.",
        ("topic", "partition"),
    ),
    "stablelog_last_stable_offset": (
        "gauge",
        "First offset of a partition whose fate is not known.",
        ("topic", "partition"),
    ),
    "stablelog_last_stable_offset_lag": (
        "gauge",
        "Offsets that read-committed readers wait for.",
        ("topic", "partition"),
    ),
    "stablelog_producer_ids": ("gauge", "Producers that a partition remembers.", ("topic", "partition")),
    "stablelog_oldest_open_transaction_seconds": (
        "gauge",
        "Age of the oldest transaction that is open in a partition.",
        ("topic", "partition"),
    ),
    "stablelog_last_commit_sequence": (
        "gauge",
        "Commit sequence of the last commit that was decided, by transaction group.",
        ("group",),
    ),
    "stablelog_resolved_commit_sequence": (
        "gauge",
        "Commit sequence up to which every commit is durable with all its markers, by transaction group.",
        ("group",),
    ),
}


SAMPLE_TIMEOUT_S = 5.0  # Prometheus itself waits for 10 s, by default
PARTITIONS_AT_ONCE_COUNT = 100  # sampled in one turn of the loop


class Sample(NamedTuple):
    """The value of a metric."""

    name: str
    labels: tuple[str, ...]
    value: float


class Metrics:
    """The counters of one broker, and the HTTP server that serves them.

    Attributes:
        connections: the open connections; set by the server that accepts them.
        port: where metrics are served; -1 while they are not.
    """

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._requests: Counter[int] = Counter()
        self._appended_size = 0
        self._fetched_size = 0
        self._server: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.connections: Collection[object] = ()
        self.port = -1

    def count_request(self, api_key: int) -> None:
        """A request has been answered."""
        self._requests[api_key] += 1

    def count_appended(self, size: int) -> None:
        """Bytes have been appended."""
        self._appended_size += size

    def count_fetched(self, size: int) -> None:
        """Bytes have been handed out."""
        self._fetched_size += size

    async def samples(self) -> list[Sample]:
        """Read every metric. Other tasks of the loop run in between."""
        found = list(self._broker_samples())
        partitions = list(self._broker.topics.open_partitions())
        for at in range(0, len(partitions), PARTITIONS_AT_ONCE_COUNT):
            now_ms = self._broker.now_ms()
            for partition in partitions[at : at + PARTITIONS_AT_ONCE_COUNT]:
                found += _partition_samples(partition, now_ms)
            await asyncio.sleep(0)
        return found

    def _broker_samples(self) -> Iterator[Sample]:
        broker = self._broker
        for api_key, count in self._requests.items():
            yield Sample("stablelog_requests", (api_name(api_key),), count)
        yield Sample("stablelog_appended_bytes", (), self._appended_size)
        yield Sample("stablelog_fetched_bytes", (), self._fetched_size)
        yield Sample("stablelog_flush_rounds", (), broker.flush.rounds)
        for where, count in broker.tasks.error_counts.items():
            yield Sample("stablelog_unexpected_errors", (where,), count)
        yield Sample("stablelog_disk_full", (), broker.reserve.is_full)
        yield Sample("stablelog_connections", (), len(self.connections))
        yield Sample("stablelog_scrubbed_bytes", (), broker.scrub.read_size)
        yield Sample("stablelog_fetch_sessions", (), len(broker.fetch_sessions))
        for group in broker.transactions:
            last, resolved = group.coordinator.last_commit_sequence, group.resolved_commit_sequence
            yield Sample("stablelog_last_commit_sequence", (group.name,), last)
            yield Sample("stablelog_resolved_commit_sequence", (group.name,), resolved)

    def collect(self) -> Iterable[Any]:
        """Answer a scrape for prometheus_client, in a thread of its HTTP server.

        Raises:
            Unavailable: the loop has not answered in time, or has ended.
        """
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for name, (kind, text, labels) in METRICS.items():
            make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            families[name] = make(name, text, labels=labels)
        for name, label_values, value in self._wait_for_samples():
            families[name].add_metric(label_values, value)
        return families.values()

    def _wait_for_samples(self) -> list[Sample]:
        assert self._loop is not None
        samples = self.samples()
        try:
            future = asyncio.run_coroutine_threadsafe(samples, self._loop)
        except RuntimeError as error:
            samples.close()
            raise Unavailable("the broker has stopped") from error
        try:
            return future.result(SAMPLE_TIMEOUT_S)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError) as error:
            future.cancel()
            raise Unavailable(f"the broker has not answered for {SAMPLE_TIMEOUT_S:g} s") from error

    def serve(self, host: str) -> None:
        """Serve /metrics over HTTP, if the configuration names a port. Called on the broker's loop.

        Raises:
            OSError: the port cannot be had.
        """
        port = self._broker.config["stablelog.metrics.port"]
        if port < 0:
            return
        from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server

        self._loop = asyncio.get_running_loop()
        registry = CollectorRegistry()
        registry.register(self)
        self._server, _ = start_http_server(port, host, registry)
        self._server.set_app(_or_unavailable(make_wsgi_app(registry)))
        self.port = self._server.server_port

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


def _or_unavailable(app: Any) -> Any:
    """Wrap the library's WSGI application: a scrape that the broker does not answer in time is answered 503."""

    def answer(environ: Any, start_response: Any) -> Any:
        try:
            return app(environ, start_response)
        except Unavailable as unavailable:
            start_response("503 Service Unavailable", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{unavailable}\n".encode()]

    return answer


def _partition_samples(partition: Partition, now_ms: int) -> Iterator[Sample]:
    labels = (partition.topic, str(partition.index))
    started_ms = partition.oldest_open_started_ms
    oldest_s = 0.0 if started_ms is None else (now_ms - started_ms) / 1000
    lag = partition.high_watermark - partition.last_stable_offset
    yield Sample("stablelog_log_size_bytes", labels, partition.size)
    yield Sample("stablelog_damaged_batches", labels, partition.damaged_count)
    yield Sample("stablelog_log_start_offset", labels, partition.start_offset)
    yield Sample("stablelog_high_watermark", labels, partition.high_watermark)
    yield Sample("stablelog_last_stable_offset", labels, partition.last_stable_offset)
    yield Sample("stablelog_last_stable_offset_lag", labels, lag)
    yield Sample("stablelog_producer_ids", labels, len(partition.producer_state))
    yield Sample("stablelog_oldest_open_transaction_seconds", labels, oldest_s)
