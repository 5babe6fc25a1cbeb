"""The objects of partitions in an object store: how many there are, and whether they match the manifest, the list of a
partition's segments in the store.

These functions only read. They may run while a broker uses the store: objects that the broker deletes meanwhile are not
reported as missing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from stablelog.batch.header import HEADER, crc_holds, headers_in
from stablelog.crc32c import crc32c
from stablelog.errors import DamageError, ObjectMissingError, UnknownFormatError
from stablelog.tier.deletion import named_keys
from stablelog.tier.names import INDEXES, LOG, RemotePartition
from stablelog.tier.prefix import Prefix
from stablelog.tier.records import SegmentState
from stablelog.tier.remote_segment import RemoteSegment

PIECE_SIZE: Final = 8 << 20  # The size of the ranges in which a log file is read, in bytes.


@dataclass(frozen=True, slots=True)
class PartitionUsage:
    """The number and the size of the objects that a store has of one partition.

    Attributes:
        topic: the name of the topic.
        topic_id: the id of the topic.
        partition: the number of the partition.
        log_start: the log start offset that the last manifest (the list of the segments in the store) records.
        end_offset: the first offset after those that the store has.
        segments: the number of segments that readers can read.
        size: the bytes of the log files of these segments.
        marked: the number of segments that are marked for deletion.
        marked_size: the bytes of the log files of the marked segments.
        unnamed: the number of segment objects that the manifest does not name. They belong to copies that are under
            way, or were left by copies that a crash has ended.
        unnamed_size: the bytes of these objects.
        manifests: the number of manifests in the store, and of their parts, which are objects of their own.
        pins: the number of pins, by which readers protect segments.
    """

    topic: str
    topic_id: str
    partition: int
    log_start: int = 0
    end_offset: int = 0
    segments: int = 0
    size: int = 0
    marked: int = 0
    marked_size: int = 0
    unnamed: int = 0
    unnamed_size: int = 0
    manifests: int = 0
    pins: int = 0


@dataclass(frozen=True, slots=True)
class ObjectFault:
    """A fault of an object in the store: the object does not match the manifest, the list of a partition's segments in
    the store.

    Attributes:
        key: the key of the object.
        fault: in words, how the object differs from what the manifest says.
    """

    key: str
    fault: str


def measure_partition(prefix: Prefix, partition: RemotePartition) -> PartitionUsage:
    """Count the objects that the store has of a partition, and add up their sizes. The partition's last manifest, the
    list of its segments in the store, says which objects are in use.

    Returns:
        The numbers and sizes of these objects, by kind: segments that readers can read, segments marked for deletion,
        and so on.

    Raises:
        StoreError: the store does not answer, or rejects a request.
        UnknownFormatError: a later release has written the manifest.
        DamageError: the manifest or a part is damaged or missing. The message names its key.
    """
    # The objects are listed first: an object of a copy that is published between the two requests is then not listed,
    # and does not count as unnamed.
    objects = list(prefix.store.list_after(partition.directory))
    manifest = prefix.last_manifest(partition)
    found = PartitionUsage(partition.topic, str(partition.topic_id), partition.partition)
    named = set() if manifest is None else named_keys(partition, manifest)
    unnamed = [one for one in objects if partition.is_segment(one.key) and one.key not in named]
    beside = [one.key.removeprefix(f"{partition.directory}/").partition("/")[0] for one in objects]
    found = replace(
        found,
        unnamed=len(unnamed),
        unnamed_size=sum(one.size for one in unnamed),
        manifests=beside.count("manifest") + beside.count("part"),
        pins=beside.count("pins"),
    )
    if manifest is None:
        return found
    live = [row for row in manifest.segments if row.state is SegmentState.COPY_FINISHED]
    marked = [row for row in manifest.segments if row.state is not SegmentState.COPY_FINISHED]
    return replace(
        found,
        log_start=manifest.log_start,
        end_offset=manifest.end_offset,
        segments=len(live),
        size=sum(row.size for row in live),
        marked=len(marked),
        marked_size=sum(row.size for row in marked),
    )


class Verification:
    """The verification of one partition's objects in the store: whether they match the partition's manifest, the list
    of its segments.

    Args:
        prefix: the prefix of the store, under which the broker keeps all its objects.
        partition: the partition.

    Attributes:
        segments: the segments that readers can read, oldest first.

    Raises:
        StoreError: the store does not answer, or rejects a request.
        UnknownFormatError: a later release has written the manifest.
        DamageError: the manifest or a part is damaged or missing. The message names its key.
    """

    def __init__(self, prefix: Prefix, partition: RemotePartition) -> None:
        self._prefix = prefix
        self._partition = partition
        self.segments = self._live()
        # The objects are listed after the manifest, so that all that it names are listed.
        self._sizes = {one.key: one.size for one in prefix.store.list_after(partition.directory)}

    def _live(self) -> list[RemoteSegment]:
        manifest = self._prefix.last_manifest(self._partition)
        rows = () if manifest is None else manifest.segments
        return [row for row in rows if row.state is SegmentState.COPY_FINISHED]

    def faults_of(self, segment: RemoteSegment) -> Iterator[ObjectFault]:
        """Read the objects of a segment, and yield a fault for each one that is missing or damaged.

        Raises:
            StoreError: the store does not answer, or rejects a request.
        """
        for kind, check in ((LOG, self._check_log), (INDEXES, self._check_indexes)):
            key = self._partition.segment_key(segment.base_offset, segment.segment_id, kind)
            try:
                check(key, segment)
            except ObjectMissingError:
                if self._is_named(segment):
                    yield ObjectFault(key, "the object is missing")
            except (DamageError, UnknownFormatError) as error:
                yield ObjectFault(key, str(error).removeprefix(f"{key}: "))

    def _is_named(self, segment: RemoteSegment) -> bool:
        """Return whether the manifest that is the last one in the store now (the list of a partition's segments) still
        names a segment. A broker may have deleted the segment since the manifest was first read.
        """
        return any(one.segment_id == segment.segment_id for one in self._live())

    def _check_log(self, key: str, segment: RemoteSegment) -> None:
        """Check the size of a log file in the store, and that each batch is whole and begins at the next offset after
        the batch before.
        """
        size = self._sizes.get(key, segment.size)
        if size != segment.size:
            raise DamageError(
                f"the object has {size} bytes, but the manifest (the list of segments) says {segment.size}"
            )
        position, next_offset, rest, headers_crc = 0, segment.base_offset, b"", 0
        while position < segment.size:
            wanted = min(PIECE_SIZE, segment.size - position)
            content = rest + bytes(self._prefix.store.get_range(key, position, wanted))
            start, position, used = position - len(rest), position + wanted, 0
            for at, header in headers_in(content):
                if not next_offset <= header.base_offset <= header.last_offset < segment.end_offset:
                    raise DamageError(
                        f"the batch at byte {start + at} has offsets that are not expected there: they overlap the "
                        "batch before it, or are after the end of the segment"
                    )
                if not crc_holds(content, at, header):
                    raise DamageError(f"the CRC of the batch at byte {start + at} does not match its bytes")
                headers_crc = crc32c(content[at : at + HEADER.size], headers_crc)
                next_offset, used = header.last_offset + 1, at + header.size
            rest = content[used:]
        if rest:
            raise DamageError(f"the batch at byte {segment.size - len(rest)} is incomplete")
        if segment.summary is not None and headers_crc != segment.summary.log_crc:
            raise DamageError(
                "the batch headers in the object do not match the checksum in the manifest (the list of "
                "segments)"
            )

    def _check_indexes(self, key: str, segment: RemoteSegment) -> None:
        """Check that the object with the indexes of a segment is whole, and has the indexes that the manifest (the list
        of segments in the store) describes.
        """
        segment.indexes_in(self._prefix.store.get(key), key)
