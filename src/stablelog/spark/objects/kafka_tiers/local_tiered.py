"""The layout of LocalTieredStorage, which belongs to Kafka's own tests.

Of the files of a segment, LocalTieredStorage copies the producer snapshot last. A segment with a snapshot is therefore
completely copied, and if it has no transaction index, it has no aborted transactions. No file has the end offset of a
segment: it is that of the last batch, which is found from the last entry of the offset index.

Source: LocalTieredStorage.java, RemoteLogSegmentFileset.java, RemoteTopicPartitionDirectory.java.
"""

from collections.abc import Collection, Iterator
from typing import Final

from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.spark.objects.kafka_tiers.names import LocalPartition, Upload, local_partition_of, uploads_of
from stablelog.spark.objects.kafka_tiers.segment import KafkaLogFile, KafkaSegment
from stablelog.tier.index_object import IndexKind
from stablelog.tier.names import LOG, RemotePartition
from stablelog.types import ObjectRange

SUFFIXES: Final = {
    IndexKind.OFFSETS: "index",
    IndexKind.TIMES: "timeindex",
    IndexKind.TRANSACTIONS: "txnindex",
    IndexKind.SNAPSHOT: "snapshot",
    IndexKind.LEADER_EPOCHS: "leader_epoch_checkpoint",
}
TIME_UNKNOWN: Final = 2**63 - 1  # A search by time looks into each segment.


class LocalTiered:
    """The layout of LocalTieredStorage.

    Args:
        kind: the class of the partitions: LocalPartition or NestedLocalPartition, which differ in their directory.
        root: the directory of the partitions in the store.
    """

    required = frozenset({LOG, *SUFFIXES.values()} - {SUFFIXES[IndexKind.TRANSACTIONS]})

    def __init__(self, kind: type[LocalPartition], root: str = "") -> None:
        self._kind = kind
        self._root = root

    def is_used(self, store: ObjectStore) -> bool:
        """Return whether the store has this layout: whether a directory of a partition contains files of a segment."""
        return any(uploads_of(store, partition) for partition in self._partitions(store))

    def topics(self, store: ObjectStore) -> set[str]:
        """Return the names of the topics that have a directory."""
        return {partition.topic for partition in self._partitions(store)}

    def partitions(self, store: ObjectStore, topics: Collection[str]) -> list[RemotePartition]:
        """Return those partitions of the given topics that have a directory in the store."""
        return [partition for partition in self._partitions(store) if partition.topic in topics]

    def _partitions(self, store: ObjectStore) -> Iterator[LocalPartition]:
        found = (local_partition_of(name, self._kind) for name in store.directories(self._root))
        return (one for one in found if one is not None)

    def segment(self, store: ObjectStore, upload: Upload) -> KafkaSegment:
        """Return the segment that an upload (an attempt to copy a segment) has stored. To find its end offset, this
        method reads the offset index and the last batches of the log file.
        """
        log = upload.files[LOG]
        places = {
            kind: ObjectRange(upload.files[suffix].key, 0, upload.files[suffix].size)
            for kind, suffix in SUFFIXES.items()
            if suffix in upload.files
        }
        offsets = places[IndexKind.OFFSETS]
        index = OffsetIndex(
            upload.base_offset, store.get_range(offsets.key, 0, offsets.size) if offsets.size else b""
        )
        if index.last_position >= log.size:
            raise DamageError(
                f"{store.url}/{log.key} has only {log.size} bytes, but its offset index names a batch at "
                f"byte {index.last_position}, so the end of the file is missing: restore the file"
            )
        headers = [header for _, header in KafkaLogFile(store, log.key, log.size).walk(index.last_position)]
        if len(index) and headers[0].last_offset != index[len(index) - 1][0]:
            raise DamageError(
                f"{store.url}/{log.key}: the batch at byte {index.last_position} is not that of the offset index, "
                "so one of the two files is damaged: restore both"
            )
        return KafkaSegment(
            upload.segment_id,
            upload.base_offset,
            headers[-1].next_offset,
            log.size,
            TIME_UNKNOWN,
            (),
            event_ms=log.modified_ms,
            is_txn_index_empty=IndexKind.TRANSACTIONS not in places,
            log_object=log.key,
            indexes=tuple(places.items()),
        )
