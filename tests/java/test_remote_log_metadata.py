"""Apache Kafka's own tools read what tiered storage writes: the events of remote segments, and the copied objects."""

import re

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

import stablelog
from peers import apache_kafka
from stablelog.tier.index_object import IndexKind, indexes_of
from stablelog.tier.manifest import decode_manifest
from stablelog.tier.records import SegmentState
from tests.java.dump import SHORT_LIVED, dump
from tests.java.load import create_topic, producer, send
from tests.waiting import until

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("remote log metadata"),
    pytest.mark.filterwarnings("ignore"),
]

NAME, TOPIC = "__remote_log_metadata", "tiered"
SERDE = "org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde"
SETTINGS = {
    "remote_log_manager_task_interval_ms": 50,
    "group_initial_rebalance_delay_ms": 0,
    "rlmm_config_remote_log_metadata_topic_num_partitions": 3,
}
EVENT = re.compile(r"partition: (\d+), offset: (\d+), value: (\w+)\{(.*)\}")
STATES = ("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED")
FILES = {IndexKind.OFFSETS: ".index", IndexKind.TIMES: ".timeindex", IndexKind.TRANSACTIONS: ".txnindex"}


def events(bootstrap, count):
    """The lines of Kafka's formatter: (name of the record, its fields)."""
    command = [
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", NAME, "--from-beginning"),
        *("--max-messages", str(count), "--timeout-ms", "60000"),
        *("--formatter", f"{SERDE}$RemoteLogMetadataFormatter"),
    ]
    printed = apache_kafka.run_tool(*command, jvm_options=SHORT_LIVED)
    found = [EVENT.fullmatch(line) for line in printed.splitlines()]
    assert None not in found, printed
    return [(one[3], one[4]) for one in found]


def field(text, name):
    return re.search(rf"\b{name}=([^,}}\]]*)", text)[1]


def rows(directory, topic):
    """The segments in the manifest that the broker has recorded."""
    path = directory / "data" / f"{topic}-0" / "remote-manifest"
    return decode_manifest(path.read_bytes()).segments if path.exists() else ()


@pytest.fixture(scope="module")
def written(kafka_jars, module_path):
    """A broker with a tiered topic of 3 copied segments, of which the second has an aborted transaction. The log start
    is then moved past the first segment, and another tiered topic is deleted.
    """
    with stablelog.serve(
        module_path / "data", stablelog_remote_url=f"file://{module_path}/store", **SETTINGS
    ) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        tiered = {"remote.storage.enable": "true", "segment.bytes": "4000", "index.interval.bytes": "300"}
        for topic in (TOPIC, "deleted"):
            create_topic(broker.bootstrap, topic, tiered)
        one = producer(broker.bootstrap, **{"transactional.id": "one"})
        for ends in (
            one.commit_transaction,
            one.abort_transaction,
            one.commit_transaction,
            one.commit_transaction,
        ):
            one.begin_transaction()
            send(one, TOPIC, [bytes(900)] * 4)
            ends(30)
        for _ in range(2):
            send(producer(broker.bootstrap), "deleted", [bytes(3000)])
        until(lambda: [len(rows(module_path, topic)) for topic in (TOPIC, "deleted")] == [3, 1], "the copies")
        start = TopicPartition(TOPIC, 0, rows(module_path, TOPIC)[1].base_offset)
        admin.delete_records([start])[start].result(30)
        until(lambda: rows(module_path, TOPIC)[0].state is SegmentState.DELETE_STARTED, "the new manifest")
        admin.delete_topics(["deleted"])["deleted"].result(30)
        yield broker, sorted((module_path / "store").glob(f"t.{TOPIC}/*/0/*.log"))


def test_kafkas_formatter_prints_every_event(written):
    broker, objects = written
    starts = [int(path.name[:20]) for path in objects]
    found = events(broker.bootstrap, 10)
    of_segments = {}
    for kind, text in found:
        if kind == "RemotePartitionDeleteMetadata":
            assert "DELETE_PARTITION_MARKED" in text
            assert "deleted" in text
            continue
        topic = re.search(r"topicIdPartition=[\w-]+:(\w+)-0", text)[1]
        segment = re.search(r"RemoteLogSegmentId\{.*?id=([\w-]+)\}", text)[1]
        of_segments.setdefault((topic, segment), []).append((kind, field(text, "state"), text))
    assert [kind for kind, _ in found].count("RemotePartitionDeleteMetadata") == 1
    states = {}
    for (topic, _), rows in of_segments.items():
        assert rows[0][0] == "RemoteLogSegmentMetadata"
        assert all(kind == "RemoteLogSegmentMetadataUpdate" for kind, _, _ in rows[1:])
        start, end = int(field(rows[0][2], "startOffset")), int(field(rows[0][2], "endOffset"))
        states[topic, start] = tuple(state for _, state, _ in rows)
        if topic == TOPIC and start != starts[-1]:
            assert end + 1 == starts[starts.index(start) + 1]
    assert states == {
        (TOPIC, starts[0]): STATES,
        (TOPIC, starts[1]): STATES[:2],
        (TOPIC, starts[2]): STATES[:2],
        ("deleted", 0): STATES[:2],
    }


def test_kafkas_dump_tool_reads_the_copied_objects(written, tmp_path):
    _, objects = written
    files = []
    for path in objects:
        base = tmp_path / path.name[:20]
        files.append(base.with_suffix(".log"))
        files[-1].write_bytes(path.read_bytes())
        indexes = indexes_of(path.with_suffix(".indexes").read_bytes(), path.name)
        for kind, suffix in FILES.items():
            if indexes.get(kind):
                files.append(base.with_suffix(suffix))
                files[-1].write_bytes(indexes[kind])
    found = dump(*files)
    assert found.complaints == []
    assert {path.suffix for path in files} == {".log", ".index", ".timeindex", ".txnindex"}
    data = [row for row in found.records() if "endTxnMarker" not in row]
    assert [int(row["offset"]) for row in data] == [0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13]
    assert [row["endTxnMarker"] for row in found.records() if "endTxnMarker" in row] == [
        "COMMIT",
        "ABORT",
        "COMMIT",
    ]
