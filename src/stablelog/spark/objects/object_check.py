"""Check of one segment in an object store: all bytes of its objects are compared with the sizes and checksums in the
manifest, the list of the partition's segments.
"""

import numpy as np
import numpy.typing as npt

from stablelog.batch.header import CRC_START
from stablelog.crc32c import crc32c
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError, ObjectMissingError, UnknownFormatError
from stablelog.spark.kernels import decode as k
from stablelog.spark.objects.download import downloaded
from stablelog.spark.objects.whole_batches import WholeBatches
from stablelog.tier.names import LOG, RemotePartition
from stablelog.tier.prefix import Prefix
from stablelog.tier.records import SegmentState
from stablelog.tier.remote_segment import RemoteSegment
from stablelog.types import ObjectRange


def object_fault(
    store: ObjectStore, partition: RemotePartition, segment: RemoteSegment, kind: str
) -> str | None:
    """Download an object of a segment, and check it. Return what is wrong with it, in words; None if the object agrees
    with the manifest (the list of the partition's segments), or if a broker has deleted the segment meanwhile.

    Args:
        store: the object store.
        partition: the partition.
        segment: the row of the segment in the manifest.
        kind: which object to check: LOG for the log file, INDEXES for the object with the indexes.

    Raises:
        StoreError: the store does not answer, or rejects a request.
    """
    key = partition.segment_key(segment.base_offset, segment.segment_id, kind)
    try:
        if kind == LOG:
            _check_log(store, key, segment)
        else:
            segment.indexes_in(store.get(key), key)
    except ObjectMissingError:
        return "the object is missing" if _is_named(store, partition, segment) else None
    except (DamageError, UnknownFormatError) as error:
        return str(error).removeprefix(f"{key}: ")
    return None


def _check_log(store: ObjectStore, key: str, segment: RemoteSegment) -> None:
    whole = WholeBatches(segment.size, segment.base_offset, segment.end_offset, check=_check_crcs)
    for _, content in downloaded(store, [ObjectRange(key, 0, segment.size)]):
        for _ in whole.batches_in(content):
            pass
    if not whole.is_complete:
        raise DamageError("the object ends in the middle of its last batch")
    if segment.summary is not None and whole.header_crc != segment.summary.log_crc:
        raise DamageError(
            "the batch headers in the object do not match the checksum in the manifest (the list of segments)"
        )
    try:
        store.get_range(key, segment.size, 1)
    except DamageError:
        return  # The object ends with the last batch of the segment.
    # Reads of a range after the end would succeed.
    raise DamageError(f"the object has more than the {segment.size} bytes of its segment")


def _check_crcs(view: memoryview, table: npt.NDArray[np.int64]) -> None:
    """Check the CRCs of batches. `table` has a row for each batch (`kernels.decode`), and `view` has the bytes of the
    batches. Raises DamageError if a CRC is wrong.
    """
    for position, size, crc, base_offset in table[:, [k.POSITION, k.SIZE, k.CRC, k.BASE_OFFSET]].tolist():
        if crc32c(view[position + CRC_START : position + size]) != crc:
            raise DamageError(
                f"the CRC of the batch with the base offset {base_offset} does not match its bytes"
            )


def _is_named(store: ObjectStore, partition: RemotePartition, segment: RemoteSegment) -> bool:
    """Return whether the last manifest (the list of the partition's segments in the store) still names a segment. If it
    does not, a broker has deleted the segment.
    """
    manifest = Prefix(store).last_manifest(partition)
    rows = () if manifest is None else manifest.segments
    return any(
        one.segment_id == segment.segment_id and one.state is SegmentState.COPY_FINISHED for one in rows
    )
