"""A data directory that Apache Kafka wrote, and what its clients saw while it ran.

`tests/golden/kafka` is one, so that opening it is tested where there is no Java. To write it anew, with Java and Maven:

    python -m tests.golden.kafka_directory
"""

import functools
import json
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from peers import apache_kafka
from stablelog.batch.header import headers_in
from stablelog.batch.markers import MarkerType, read_marker
from stablelog.batch.records import decode_records
from stablelog.log.model import Isolation
from tests.java.load import (
    Reader,
    Seen,
    commit_offsets,
    committed_offset,
    create_topic,
    producer,
    read_from_everywhere,
    send,
    write_everything,
)
from tests.waiting import until

GOLDEN = Path(__file__).parent / "kafka"
SEEN = GOLDEN / "seen.json"
SMALL = {
    "internal.segment.bytes": "3000",
    "index.interval.bytes": "300",
}  # Kafka's least segment.bytes is 1 MiB
COMPACTED = {
    "internal.segment.bytes": "2000",
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}
TOPICS = {
    "everything": SMALL,
    "compacted": COMPACTED,
    "append-time": {**SMALL, "message.timestamp.type": "LogAppendTime"},
}
SETTINGS = {
    "log.cleaner.backoff.ms": "100",
    "offsets.topic.num.partitions": "3",  # by default it is 50 of each
    "transaction.state.log.num.partitions": "4",
}


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """What clients saw of a topic's only partition, from its beginning. From any other offset they saw the rest of it.

    Attributes:
        first_offset: where the log begins.
        stable_offset: up to where committed records are seen, exclusive.
        end_offset: up to where records are seen, exclusive.
        committed: the records that a read-committed client saw.
        all_records: those that any other client saw.
    """

    first_offset: int
    stable_offset: int
    end_offset: int
    committed: list[Seen]
    all_records: list[Seen]


def write_load(bootstrap, data):
    """Fill Kafka's topics; returns what must live until it has stopped: the producer of an open transaction.

    Args:
        bootstrap: of the broker.
        data: its data directory, in which one sees what the cleaner has done.
    """
    for name, configs in TOPICS.items():
        create_topic(bootstrap, name, configs)
    write_compacted(bootstrap)
    held = write_everything(bootstrap, "everything", rounds=2)
    write_everything(bootstrap, "append-time", leave_open=False)
    commit_offsets(bootstrap, "everything")
    until(lambda: is_cleaned(data), "the cleaner has not run")
    # In what the cleaner has not come to, aborted records are there to be left out.
    late = producer(bootstrap, **{"transactional.id": "late"})
    late.begin_transaction()
    send(late, "compacted", [b"late"] * 2, key=lambda i: b"k%d" % i)
    reader = Reader(bootstrap, committed=False)
    end = reader.bounds("compacted")[1]
    late.abort_transaction(30)
    reader.wait_for_end("compacted", end + 1)
    reader.close()
    until(lambda: is_cleaned(data), "the cleaner does not end")  # what clients see is not to change any more
    return held


def is_cleaned(data):
    """Whether Kafka's cleaner has come to the segment that grows, in the compacted topic."""
    checkpoint = data / "cleaner-offset-checkpoint"
    rows = checkpoint.read_text().splitlines() if checkpoint.exists() else []
    growing = max(int(path.stem) for path in (data / "compacted-0").glob("*.log"))
    return f"compacted 0 {growing}" in rows


def write_compacted(bootstrap):
    """Keys that come back, in transactions of which some abort, and by an idempotent producer: compaction leaves gaps."""
    by = producer(bootstrap, **{"transactional.id": "compacted"})
    plain = producer(bootstrap, **{"enable.idempotence": True, "compression.type": "zstd"})
    # Of one that never writes again, Kafka keeps the last batch, without its records, and the marker and index entry.
    silent = producer(bootstrap, **{"transactional.id": "silent"})
    silent.begin_transaction()
    send(silent, "compacted", [b"silent"] * 2, key=lambda i: b"k%d" % i)
    silent.abort_transaction(30)
    for number in range(24):
        by.begin_transaction()
        send(by, "compacted", [b"%d" % number * 20] * 6, key=lambda i, n=number: b"k%d" % (i * 7 + n % 3))
        (by.abort_transaction if number % 4 == 1 else by.commit_transaction)(30)
        values = [None if number % 5 == 0 else b"plain-%d" % number] * 2
        send(plain, "compacted", values, key=lambda i, n=number: b"p%d" % (i + n % 6))


def look(bootstrap, topics=tuple(TOPICS), *, step=1):
    """What clients see of each topic, from every offset; or from so many of them that it takes no time."""
    seen = {}
    for topic in topics:
        by_start = read_from_everywhere(bootstrap, topic, step=step)
        bounds = {}
        for committed in (True, False):
            reader = Reader(bootstrap, committed=committed)
            bounds[committed] = reader.bounds(topic)
            reader.close()
        first = bounds[False][0]
        for (committed, start), records in by_start.items():
            assert records == [record for record in by_start[committed, first] if record.offset >= start]
        seen[topic] = TopicSeen(
            first, bounds[True][1], bounds[False][1], by_start[True, first], by_start[False, first]
        )
    return seen


@functools.cache
def _records_of(batch):
    return [Seen(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in decode_records(batch)]


def read_partition(partition, start, *, committed, size_max=1 << 20):
    """Read an open partition as a client does: fetch after fetch, leaving out what each says was aborted."""
    isolation = Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED
    found = []
    position = start
    while position < partition.visible_end(isolation):
        fetched = partition.read(position, size_max, isolation)
        content = b"".join(fetched.buffers)
        pending = sorted(fetched.aborted or (), key=lambda txn: txn.first_offset, reverse=True)
        aborting = set()
        for at, header in headers_in(content):
            batch = content[at : at + header.size]
            while pending and pending[-1].first_offset <= header.last_offset:
                aborting.add(pending.pop().producer_id)
            if header.is_control:
                marker = read_marker(batch)
                if marker is not None and marker.type is MarkerType.ABORT:
                    aborting.discard(header.producer_id)
                continue
            if header.is_transactional and header.producer_id in aborting:
                continue
            found += [record for record in _records_of(batch) if record.offset >= position]
        if fetched.end_offset <= position:
            break  # the rest of the log was compacted away
        position = fetched.end_offset
    return found


# -- the golden directory --------------------------------------------------------------------------------------


def load_seen():
    """What stands in seen.json: {topic: TopicSeen}, and the offset that the group "readers" had committed."""
    content = json.loads(SEEN.read_text())

    def record(row):
        offset, timestamp_ms, key, value, headers = row
        pairs = tuple((name, _bytes(content)) for name, content in headers)
        return Seen(offset, timestamp_ms, _bytes(key), _bytes(value), pairs)

    topics = {
        name: TopicSeen(
            **{
                **fields,
                "committed": [record(row) for row in fields["committed"]],
                "all_records": [record(row) for row in fields["all_records"]],
            }
        )
        for name, fields in content["topics"].items()
    }
    return topics, content["readers_committed"]


def _bytes(text):
    return None if text is None else text.encode("latin-1")


def _text(content):
    return None if content is None else content.decode("latin-1")


def _save(seen, readers_committed):
    def rows(records):
        return [
            [r.offset, r.timestamp_ms, _text(r.key), _text(r.value), [(n, _text(v)) for n, v in r.headers]]
            for r in records
        ]

    topics = {
        name: {**asdict(topic), "committed": rows(topic.committed), "all_records": rows(topic.all_records)}
        for name, topic in seen.items()
    }
    content = {"kafka": apache_kafka.VERSION, "readers_committed": readers_committed, "topics": topics}
    SEEN.write_text(json.dumps(content, separators=(",", ":")) + "\n")


def main():
    """Write the golden directory anew."""
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary) / "data"
        with apache_kafka.serve(data, **SETTINGS) as kafka:
            held = write_load(kafka.bootstrap, data)
            seen = look(kafka.bootstrap)
            readers_committed = committed_offset(kafka.bootstrap, "readers", "everything")
            kafka.stop()
            del held
        shutil.rmtree(GOLDEN, ignore_errors=True)
        shutil.copytree(
            data, GOLDEN / "data", ignore=shutil.ignore_patterns("*.deleted", ".broker.log", ".lock")
        )
    _save(seen, readers_committed)
    sys.stdout.write(f"{GOLDEN}: {sum(path.stat().st_size for path in GOLDEN.rglob('*.*'))} bytes\n")


if __name__ == "__main__":
    main()
