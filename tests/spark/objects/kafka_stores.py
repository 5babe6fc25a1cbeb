"""Stores as the storage plugins of Apache Kafka write them, from the log directories of a stopped broker."""

import itertools
import json
import uuid
from bisect import bisect_right
from dataclasses import dataclass, replace
from operator import attrgetter

from crc32c import crc32c

from stablelog.batch.header import headers_in
from stablelog.batch.records import decode_records
from stablelog.log.files.epochs import LeaderEpochs
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.time_index import TimeIndex
from stablelog.log.indexes.transaction_index import AbortedTxn, TransactionIndex
from stablelog.log.producer_state.producer_table import SNAPSHOT_ENTRY
from stablelog.log.producer_state.snapshots import CRC_END, SNAPSHOT_HEADER, SNAPSHOT_VERSION
from stablelog.tier.names import text_of_id

COMMIT = 1


@dataclass(frozen=True)
class Copied:
    """What Kafka copies of a segment. `end` is exclusive; `txnindex` is None if the segment has no such file."""

    base: int
    end: int
    log: bytes
    index: bytes
    timeindex: bytes
    txnindex: bytes | None
    snapshot: bytes
    epochs: bytes


def sealed_segments(directory):
    """The sealed segments of a partition's directory, with its own files."""
    bases = sorted(int(path.stem) for path in directory.glob("*.log"))
    epochs = LeaderEpochs.decode((directory / "leader-epoch-checkpoint").read_bytes())
    found = []
    for base, end in itertools.pairwise(bases):
        files = {path.suffix[1:]: path.read_bytes() for path in directory.glob(f"{base:020}.*")}
        known = LeaderEpochs([entry for entry in epochs.entries if entry[1] < end])
        snapshot = (directory / f"{end:020}.snapshot").read_bytes()
        # Kafka creates a transaction index with its first entry.
        aborts = files.get("txnindex") or None
        found.append(
            Copied(
                base, end, files["log"], files["index"], files["timeindex"], aborts, snapshot, known.encode()
            )
        )
    return found


def log_of(directory):
    """The batches of a partition, as one log file."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


class Model:
    """The producers of a log up to an offset, by its batches: what a producer snapshot and a transaction index have."""

    def __init__(self):
        self.open, self.last, self.aborts = {}, {}, []

    def add(self, content, position, header):
        producer = header.producer_id
        if header.is_control:
            first = self.open.pop(producer, None)
            (record,) = decode_records(content, position)
            if first is not None and int.from_bytes(record.key[2:4], "big") != COMMIT:
                stable = min([header.next_offset, *self.open.values()])
                self.aborts.append(AbortedTxn(producer, first, header.last_offset, stable))
        elif producer >= 0:
            self.last[producer] = header
            if header.is_transactional:
                self.open.setdefault(producer, header.base_offset)

    def snapshot(self):
        rows = [
            SNAPSHOT_ENTRY.pack(
                producer,
                last.producer_epoch,
                last.last_sequence,
                last.last_offset,
                last.last_offset_delta,
                last.max_timestamp,
                -1,
                self.open.get(producer, -1),
            )
            for producer, last in sorted(self.last.items())
        ]
        body = len(rows).to_bytes(4, "big") + b"".join(rows)
        head = SNAPSHOT_HEADER.pack(SNAPSHOT_VERSION, crc32c(body), len(rows))[:CRC_END]
        return head + body


def stable_end(content, end):
    """The first offset of the oldest transaction that is open at an offset; the offset itself if none is."""
    model = Model()
    for position, header in headers_in(content):
        if header.base_offset < end:
            model.add(content, position, header)
    return min([end, *model.open.values()])


def made(content, start, end, epochs=((0, 0),), every=3):
    """Make a segment of the batches with the offsets [start, end), at both of which a batch begins. Each batch number
    `every` has an entry in the offset index.
    """
    model, index, times, begin, size = Model(), OffsetIndex(start), TimeIndex(start), 0, 0
    for number, (position, header) in enumerate(headers_in(content)):
        if header.base_offset >= end:
            break
        model.add(content, position, header)
        if header.base_offset < start:
            begin = position + header.size
            continue
        if number % every == 0 and position > begin:
            index.append(header.last_offset, position - begin)
        times.append_if_later(header.max_timestamp, header.last_offset)
        size += header.size
    aborts = TransactionIndex()
    for txn in model.aborts:
        if txn.last_offset >= start:
            aborts.append(txn)
    known = LeaderEpochs([entry for entry in epochs if entry[1] < end])
    return Copied(
        start,
        end,
        content[begin : begin + size],
        bytes(index.content()),
        bytes(times.content()),
        bytes(aborts.content()) if len(aborts) else None,
        model.snapshot(),
        known.encode(),
    )


def boundaries(content):
    """The offsets at which a batch begins, and the end of the log."""
    headers = [header for _, header in headers_in(content)]
    return [*(header.base_offset for header in headers), headers[-1].next_offset]


def file_base(segments, offset):
    """The base offset of the segment with an offset."""
    return segments[bisect_right(segments, offset, key=attrgetter("base")) - 1].base


class Local:
    """A directory of LocalTieredStorage. Those of early releases have other names."""

    name = "local"
    is_early = False

    def __init__(self, root, topic, partition=0, topic_id=None):
        self.root, self.topic, self.partition = root, topic, partition
        self.topic_id = topic_id or uuid.uuid4()
        self.directory = root / f"{topic}-{partition}-{text_of_id(self.topic_id)}"
        self.directory.mkdir(parents=True, exist_ok=True)

    @property
    def url(self):
        return self.root.as_uri()

    def put(self, segment, segment_id=None):
        """Write a segment. Returns the paths of its files by suffix."""
        digits = 1 if self.is_early else 20
        stem = f"{segment.base:0{digits}}-{text_of_id(segment_id or uuid.uuid4())}"
        files = {
            "log": segment.log,
            "index": segment.index,
            "timeindex": segment.timeindex,
            "txnindex": segment.txnindex,
            "leader_epoch_checkpoint": segment.epochs,
            "snapshot": segment.snapshot,
        }
        paths = {suffix: self.directory / f"{stem}.{suffix}" for suffix in files if files[suffix] is not None}
        for suffix, path in paths.items():
            path.write_bytes(files[suffix])
        return paths


class Aiven:
    """A store of Aiven's plugin, without compression and encryption."""

    name = "aiven"

    def __init__(self, root, topic, partition=0, topic_id=None):
        self.root, self.topic, self.partition = root, topic, partition
        self.topic_id = topic_id or uuid.uuid4()
        self.directory = root / f"{topic}-{text_of_id(self.topic_id)}" / str(partition)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.event_ms = 1_700_000_000_000

    @property
    def url(self):
        return self.root.as_uri()

    def put(self, segment, segment_id=None, **changes):
        """Write a segment. Returns the paths of its objects by suffix.

        Args:
            segment: the segment.
            segment_id: the id of the copy.
            changes: further fields of the manifest.
        """
        segment_id = segment_id or uuid.uuid4()
        stem = f"{segment.base:020}-{text_of_id(segment_id)}"
        indexes = {
            "offset": segment.index,
            "timestamp": segment.timeindex,
            "producerSnapshot": segment.snapshot,
            "leaderEpoch": segment.epochs,
            "transaction": segment.txnindex,
        }
        rows, position = {}, 0
        for name, content in indexes.items():
            rows[name] = None if content is None else {"position": position, "size": len(content)}
            position += len(content or b"")
        paths = {suffix: self.directory / f"{stem}.{suffix}" for suffix in ("log", "indexes", "rsm-manifest")}
        paths["log"].write_bytes(segment.log)
        paths["indexes"].write_bytes(b"".join(content or b"" for content in indexes.values()))
        paths["rsm-manifest"].write_text(json.dumps(self._manifest(segment, segment_id, rows) | changes))
        return paths

    def _manifest(self, segment, segment_id, rows):
        size, chunk_size = len(segment.log), 4 << 20
        last = size % chunk_size or chunk_size
        self.event_ms += 1
        times = [header.max_timestamp for _, header in headers_in(segment.log)]
        return {
            "version": "1",
            "chunkIndex": {
                "type": "fixed",
                "originalChunkSize": chunk_size,
                "originalFileSize": size,
                "transformedChunkSize": chunk_size,
                "finalTransformedChunkSize": last,
            },
            "segmentIndexes": rows,
            "compression": False,
            "remoteLogSegmentMetadata": {
                "remoteLogSegmentId": {
                    "topicIdPartition": {
                        "topicId": text_of_id(self.topic_id),
                        "topicPartition": {"topic": self.topic, "partition": self.partition},
                    },
                    "id": text_of_id(segment_id),
                },
                "startOffset": segment.base,
                "endOffset": segment.end - 1,
                "maxTimestampMs": max(times, default=-1),
                "brokerId": 1,
                "eventTimestampMs": self.event_ms,
                "segmentLeaderEpochs": {"0": segment.base},
            },
        }


LAYOUTS = (Local, Aiven)


def damaged(segment, **changes):
    """A segment with other content of some files."""
    return replace(segment, **changes)
