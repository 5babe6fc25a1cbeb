"""The topics in an object store: those of stablelog, or those that Apache Kafka tiered."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from stablelog.env.objects.store import ObjectStore
from stablelog.errors import InvalidConfig, ObjectMissing
from stablelog.spark.objects.at_once import at_once
from stablelog.spark.objects.kafka_tiers.layouts import KNOWN, LAYOUTS, layout_of
from stablelog.spark.objects.kafka_tiers.topics import KafkaTopics
from stablelog.spark.objects.opening import opened_store
from stablelog.spark.objects.readers_pins import create_pin, is_old, remove_pin
from stablelog.spark.objects.stored_partition import StoredPartition
from stablelog.spark.options import ReadOptions
from stablelog.spark.planning import ReadersPin
from stablelog.tier.manifest import Manifest
from stablelog.tier.names import RemotePartition
from stablelog.tier.prefix import Prefix
from stablelog.types import TopicPartition


class StoredTopics(Protocol):
    """The topics in an object store."""

    @property
    def store(self) -> ObjectStore:
        """The object store."""

    def topics(self) -> list[str]:
        """Return the names of the topics in the store, in order. Raises StoreError."""

    def of_topics(self, topics: Iterable[str]) -> dict[TopicPartition, StoredPartition]:
        """Read what the store has of all partitions of some topics. Raises StoreError and Corrupt."""

    def remove_pins(self) -> None:
        """Delete the pins of the read. Call this when the read has ended."""


def stored_topics(options: ReadOptions, pin_from: Callable[[RemotePartition], int]) -> StoredTopics:
    """Open the store of a read.

    Args:
        options: the options of the read.
        pin_from: returns the first offset that the read may need of a partition.

    Raises:
        InvalidConfig: the URL has no tiered storage in a known layout.
        StoreError: the store does not answer, or rejects a request.
    """
    assert options.store_url is not None
    store = opened_store(options.store_url, options.store)
    committed = options.isolation == "read_committed"
    prefix = Prefix(store)
    try:
        prefix.cluster_id()
    except ObjectMissing:
        layout = layout_of(store)
        if layout is None:
            raise InvalidConfig(
                f"{store.url} holds no tiered storage of stablelog, and none of Apache Kafka in a known layout ({KNOWN}): "
                "give the URL that the broker has in stablelog.remote.url, or the directory, or bucket and key prefix, of "
                "Kafka's plugin. A data directory is given as a path without file://"
            ) from None
        return KafkaTopics(store, layout, committed=committed)
    return OwnTopics(prefix, committed=committed, pin_from=pin_from)


class OwnTopics:
    """The topics of stablelog in a store, and the pins of one read or of one stream.

    Args:
        prefix: the prefix of the store.
        committed: whether the reader is read-committed.
        pin_from: returns the first offset that the read may need of a partition.
    """

    def __init__(
        self, prefix: Prefix, *, committed: bool, pin_from: Callable[[RemotePartition], int] = lambda _: 0
    ) -> None:
        self._prefix = prefix
        self._committed = committed
        self._pin_from = pin_from
        self._pins: dict[RemotePartition, ReadersPin | None] = {}
        self._known: dict[RemotePartition, Manifest] = {}

    @property
    def store(self) -> ObjectStore:
        """The object store."""
        return self._prefix.store

    def topics(self) -> list[str]:
        """Return the names of the topics that have, or had, objects in the store, in order."""
        return self._prefix.topics()

    def of_topics(self, topics: Iterable[str]) -> dict[TopicPartition, StoredPartition]:
        """Read the last manifests of all partitions of these topics. If a name was used by several topics, the topic
        whose manifest is the latest counts.
        """
        listed = at_once(self._prefix.partitions, topics)
        read = self.read_all([partition for found in listed for partition in found])
        latest: dict[str, tuple[int, RemotePartition]] = {}
        for one in read:
            published = one.manifest.published
            age = -1 if published is None else published.time_ms, one.partition
            latest[one.partition.topic] = max(latest.get(one.partition.topic, age), age)
        found: dict[TopicPartition, StoredPartition] = {}
        for one in read:
            if one.partition.topic_id == latest[one.partition.topic][1].topic_id:
                found[one.place] = one
        return found | self._empty(found)

    def _empty(
        self, found: Mapping[TopicPartition, StoredPartition]
    ) -> dict[TopicPartition, StoredPartition]:
        """Return the partitions that the topics have, but of which nothing is in the store yet."""
        empty = {}
        for stored in found.values():
            published = stored.manifest.published
            for number in range(0 if published is None else published.partition_count):
                partition = stored.partition._replace(partition=number)
                if (partition.topic, number) not in found:
                    manifest = Manifest(stored.manifest.cluster_id, published=published)
                    empty[partition.topic, number] = StoredPartition(
                        self.store, partition, manifest, committed=self._committed
                    )
        return empty

    def read_all(self, partitions: Iterable[RemotePartition]) -> list[StoredPartition]:
        """Read the last manifests of partitions, several at a time."""
        return at_once(self.read, partitions)

    def read(self, partition: RemotePartition) -> StoredPartition:
        """Create a pin in a partition, unless it has one that is not old, and read its last manifest."""
        before = self._pins.get(partition)
        if partition not in self._pins or (before is not None and is_old(before)):
            self._pins[partition] = create_pin(self.store, partition, self._pin_from(partition))
            if before is not None:
                remove_pin(self.store, partition, before)
        payload = self._prefix.last_payload(partition)
        manifest = Manifest("")
        if payload is not None:
            manifest, _ = self._prefix.read_manifest(partition, payload, self._known.get(partition))
        self._known[partition] = manifest
        pin = self._pins[partition]
        return StoredPartition(self.store, partition, manifest, committed=self._committed, pin=pin)

    def remove_pins(self) -> None:
        """Delete the pins. Call this when the read has ended."""
        for partition, pin in self._pins.items():
            if pin is not None:
                remove_pin(self.store, partition, pin)
        self._pins.clear()


def read_again(
    store: ObjectStore, partition: RemotePartition, *, committed: bool, pin: ReadersPin | None
) -> StoredPartition:
    """Read what the store has of a partition now, after an object was found to be missing.

    Args:
        store: the object store.
        partition: the partition.
        committed: whether the reader is read-committed.
        pin: the pin of the read; None if there is none.
    """
    layout = LAYOUTS.get(type(partition))
    if layout is not None:
        return KafkaTopics(store, layout, committed=committed).read(partition)
    manifest = Prefix(store).last_manifest(partition) or Manifest("")
    return StoredPartition(store, partition, manifest, committed=committed, pin=pin)
