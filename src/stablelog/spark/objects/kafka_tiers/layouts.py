"""The layouts of Apache Kafka's storage plugins, and the detection of the layout of a store."""

from collections.abc import Collection, Mapping
from typing import Final, Protocol

from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.spark.objects.kafka_tiers.aiven import Aiven
from stablelog.spark.objects.kafka_tiers.local_tiered import LocalTiered
from stablelog.spark.objects.kafka_tiers.names import (
    ROOT,
    AivenPartition,
    LocalPartition,
    NestedLocalPartition,
    Upload,
)
from stablelog.spark.objects.kafka_tiers.segment import KafkaSegment
from stablelog.tier.names import RemotePartition

KNOWN: Final = "LocalTieredStorage, and Aiven's plugin without compression and encryption"


class Layout(Protocol):
    """The names and the formats of the objects that a storage plugin writes.

    Attributes:
        required: the suffixes of the objects that every completely copied segment has.
    """

    required: frozenset[str]

    def is_used(self, store: ObjectStore) -> bool:
        """Return whether a store has objects that are named as in this layout. Raises StoreError."""

    def topics(self, store: ObjectStore) -> set[str]:
        """Return the names of the topics that have objects in a store. Raises StoreError."""

    def partitions(self, store: ObjectStore, topics: Collection[str]) -> list[RemotePartition]:
        """Return the partitions of some topics that have objects in a store. Raises StoreError."""

    def segment(self, store: ObjectStore, upload: Upload) -> KafkaSegment:
        """Return the segment whose objects an upload (one attempt to copy a segment) has written. The caller has
        checked that the upload has all objects in `required`.

        Raises:
            ObjectMissingError: an object does not exist any more.
            StoreError: the store does not answer, or rejects a request.
            UsageError: the plugin has compressed or encrypted the log file, so only a broker with the plugin can read
                it.
            DamageError: an object is damaged.
        """


# By the class of the partitions.
LAYOUTS: Final[Mapping[type[RemotePartition], Layout]] = {
    AivenPartition: Aiven(),
    LocalPartition: LocalTiered(LocalPartition),
    NestedLocalPartition: LocalTiered(NestedLocalPartition, ROOT),
}


def layout_of(store: ObjectStore) -> Layout | None:
    """Return the layout that a store uses; None if it is none of the known layouts. Raises StoreError."""
    return next((layout for layout in LAYOUTS.values() if layout.is_used(store)), None)
