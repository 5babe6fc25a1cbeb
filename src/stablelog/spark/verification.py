"""Verification of an object store on Spark: the tasks read all segments, and compare them with the sizes and checksums
in the manifests, the lists of the segments.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from stablelog.errors import UsageError
from stablelog.spark.objects.kafka_tiers.layouts import LAYOUTS
from stablelog.spark.option_table import BATCH
from stablelog.spark.options import ReadOptions, read_options, warn_without_effect
from stablelog.spark.source.object_log import ObjectLog
from stablelog.tier.names import INDEXES, LOG, RemotePartition
from stablelog.tier.records import SegmentSnapshotRecord, SegmentState, decode_record, encode_record
from stablelog.tier.remote_segment import RemoteSegment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS: Final = "topic string, partition int, baseOffset bigint, object string, bytes bigint, fault string"
UNIT: Final = "topic string, topicId binary, partition int, segment binary"  # What a task checks.
TASK_SIZE: Final = 256 << 20  # About how many bytes a task checks.


def verify(given: Mapping[str, str] | None = None, **more: str) -> "DataFrame":
    """Read all segments in an object store, and compare them with the manifests, which list their sizes and checksums.

    The tasks check the CRC of each batch, the offsets of the batches, the CRC over all batch headers in the summary,
    the sizes, and the CRCs of the indexes. A broker may use the store meanwhile. `stablelog storage verify` does the
    same in one process.

    Args:
        given: options of a read without a broker: `path`, the URL of the store; `subscribe`, `subscribePattern` or
            `assign` for some topics only; `store.*`.
        more: further options whose names contain no dot, as keyword arguments.

    Returns:
        A row for each object, in no order: `topic`, `partition`, `baseOffset` of its segment, `object` (its key),
        `bytes` (the size of the log file; null for the object of indexes), and `fault`, which is null if the object is
        right. Spark reads the store when an action needs the rows.

    Raises:
        UsageError: an option is not valid, or the path is no URL of an object store.
        UnavailableError, DamageError: the store does not answer, or a manifest is damaged.
    """
    from pyspark.sql import SparkSession

    options = read_options({**(given or {}), **more}, BATCH)
    warn_without_effect({**(given or {}), **more})
    if options.store_url is None or options.bootstrap is not None:
        raise UsageError("verify reads an object store without a broker: give its URL as the path")
    session = SparkSession.builder.getOrCreate()
    log = ObjectLog(options, with_pins=False)
    log.partitions()
    units, size = [], 0
    for stored in log.stored_partitions():
        if type(stored.partition) in LAYOUTS:
            raise UsageError(
                f"verify compares objects with the manifests of stablelog, and Apache Kafka has written {stored.url}: a read "
                "checks each batch"
            )
        for segment in stored.manifest.segments:
            if segment.state is SegmentState.COPY_FINISHED:
                topic, topic_id, number = stored.partition
                units.append((topic, topic_id.bytes, number, encode_record(segment.to_record())))
                size += segment.size
    task_count = max(size // TASK_SIZE, min(len(units), session.sparkContext.defaultParallelism), 1)
    rows = session.createDataFrame(units, UNIT).repartition(int(task_count))

    def check(batches: Iterator[Any]) -> Iterator[Any]:
        return _checked(options, batches)

    return rows.mapInArrow(check, COLUMNS)


def _checked(options: ReadOptions, batches: Iterator[Any]) -> Iterator[Any]:
    """Check the segments that `batches`, Arrow batches, name: one row for each segment. Yield Arrow batches with a row
    for each object that was checked. Spark calls this in a task.
    """
    import pyarrow as pa

    from stablelog.spark.objects.object_check import object_fault
    from stablelog.spark.objects.opening import opened_store
    from stablelog.spark.worker import tune_worker

    tune_worker()
    assert options.store_url is not None
    store = opened_store(options.store_url, options.store)
    for batch in batches:
        for topic, topic_id, number, row in zip(
            *(column.to_pylist() for column in batch.columns), strict=True
        ):
            partition = RemotePartition(topic, UUID(bytes=topic_id), number)
            record = decode_record(row)
            assert isinstance(record, SegmentSnapshotRecord)
            segment = RemoteSegment.from_record(record)
            base = segment.base_offset
            rows = [
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "baseOffset": base,
                    "object": partition.segment_key(base, segment.segment_id, kind),
                    "bytes": segment.size if kind == LOG else None,
                    "fault": object_fault(store, partition, segment, kind),
                }
                for kind in (LOG, INDEXES)
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=_arrow_schema(pa))


def _arrow_schema(pa: Any) -> Any:
    return pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("baseOffset", pa.int64()),
            ("object", pa.string()),
            ("bytes", pa.int64()),
            ("fault", pa.string()),
        ]
    )
