"""The topics that Apache Kafka tiered into a store."""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError, ObjectMissingError, UsageError
from stablelog.log.files.epochs import LeaderEpochs
from stablelog.spark.objects.kafka_tiers.layouts import Layout
from stablelog.spark.objects.kafka_tiers.lineage import without_overlaps
from stablelog.spark.objects.kafka_tiers.names import Upload, uploads_of
from stablelog.spark.objects.kafka_tiers.partition import KafkaPartition
from stablelog.spark.objects.kafka_tiers.segment import KafkaSegment, cut_short, load_index
from stablelog.spark.objects.parallel_requests import map_parallel
from stablelog.spark.objects.tiered_partition import TieredPartition
from stablelog.tier.index_object import IndexKind
from stablelog.tier.names import RemotePartition
from stablelog.types import TopicPartition

log = logging.getLogger(__name__)


class KafkaTopics:
    """The topics that Apache Kafka has copied into a store. This class writes nothing into the store.

    Args:
        store: the object store.
        layout: the layout of its objects.
        committed: whether the reader is read-committed.
    """

    def __init__(self, store: ObjectStore, layout: Layout, *, committed: bool) -> None:
        self.store = store
        self._layout = layout
        self._committed = committed
        self._known: dict[str, KafkaSegment] = {}
        self._divided: dict[tuple[str, int], KafkaSegment] = {}
        self._unfinished: set[str] = set()  # The uploads that a warning has named.

    def topics(self) -> list[str]:
        """Return the names of the topics that have objects in the store, sorted."""
        return sorted(self._layout.topics(self.store))

    def read_partitions(
        self, topics: Iterable[str], is_wanted: Callable[[TopicPartition], bool] = lambda _: True
    ) -> dict[TopicPartition, TieredPartition]:
        """Read the segments of the wanted partitions of these topics. Return the partitions by topic and number. If
        several topics had one name, the topic with the newest segment is used.
        """
        listed = self._layout.partitions(self.store, list(topics))
        read = self._read_segments([one for one in listed if is_wanted((one.topic, one.partition))])
        found = [one for one in read if one.segments]
        latest: dict[str, tuple[int, RemotePartition]] = {}
        for one in found:
            age = max(segment.event_ms for segment in one.segments), one.partition
            latest[one.partition.topic] = max(latest.get(one.partition.topic, age), age)
        return {one.place: one for one in found if one.partition.topic_id == latest[one.place[0]][1].topic_id}

    def read_partition(self, partition: RemotePartition) -> TieredPartition:
        """List the segments of a partition in the store, and return the partition with them."""
        return self._read_segments([partition])[0]

    def remove_pins(self) -> None:
        """Do nothing: in a store of Kafka, a reader cannot create pins, the objects that keep segments from being
        deleted.
        """

    def _read_segments(self, partitions: Sequence[RemotePartition]) -> list[KafkaPartition]:
        listed = map_parallel(lambda partition: uploads_of(self.store, partition), partitions)
        whole = [upload for uploads in listed for upload in uploads if self._is_whole(upload)]
        segments: dict[RemotePartition, list[KafkaSegment]] = {}
        for upload, segment in zip(whole, map_parallel(self._segment_of, whole), strict=True):
            if segment is not None:
                segments.setdefault(upload.partition, []).append(segment)

        return [
            KafkaPartition(
                self.store,
                partition,
                without_overlaps(
                    segments.get(partition, ()),
                    partial(map_parallel, self._load_epochs),
                    partial(cut_short, self.store),
                ),
                committed=self._committed,
                divided=self._divided,
            )
            for partition in partitions
        ]

    def _is_whole(self, upload: Upload) -> bool:
        lacking = sorted(self._layout.required - upload.files.keys())
        if lacking and upload.key not in self._unfinished:
            self._unfinished.add(upload.key)
            log.warning(
                "%s/%s is not read, because it has no %s: its upload has not ended or has failed, or it is being deleted",
                self.store.url,
                upload.key,
                ", ".join(f".{suffix}" for suffix in lacking),
            )
        return not lacking

    def _segment_of(self, upload: Upload) -> KafkaSegment | None:
        """Return the segment that an upload (one attempt to copy a segment) has stored; None if Kafka has deleted it
        since the store was listed.
        """
        if upload.key not in self._known:
            try:
                self._known[upload.key] = self._layout.segment(self.store, upload)
            except ObjectMissingError:
                return None
        return self._known[upload.key]

    def _load_epochs(self, segment: KafkaSegment) -> LeaderEpochs:
        if not segment.indexes:
            raise UsageError(
                f"{segment.refusal}. The segment overlaps others, and its leader epochs, which tell what is a part of the "
                "log, are encrypted, too: leave out the URL of the store, and set kafka.bootstrap.servers"
            )
        try:
            epochs = LeaderEpochs.decode(bytes(load_index(self.store, segment, IndexKind.LEADER_EPOCHS)))
            if not epochs.entries:
                raise DamageError("the list of leader epochs is empty")
        except DamageError as error:
            key = dict(segment.indexes)[IndexKind.LEADER_EPOCHS].key
            raise DamageError(
                f"{self.store.url}/{key}: {error}. Its segment overlaps others, and only leader epochs tell which batches "
                "are a part of the log: restore this object"
            ) from error
        return epochs
