"""A manifest: the list of the segments that a partition has in the object store.

A manifest is the payload of an object in the store. Each new manifest of a partition is a new object, and the last one
is valid (`tier.chain`). A manifest is a file of record batches. The first record has the key `manifest`, and the data
of the whole partition. Each further record describes one segment: it is the record that Kafka writes for a segment in a
snapshot, and its custom metadata is the summary of the segment: its sizes, times and checksums. A search for aborted
transactions learns from the summaries which segments have some, and at which segment it can end.

The list of a partition with many segments is divided: older segments are in *parts*, objects of their own that never
change, and the manifest names the parts. A publication therefore writes a few hundred KiB at most
(`tier.manifest_parts`).

A segment that Apache Kafka has copied has no summary. Such a segment may have aborted transactions, unless Kafka's
field `TxnIndexEmpty` is set. Earlier releases of Kafka never set this field.

Format: docs/reference/formats.md, "The manifest", "The parts of a manifest".
"""

import itertools
import json
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, NamedTuple

from stablelog.batch.header import crc_holds, headers_in
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.crc32c import crc32c
from stablelog.errors import DamageError, in_words, refuse_unknown_version
from stablelog.json_text import parse_json
from stablelog.log.search.rows import SegmentRows
from stablelog.tier.index_object import CommitFiles
from stablelog.tier.published import Published, published_of
from stablelog.tier.records import SegmentSnapshotRecord, SegmentState, decode_record, encode_record
from stablelog.tier.remote_segment import RemoteSegment

VERSION: Final = 1
PARTED_VERSION: Final = 2  # of a manifest that names parts
PART_VERSION: Final = 1
HEAD_KEY: Final = b"manifest"
PART_KEY: Final = b"part"
BATCH_COUNT_MAX: Final = 1_000  # The most segments in one record batch.
STATES: Final = {int(SegmentState.COPY_FINISHED), int(SegmentState.DELETE_STARTED)}


class ManifestPart(NamedTuple):
    """A part of a manifest: an object that lists consecutive older segments of a partition, so that the manifest itself
    stays small. The object never changes.

    Attributes:
        part_id: the id of the part, for the key of its object.
        base_offset: the base offset of its first segment.
        segment_count: the number of its segments.
        size: the size of the object in bytes.
        crc: CRC-32C of the object.
    """

    part_id: uuid.UUID
    base_offset: int
    segment_count: int
    size: int
    crc: int


class Manifest(NamedTuple):
    """The list of the segments that a partition has in the object store.

    Attributes:
        cluster_id: the id of the cluster that writes the manifest.
        log_start: the log start offset of the partition. Segments before this offset are being deleted.
        segments: the segments in the order of their offsets, without gaps, also those that are listed in parts.
        parts: the parts of the last published manifest, objects that list older segments, in the order of offsets; see
            `manifest_parts.divide_into_parts`.
        published: what the broker knew of the partition and its topic when it published the manifest; None in a
            manifest that was never published.
    """

    cluster_id: str
    log_start: int = 0
    segments: tuple[RemoteSegment, ...] = ()
    parts: tuple[ManifestPart, ...] = ()
    published: Published | None = None

    @property
    def end_offset(self) -> int:
        """The first offset that is not in the object store: the end of the last segment; or the log start offset, if
        that is greater or the store has no segment.
        """
        return max([self.log_start, *(segment.end_offset for segment in self.segments[-1:])])

    def segments_of(self, part: ManifestPart) -> Sequence[RemoteSegment]:
        """Return the segments that a part lists. The part, an object with older segments, must be one of this
        manifest's parts.
        """
        begin = place_of(self.segments, part.base_offset)
        return self.segments[begin : begin + part.segment_count]

    def with_copied(self, segments: Iterable[RemoteSegment]) -> "Manifest":
        """Return the manifest, the list of a partition's segments in the store, with newly copied segments at its end."""
        rows = list(self.segments)
        for segment in segments:
            rows.append(_with_latest(segment, rows[-1].commit if rows else None))
        _check(rows)
        return self._replace(segments=tuple(rows))

    def with_log_start(self, log_start: int, now_ms: int, broker_id: int) -> "Manifest":
        """Return the manifest (list of a partition's segments in the store) with a greater log start offset. Its
        segments that end at or before this offset are marked for deletion. `now_ms` and `broker_id` say when and by
        which broker.
        """
        assert log_start >= self.log_start
        count = bisect_right(self.segments, log_start, key=attrgetter("end_offset"))
        marked = (
            replace(segment, state=SegmentState.DELETE_STARTED, event_ms=now_ms, broker_id=broker_id)
            if segment.state is SegmentState.COPY_FINISHED
            else segment
            for segment in self.segments[:count]
        )
        return self._replace(log_start=log_start, segments=(*marked, *self.segments[count:]))

    def without_segments(self, gone: set[uuid.UUID]) -> "Manifest":
        """Return the manifest without the segments with these ids in its list, because their objects were deleted from
        the store.
        """
        left = tuple(segment for segment in self.segments if segment.segment_id not in gone)
        assert all(
            segment.state is SegmentState.DELETE_STARTED
            for segment in self.segments
            if segment.segment_id in gone
        )
        _check(left)
        return self._replace(segments=left)


class ManifestSegments(SegmentRows[RemoteSegment]):
    """Searches in the list of a partition's segments in the store, by offset and for aborted transactions.

    Args:
        segments: the segments, in the order of their offsets.

    Attributes:
        size: the size in bytes of the log files, without segments that are being deleted.
    """

    def __init__(self, segments: Sequence[RemoteSegment]) -> None:
        super().__init__(segments)
        self.size = sum(one.size for one in segments if one.state is SegmentState.COPY_FINISHED)
        self.index_aborts()

    def segment_at(self, offset: int) -> RemoteSegment | None:
        """Return the segment that contains an offset; None if there is none, or if the segment is being deleted."""
        segment = next(self.live_from(offset), None)
        return segment if segment is not None and segment.base_offset <= offset else None

    def live_from(self, start: int) -> Iterator[RemoteSegment]:
        """Yield the segments that end after an offset and are not being deleted."""
        return (one for one in self.ending_behind(start) if one.state is SegmentState.COPY_FINISHED)


def place_of(segments: Sequence[RemoteSegment], base_offset: int) -> int:
    """Return the place (index), in a list of segments, of the first segment with this base offset or a greater one; the
    length of the list if there is none.
    """
    return bisect_left(segments, base_offset, key=attrgetter("base_offset"))


def encode_manifest(manifest: Manifest, now_ms: int) -> bytes:
    """Return the encoded manifest, the list of a partition's segments in the store. Older segments that are in parts
    are left out, because each part is stored in its own object, which the manifest names.
    """
    rows = list(manifest.segments)
    for part in reversed(manifest.parts):
        begin = place_of(rows, part.base_offset)
        del rows[begin : begin + part.segment_count]
    head: dict[str, Any] = {
        "version": PARTED_VERSION if manifest.parts else VERSION,
        "cluster": manifest.cluster_id,
        "log_start": manifest.log_start,
        "count": len(rows),
    }
    if manifest.published is not None:
        head["published"] = manifest.published.to_json()
    if manifest.parts:
        head["parts"] = [[part.part_id.hex, *part[1:]] for part in manifest.parts]
    return _encode(HEAD_KEY, head, rows, now_ms)


def encode_part(
    part_id: uuid.UUID, segments: Sequence[RemoteSegment], now_ms: int
) -> tuple[ManifestPart, bytes]:
    """Encode a part of a manifest (the list of a partition's segments in the store): an object that lists these
    segments, so that the manifest itself stays small. Return a pair: the description of the part, which the manifest
    contains, and the content of the part's object.
    """
    content = _encode(PART_KEY, {"version": PART_VERSION, "count": len(segments)}, segments, now_ms)
    return ManifestPart(
        part_id, segments[0].base_offset, len(segments), len(content), crc32c(content)
    ), content


def _encode(key: bytes, head: dict[str, Any], segments: Sequence[RemoteSegment], now_ms: int) -> bytes:
    records = [Record(0, now_ms, key, json.dumps(head).encode())]
    records += [
        Record(number, now_ms, None, encode_record(segment.to_record()))
        for number, segment in enumerate(segments, 1)
    ]
    return b"".join(
        encode_batch(records[begin : begin + BATCH_COUNT_MAX], base_offset=begin, leader_epoch=0)
        for begin in range(0, len(records), BATCH_COUNT_MAX)
    )


def _no_part(part: ManifestPart) -> list[RemoteSegment]:
    raise DamageError(
        f"the part {part.part_id} of a manifest cannot be read here: this reader only reads manifests without parts"
    )


def decode_manifest(
    content: bytes, load: Callable[[ManifestPart], Sequence[RemoteSegment]] = _no_part
) -> Manifest:
    """Decode a manifest, the list of a partition's segments in the store, together with its parts, objects that list
    older segments.

    Args:
        content: the payload of the manifest.
        load: loads the object of a part, and returns its segments (as `read_part` does).

    Raises:
        UnknownFormatError: a later release has written the manifest.
        DamageError: the manifest or one of its parts is damaged.
    """
    manifest = decode_without_parts(content)
    if manifest.parts:
        segments = list(manifest.segments)
        for part in manifest.parts:
            segments += load(part)
        segments.sort(key=attrgetter("base_offset"))
        manifest = manifest._replace(segments=tuple(segments))
    _check(manifest.segments)
    return manifest


def decode_without_parts(content: bytes) -> Manifest:
    """Return a decoded manifest (list of a partition's segments in the store) without those older segments that are in
    objects of their own, its parts. The parts are not loaded. Raises UnknownFormatError or DamageError.
    """
    head, segments = _decode(content, HEAD_KEY)
    try:
        version, cluster_id, log_start, count = (
            head[one] for one in ("version", "cluster", "log_start", "count")
        )
    except KeyError as error:
        raise DamageError(
            f"a manifest is damaged: its first record (the head) cannot be read: {in_words(error)}"
        ) from error
    is_number = all(type(number) is int and number >= 0 for number in (version, log_start, count))
    if not is_number or version < VERSION or not isinstance(cluster_id, str):
        raise DamageError(
            f"a manifest is damaged: its first record must have numbers and a cluster id, and has {head}"
        )
    refuse_unknown_version("a manifest", version, PARTED_VERSION)
    if version > PARTED_VERSION:
        raise DamageError(
            f"a manifest is damaged: it says that it has version {version}, and the greatest one is {PARTED_VERSION}"
        )
    if len(segments) != count:
        raise DamageError(
            f"a manifest is damaged: it has {len(segments)} segments, and its first record says that it has {count}"
        )
    return Manifest(
        cluster_id,
        log_start,
        tuple(segments),
        _parts_of(head) if version == PARTED_VERSION else (),
        published_of(head),
    )


def _parts_of(head: dict[str, Any]) -> tuple[ManifestPart, ...]:
    try:
        parts = tuple(ManifestPart(uuid.UUID(hex=row[0]), *row[1:]) for row in head["parts"])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DamageError(
            f"a manifest is damaged: its first record does not list its parts correctly: {in_words(error)}"
        ) from error
    if any(type(number) is not int or number < 0 for part in parts for number in part[1:]):
        raise DamageError(
            "a manifest is damaged: the list of parts in its first record has a value that is no "
            f"number: {parts}"
        )
    return parts


def read_part(part: ManifestPart, content: bytes) -> list[RemoteSegment]:
    """Decode the object of a part of a manifest, a list of older segments. Check by its size and CRC that it is the one
    that the manifest names. Return the segments.

    Raises:
        UnknownFormatError: a later release has written the part.
        DamageError: the object is damaged, or is another one than the manifest names.
    """
    if (len(content), crc32c(content)) != (part.size, part.crc):
        raise DamageError(f"the part {part.part_id} of a manifest is damaged: its size or its CRC is wrong")
    segments = decode_part(content)
    if len(segments) != part.segment_count or (segments and segments[0].base_offset != part.base_offset):
        raise DamageError(
            f"the part {part.part_id} of a manifest does not contain the segments that the manifest lists for it"
        )
    return segments


def decode_part(content: bytes) -> list[RemoteSegment]:
    """Return the segments in the content of a part of a manifest, an object that lists older segments of a partition.
    Raises UnknownFormatError or DamageError.
    """
    head, segments = _decode(content, PART_KEY)
    version = head.get("version")
    if type(version) is int:
        refuse_unknown_version("a part of a manifest", version, PART_VERSION)
    if version != PART_VERSION:
        raise DamageError(
            f"a part of a manifest is damaged: it says that it has version {version!r}, and only version "
            f"{PART_VERSION} is possible"
        )
    return segments


def _decode(content: bytes, key: bytes) -> tuple[dict[str, Any], list[RemoteSegment]]:
    """Decode a manifest, which lists a partition's segments in the store, or a part of one, which lists older segments.
    Both are files of record batches: the first record is the head, which describes the whole file, and each further
    record is a segment.

    Args:
        content: the bytes of the file.
        key: the key that the first record must have.

    Returns:
        A pair: the fields of the head as a dictionary, and the segments.
    """
    what = key.decode()
    records = _records(content)
    first = next(records, None)
    if first is None or first.key != key:
        raise DamageError(
            f"a {what} is damaged: its first record is not the head, which has the key {key.decode()!r}"
        )
    try:
        head = parse_json(first.value or b"")
    except ValueError as error:
        raise DamageError(
            f"a {what} is damaged: its first record (the head) is not JSON: {in_words(error)}"
        ) from error
    if not isinstance(head, dict):
        raise DamageError(f"a {what} is damaged: its first record (the head) is no JSON object")
    segments = []
    for record in records:
        decoded = decode_record(record.value or b"")
        if not isinstance(decoded, SegmentSnapshotRecord) or int(decoded.state) not in STATES:
            raise DamageError(
                f"a {what} contains a record {type(decoded).__name__}, where only segments are expected"
            )
        segments.append(RemoteSegment.from_record(decoded))
    return head, segments


def _records(content: bytes) -> Iterator[Record]:
    end = 0
    for position, header in headers_in(content):
        if not crc_holds(content, position, header):
            raise DamageError(f"the CRC of a manifest's batch at byte {position} does not match its bytes")
        yield from decode_records(content, position)
        end = position + header.size
    if end != len(content):
        raise DamageError(
            f"a manifest is incomplete: it ends in the middle of a batch, at byte {len(content)}"
        )


def _with_latest(segment: RemoteSegment, before: CommitFiles | None) -> RemoteSegment:
    """Return the segment, corrected so that its latest commit sequence (a commit's number in the order of commits) is
    at least that of the segment before it. `before` describes the commit index of that segment, which lists the
    transactions that commit in it; None if it has none. The segment's own number may be too small: a local commit index
    that was rebuilt does not know the commits of earlier segments.
    """
    commit = segment.commit
    if commit is None or before is None or before.latest_sequence <= commit.latest_sequence:
        return segment
    return replace(segment, commit=commit._replace(latest_sequence=before.latest_sequence))


def _check(segments: Sequence[RemoteSegment]) -> None:
    for one, other in itertools.pairwise(segments):
        is_gap = one.end_offset < other.base_offset
        # A gap between two segments is valid only if the first one is being deleted. Segments that are being deleted
        # leave the manifest in any order. Also, if the log start offset moves past the last segment in the store, the
        # next segment that is copied begins at this offset or later.
        if one.end_offset > other.base_offset or (is_gap and one.state is not SegmentState.DELETE_STARTED):
            raise DamageError(
                f"a manifest is damaged: one of its segments ends at offset {one.end_offset}, and the "
                f"next begins at {other.base_offset}"
            )
