"""The topics in an object store: those of stablelog, or those that Apache Kafka tiered."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import NothingStoredError, ObjectMissingError, UsageError
from stablelog.spark.objects.kafka_tiers.layouts import KNOWN, LAYOUTS, layout_of
from stablelog.spark.objects.kafka_tiers.topics import KafkaTopics
from stablelog.spark.objects.opening import opened_store
from stablelog.spark.objects.parallel_requests import map_parallel
from stablelog.spark.objects.readers_pins import DriversPins
from stablelog.spark.objects.tiered_partition import TieredPartition
from stablelog.spark.options import ReadOptions
from stablelog.spark.planning import ReadersPins
from stablelog.tier.manifest import Manifest
from stablelog.tier.names import RemotePartition
from stablelog.tier.prefix import Prefix
from stablelog.tier.published import PARTITION_COUNT_MAX
from stablelog.types import TopicPartition

# What to do about a store without objects.
ADVICE: Final = "either no segment was copied to it yet, or the URL is wrong. Give the URL that the broker has in stablelog.remote.url"
WITHOUT_BROKERS: Final = (
    ", or set kafka.bootstrap.servers too: the brokers serve what the store does not have"
)


def stored_topics(options: ReadOptions, pin_from: Callable[[RemotePartition], int] | None) -> "StoredTopics":
    """Open the object store of a read, and return the topics in it.

    Args:
        options: the options of the read.
        pin_from: a function that returns the first offset that the read may need of a partition, from which on a pin
            (an object in the store) keeps its segments from being deleted; None to read without pins.

    Raises:
        NothingStoredError: the store has no object, or its directory does not exist.
        UsageError: the URL has no tiered storage in a known layout.
        StoreError: the store does not answer, or rejects a request.
    """
    assert options.store_url is not None
    advice = ADVICE if options.bootstrap else ADVICE + WITHOUT_BROKERS
    try:
        store = opened_store(options.store_url, options.store)
    except NothingStoredError as error:
        raise NothingStoredError(f"{error}: {advice}") from None
    committed = options.isolation == "read_committed"
    prefix = Prefix(store)
    try:
        prefix.cluster_id()
    except ObjectMissingError:
        layout = layout_of(store)
        if layout is None and not store.directories():
            raise NothingStoredError(f"{store.url} has no object: {advice}") from None
        if layout is None:
            raise UsageError(
                f"{store.url} holds no tiered storage of stablelog, and none of Apache Kafka in a known layout ({KNOWN}): "
                "give the URL that the broker has in stablelog.remote.url, or the directory, or bucket and key prefix, of "
                "Kafka's plugin. A data directory is given as a path without file://"
            ) from None
        return KafkaTopics(store, layout, committed=committed)
    return OwnTopics(prefix, committed=committed, pin_from=pin_from)


class OwnTopics:
    """The topics that stablelog has copied into a store, and the pins of one read or stream, the objects that keep the
    segments from being deleted.

    Args:
        prefix: the prefix of the store, under which the broker keeps all its objects.
        committed: whether the reader is read-committed.
        pin_from: a function that returns the first offset that the read may need of a partition, from which on a pin
            protects it; None to read without pins.
    """

    def __init__(
        self, prefix: Prefix, *, committed: bool, pin_from: Callable[[RemotePartition], int] | None
    ) -> None:
        self._prefix = prefix
        self._committed = committed
        self._pin_from = pin_from
        self._pins = DriversPins(prefix.store)
        self._known: dict[RemotePartition, Manifest] = {}

    @property
    def store(self) -> ObjectStore:
        """The object store."""
        return self._prefix.store

    def topics(self) -> list[str]:
        """Return the names of the topics that have, or had, objects in the store, sorted."""
        return self._prefix.topics()

    def read_partitions(
        self, topics: Iterable[str], is_wanted: Callable[[TopicPartition], bool] = lambda _: True
    ) -> dict[TopicPartition, TieredPartition]:
        """Read the last manifests (lists of a partition's segments) of the wanted partitions of these topics, and
        return the partitions. If several topics had one name, the topic with the newest manifest is used.
        """
        read = []
        for listed in map_parallel(self._prefix.partitions, topics):
            wanted = [one for one in listed if is_wanted((one.topic, one.partition))]
            read += wanted or listed[:1]  # The first one tells how many partitions the topic has.
        latest: dict[str, tuple[int, TieredPartition]] = {}
        stored = self.read_manifests(read)
        for one in stored:
            published = one.manifest.published
            age = -1 if published is None else published.time_ms
            known = latest.get(one.partition.topic)
            if known is None or known[0] < age:
                latest[one.partition.topic] = age, one
        found: dict[TopicPartition, TieredPartition] = {}
        for _, last in latest.values():
            same = [one for one in stored if one.partition.topic_id == last.partition.topic_id]
            found |= {one.place: one for one in self._empty_partitions(last, same) if is_wanted(one.place)}
            # Before its first manifest, a partition is known by its first object alone.
            found |= {one.place: one for one in same if one.manifest.published or one.place not in found}
        return {place: found[place] for place in sorted(found) if is_wanted(place)}

    def _empty_partitions(
        self, known: TieredPartition, same: Sequence[TieredPartition]
    ) -> Iterator[TieredPartition]:
        """Yield every partition of a topic as if it had no segments: with an empty manifest (list of its segments). The
        caller uses those of which nothing is in the store yet.

        Args:
            known: a partition of the topic.
            same: the partitions of the topic that have a manifest. The greatest partition count in their manifests is
                the present one, because topics only grow.
        """
        published = known.manifest.published
        counts = [one.manifest.published.partition_count for one in same if one.manifest.published]
        manifest = Manifest(
            known.manifest.cluster_id, published=published and published._replace(restored=None)
        )
        for number in range(min(max(counts, default=0), PARTITION_COUNT_MAX)):
            partition = known.partition._replace(partition=number)
            yield TieredPartition(self.store, partition, manifest, committed=self._committed)

    def read_manifests(self, partitions: Iterable[RemotePartition]) -> list[TieredPartition]:
        """Pin partitions (create an object that keeps their segments from being deleted), read their last manifests
        (the lists of these segments), several at a time, and return the partitions.
        """
        partitions = list(partitions)
        if self._pin_from is not None:
            before = self._pins
            if before.are_old:
                self._pins = DriversPins(self.store)
            self._pins.create({one: self._pin_from(one) for one in partitions})
            if before is not self._pins:
                before.remove()
        manifests = map_parallel(self._read_manifest, partitions)
        pins = self._pins.for_tasks
        return [
            TieredPartition(self.store, partition, manifest, committed=self._committed, pins=pins)
            for partition, manifest in zip(partitions, manifests, strict=True)
        ]

    def _read_manifest(self, partition: RemotePartition) -> Manifest:
        payload = self._prefix.last_payload(partition)
        manifest = Manifest("")
        if payload is not None:
            manifest, _ = self._prefix.read_manifest(partition, payload, self._known.get(partition))
        self._known[partition] = manifest
        return manifest

    def remove_pins(self) -> None:
        """Delete the pins of the read: the objects that keep segments from being deleted."""
        self._pins.remove()


StoredTopics = OwnTopics | KafkaTopics  # the topics in an object store


def read_again(
    store: ObjectStore, partition: RemotePartition, *, committed: bool, pins: ReadersPins | None
) -> TieredPartition | None:
    """Return a partition as it is in the store now, after one of its objects was found to be missing. Its last manifest
    (the list of its segments) is read again; if Apache Kafka has written the partition, its objects are listed again.
    Return None if the topic was deleted.

    Args:
        store: the object store.
        partition: the partition.
        committed: whether the reader is read-committed.
        pins: the pins of the read, which keep segments from being deleted; None if there are none.
    """
    layout = LAYOUTS.get(type(partition))
    if layout is not None:
        return KafkaTopics(store, layout, committed=committed).read_partition(partition)
    prefix = Prefix(store)
    manifest = prefix.last_manifest(partition)
    if manifest is None or partition not in prefix.partitions(partition.topic):
        return None
    return TieredPartition(store, partition, manifest, committed=committed, pins=pins)
