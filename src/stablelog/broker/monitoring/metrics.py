"""The broker's metrics for Prometheus.

Counters are plain numbers, because they change with every request. All other metrics are read at each scrape from
*sources*: functions that the parts of the broker register. The Prometheus library is imported only if metrics are
served. The broker's state is read only on its event loop. The library's HTTP server handles each scrape in a thread,
which waits until the event loop has read the samples.
"""

import asyncio
import concurrent.futures
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from stablelog.broker.loop.threads import start_thread
from stablelog.broker.monitoring.health import HealthFacts
from stablelog.broker.monitoring.loop_watch import LoopWatch, watch_loop
from stablelog.errors import UnavailableError
from stablelog.log.partition import Isolation, Partition
from stablelog.log.remote_tier import RemoteTier
from stablelog.wire.api import ApiKey

# name -> (type, help, label names). docs/reference/metrics.md is generated from this table.
METRICS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "stablelog_requests": ("counter", "Requests that the broker answered, by API.", ("api",)),
    "stablelog_appended_bytes": ("counter", "Bytes of record batches that producers sent.", ()),
    "stablelog_fetched_bytes": ("counter", "Bytes of record batches in responses to fetches.", ()),
    "stablelog_flush_rounds": (
        "counter",
        "Flush rounds. In a round, one fsync serves all writes that wait.",
        (),
    ),
    "stablelog_unexpected_errors": (
        "counter",
        "Unexpected exceptions, by the request or task that raised them.",
        ("where",),
    ),
    "stablelog_disk_full": (
        "gauge",
        "1 while the disk is full and the broker refuses clients' writes, else 0.",
        (),
    ),
    "stablelog_partitions": ("gauge", "Partitions of all topics, with internal ones.", ()),
    "stablelog_offline_partitions": (
        "gauge",
        "Partitions that could not be opened or have failed. The log has the reasons.",
        (),
    ),
    "stablelog_opening_partitions": (
        "gauge",
        "Partitions that the broker is still opening after a start.",
        (),
    ),
    "stablelog_acls": ("gauge", "ACLs of the broker; only with an authorizer.", ()),
    "stablelog_denied_operations": (
        "counter",
        "Operations that a client had no right to; only with an authorizer.",
        (),
    ),
    "stablelog_connections": ("gauge", "Open connections.", ()),
    "stablelog_logins": (
        "counter",
        "Logins and re-authentications, with the result `success` or `failure`.",
        ("mechanism", "result"),
    ),
    "stablelog_fetch_sessions": ("gauge", "Fetch sessions that the broker keeps.", ()),
    "stablelog_scrubbed_bytes": ("counter", "Bytes of segments that the scrub has read.", ()),
    "stablelog_damaged_batches": (
        "gauge",
        "Batches and whole segments that are known to be damaged and are not returned.",
        ("topic", "partition"),
    ),
    "stablelog_log_size_bytes": ("gauge", "Size of a partition's log, in bytes.", ("topic", "partition")),
    "stablelog_log_start_offset": ("gauge", "First offset of a partition.", ("topic", "partition")),
    "stablelog_high_watermark": (
        "gauge",
        "First offset of a partition that is not durable.",
        ("topic", "partition"),
    ),
    "stablelog_last_stable_offset": (
        "gauge",
        "First offset of the oldest transaction in a partition that is open, or whose marker is not durable yet; else the high watermark.",
        ("topic", "partition"),
    ),
    "stablelog_last_stable_offset_lag": (
        "gauge",
        "Durable offsets that read-committed readers cannot read yet; 0 in commit order.",
        ("topic", "partition"),
    ),
    "stablelog_producer_ids": ("gauge", "Producers whose state a partition keeps.", ("topic", "partition")),
    "stablelog_oldest_open_transaction_seconds": (
        "gauge",
        "Age of the oldest transaction that is open in a partition.",
        ("topic", "partition"),
    ),
    "stablelog_local_log_start_offset": (
        "gauge",
        "First offset of a partition on the local disk.",
        ("topic", "partition"),
    ),
    "stablelog_remote_end_offset": (
        "gauge",
        "First offset of a partition that is not in the object store.",
        ("topic", "partition"),
    ),
    "stablelog_remote_log_size_bytes": (
        "gauge",
        "Size of a partition's segments in the object store, in bytes.",
        ("topic", "partition"),
    ),
    "stablelog_remote_copy_lag_segments": (
        "gauge",
        "Segments of a partition that wait for their copy to the object store.",
        ("topic", "partition"),
    ),
    "stablelog_remote_copy_lag_bytes": (
        "gauge",
        "Size of the segments of a partition that wait for their copy to the object store, in bytes.",
        ("topic", "partition"),
    ),
    "stablelog_remote_requests": ("counter", "Requests to the object store, by kind.", ("kind",)),
    "stablelog_remote_read_bytes": ("counter", "Bytes that were read from the object store.", ()),
    "stablelog_remote_copied_bytes": (
        "counter",
        "Bytes of log files that were copied to the object store.",
        (),
    ),
    "stablelog_remote_copied_segments": ("counter", "Segments that were copied to the object store.", ()),
    "stablelog_remote_deleted_segments": (
        "counter",
        "Segments that were deleted from the object store.",
        (),
    ),
    "stablelog_remote_cache_bytes": (
        "gauge",
        "Size of the cache of ranges from the object store, in bytes, in memory and on the disk.",
        ("where",),
    ),
    "stablelog_remote_failed_partitions": ("gauge", "Partitions whose last copy has failed.", ()),
    "stablelog_remote_fenced": (
        "gauge",
        "1 if another broker has taken over the object store and this broker copies no more, else 0.",
        (),
    ),
    "stablelog_remote_coordinator_lag_seconds": (
        "gauge",
        "Greatest possible age of a record of the coordinators' logs that is not in the object store; 0 if all are there.",
        (),
    ),
    "stablelog_throttled": (
        "counter",
        "Throttled requests and connections, by the key of the quota.",
        ("quota",),
    ),
    "stablelog_throttle_seconds": (
        "counter",
        "Sum of the throttle times because of a quota, in seconds, by the key of the quota.",
        ("quota",),
    ),
    "stablelog_measured_clients": ("gauge", "Clients whose rates are measured for a quota.", ()),
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


# The broker has this number of seconds to return its metrics: less than the 10 s that Prometheus waits by default.
SAMPLE_TIMEOUT_S = 5.0
TIMEOUT_STATUS = "503 Service Unavailable"
# The number of partitions whose metrics are read in one turn of the event loop.
PARTITIONS_AT_ONCE_COUNT = 100


class Sample(NamedTuple):
    """One value of a metric, with the values of its labels."""

    name: str
    labels: tuple[str, ...]
    value: float


Source = Callable[[], Iterable[Sample]]
Result = TypeVar("Result")


class Metrics:
    """The metrics of one broker: its counters, the registered sources (functions that return further metrics), and the
    HTTP server that serves both.

    Args:
        open_partitions: returns the open partitions.
        now_ms: returns the broker's time.

    Attributes:
        requests: the number of answered requests, by API key.
        appended_size: bytes of batches in Produce requests.
        fetched_size: bytes of batches in Fetch responses.
        port: the port of the HTTP server; -1 if metrics are not served.
    """

    def __init__(self, open_partitions: Callable[[], Iterable[Partition]], now_ms: Callable[[], int]) -> None:
        self._open_partitions = open_partitions
        self._now_ms = now_ms
        self._sources: list[Source] = [self._counters]
        self.requests: Counter[int] = Counter()
        self.appended_size = 0
        self.fetched_size = 0
        self._server: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: LoopWatch | None = None
        self.port = -1

    def register_source(self, source: Source) -> None:
        """Register a function that returns samples of metrics. Each scrape calls it on the broker's event loop."""
        self._sources.append(source)

    async def read_samples(self) -> list[Sample]:
        """Read the present values of all metrics, in several turns of the event loop."""
        found = [sample for source in self._sources for sample in source()]
        partitions = list(self._open_partitions())
        for at in range(0, len(partitions), PARTITIONS_AT_ONCE_COUNT):
            now_ms = self._now_ms()
            for partition in partitions[at : at + PARTITIONS_AT_ONCE_COUNT]:
                found += _partition_samples(partition, now_ms)
            await asyncio.sleep(0)
        return found

    def _counters(self) -> Iterator[Sample]:
        for api_key, count in self.requests.items():
            yield Sample("stablelog_requests", (ApiKey(api_key).snake_name,), count)
        yield Sample("stablelog_appended_bytes", (), self.appended_size)
        yield Sample("stablelog_fetched_bytes", (), self.fetched_size)

    def collect(self) -> Iterable[Any]:
        """Return the metric families in the form of prometheus_client, whose HTTP server calls this method in a thread.

        Raises:
            UnavailableError: the broker's event loop has not returned the samples in time, or has ended.
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
        return self._wait(self.read_samples(), "the broker has not returned its metrics")

    def _wait(self, work: Coroutine[Any, Any, Result], what_is_late: str) -> Result:
        """Run a coroutine on the event loop, and wait for its result in another thread.

        Raises:
            UnavailableError: there is no result in time, or the event loop has ended.
        """
        assert self._loop is not None
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:
            work.close()
            raise UnavailableError("the broker has stopped") from error
        try:
            return future.result(SAMPLE_TIMEOUT_S)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError) as error:
            future.cancel()
            raise UnavailableError(f"{what_is_late} for {SAMPLE_TIMEOUT_S:g} s") from error

    def serve(self, host: str, port: int, read_facts: Callable[[], HealthFacts]) -> None:
        """Serve the metrics at /metrics over HTTP, and the health at /healthz and /readyz, unless the port is negative.
        Must be called on the broker's event loop.

        Args:
            host: the address to listen on.
            port: the port; 0 takes a free one.
            read_facts: returns the state of the broker. It is called on the event loop.

        Raises:
            OSError: the port cannot be bound.
        """
        if port < 0:
            return
        from prometheus_client import CollectorRegistry, make_wsgi_app

        from stablelog.broker.monitoring.health_pages import HealthPages
        from stablelog.broker.monitoring.metrics_server import MetricsServer

        self._loop = asyncio.get_running_loop()
        registry = CollectorRegistry()
        registry.register(self)
        watch = watch_loop(self._loop)

        async def facts() -> HealthFacts:
            return read_facts()

        pages = HealthPages(
            lambda: watch.silence_s,
            lambda: self._wait(facts(), "the event loop has not answered"),
            _respond_503_if_late(make_wsgi_app(registry)),
        )
        try:
            self._server = MetricsServer(host, port, pages)
        except BaseException:
            watch.close()
            raise
        self._watch = watch
        start_thread("metrics", self._server.serve_forever)
        self.port = self._server.server_port

    def close(self) -> None:
        """Stop the HTTP server, if there is one."""
        if self._watch is not None:
            self._watch.close()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


def _respond_503_if_late(app: Any) -> Any:
    """Return a WSGI application that calls `app`, that of prometheus_client, and responds with status 503 if the broker
    does not return its metrics in time.
    """

    def answer(environ: Any, start_response: Any) -> Any:
        try:
            return app(environ, start_response)
        except UnavailableError as unavailable:
            start_response(TIMEOUT_STATUS, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{unavailable}\n".encode()]

    return answer


def _remote_samples(partition: Partition, remote: RemoteTier, labels: tuple[str, str]) -> Iterator[Sample]:
    from stablelog.tier.copy_rules import copyable  # imported here, because few brokers have tiered storage

    waiting = copyable(partition.log.segments, remote.end_offset, partition.last_stable_offset)
    yield Sample("stablelog_remote_end_offset", labels, remote.end_offset)
    yield Sample("stablelog_remote_log_size_bytes", labels, remote.size)
    yield Sample("stablelog_remote_copy_lag_segments", labels, len(waiting))
    yield Sample("stablelog_remote_copy_lag_bytes", labels, sum(segment.size for segment in waiting))


def _partition_samples(partition: Partition, now_ms: int) -> Iterator[Sample]:
    labels = (partition.topic, str(partition.index))
    started_ms = partition.log.producers.oldest_open_started_ms
    oldest_s = 0.0 if started_ms is None else (now_ms - started_ms) / 1000
    # Readers of a commit-ordered partition wait for no transaction.
    lag = 0 if partition.view is not None else partition.high_watermark - partition.last_stable_offset
    yield Sample("stablelog_log_size_bytes", labels, partition.size)
    yield Sample("stablelog_damaged_batches", labels, partition.log.segments.damaged_count)
    yield Sample("stablelog_log_start_offset", labels, partition.known_start(Isolation.READ_UNCOMMITTED))
    yield Sample("stablelog_local_log_start_offset", labels, partition.start_offset)
    if partition.remote is not None:
        with contextlib.suppress(
            UnavailableError
        ):  # The partition's list of remote segments is not known yet.
            yield from _remote_samples(partition, partition.remote, labels)
    yield Sample("stablelog_high_watermark", labels, partition.high_watermark)
    yield Sample("stablelog_last_stable_offset", labels, partition.last_stable_offset)
    yield Sample("stablelog_last_stable_offset_lag", labels, lag)
    yield Sample("stablelog_producer_ids", labels, len(partition.log.producers))
    yield Sample("stablelog_oldest_open_transaction_seconds", labels, oldest_s)
