"""What a broker tells of itself to Prometheus.

Counters are kept as plain numbers on the hot path; everything else is looked up when somebody asks. The library
is imported only if metrics are served.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stablelog.wire.messages import api_name

if TYPE_CHECKING:
    from stablelog.broker.broker import Broker

# name -> (type, help, label names). docs/operating.md lists them, and a test holds that list to this table.
METRICS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "stablelog_requests": ("counter", "Requests answered, by API.", ("api",)),
    "stablelog_appended_bytes": ("counter", "Bytes of record batches that producers sent.", ()),
    "stablelog_fetched_bytes": ("counter", "Bytes of record batches handed out.", ()),
    "stablelog_flush_rounds": ("counter", "Rounds of group flush.", ()),
    "stablelog_connections": ("gauge", "Open connections.", ()),
    "stablelog_fetch_sessions": ("gauge", "Fetch sessions kept.", ()),
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


class Metrics:
    """The counters of one broker, and what serves them."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._requests: Counter[int] = Counter()
        self._appended_size = 0
        self._fetched_size = 0
        self._server: Any = None
        self.connection_count = 0
        self.port = -1

    def count_request(self, api_key: int) -> None:
        """A request has come."""
        self._requests[api_key] += 1

    def count_appended(self, size: int) -> None:
        """Bytes have been appended."""
        self._appended_size += size

    def count_fetched(self, size: int) -> None:
        """Bytes have been handed out."""
        self._fetched_size += size

    def values(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """Every metric as (name, label values, value)."""
        for api_key, count in list(self._requests.items()):
            yield "stablelog_requests", (api_name(api_key),), count
        yield "stablelog_appended_bytes", (), self._appended_size
        yield "stablelog_fetched_bytes", (), self._fetched_size
        yield "stablelog_flush_rounds", (), self._broker.flush.rounds
        yield "stablelog_connections", (), self.connection_count
        yield "stablelog_fetch_sessions", (), len(self._broker.fetch_sessions)
        for group in self._broker.transactions:
            yield "stablelog_last_commit_sequence", (group.name,), group.coordinator.last_commit_sequence
            yield "stablelog_resolved_commit_sequence", (group.name,), group.resolved_commit_sequence
        now_ms = self._broker.now_ms()
        for partition in self._broker.topics.open_partitions():
            labels = (partition.topic, str(partition.index))
            open_txns = partition.open_transactions()
            oldest_s = (now_ms - open_txns[0].started_ms) / 1000 if open_txns else 0.0
            yield "stablelog_log_size_bytes", labels, partition.size
            yield "stablelog_log_start_offset", labels, partition.start_offset
            yield "stablelog_high_watermark", labels, partition.high_watermark
            yield "stablelog_last_stable_offset", labels, partition.last_stable_offset
            yield (
                "stablelog_last_stable_offset_lag",
                labels,
                partition.high_watermark - partition.last_stable_offset,
            )
            yield "stablelog_producer_ids", labels, len(partition.producers())
            yield "stablelog_oldest_open_transaction_seconds", labels, oldest_s

    def collect(self) -> Iterator[Any]:
        """For prometheus_client: called in the thread of its HTTP server."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for name, (kind, text, labels) in METRICS.items():
            make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            families[name] = make(name, text, labels=labels)
        for name, label_values, value in self.values():
            families[name].add_metric(label_values, value)
        yield from families.values()

    def serve(self, host: str) -> None:
        """Serve /metrics over HTTP, if the configuration names a port."""
        port = self._broker.config["stablelog.metrics.port"]
        if port < 0:
            return
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(self)
        self._server, _ = start_http_server(port, host, registry)
        self.port = self._server.server_port

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
