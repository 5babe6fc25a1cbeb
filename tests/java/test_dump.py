"""Apache Kafka's own dump tool reads every file that the broker writes, and says of each record what we say."""

import json

import pytest

import stablelog
from stablelog.batch.header import HEADER, read_header
from stablelog.batch.markers import read_marker
from stablelog.batch.records import decode_records
from tests.java.dump import dump, files_of
from tests.java.load import commit_offsets, create_topic, producer, send, write_everything

pytestmark = [pytest.mark.java, pytest.mark.filterwarnings("ignore")]

TOPIC = "everything"
OFFSET_KEY = "1"
TRANSACTION_STATUS = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
)
SMALL = {"segment.bytes": "3000", "index.interval.bytes": "300", "segment.index.bytes": "1200"}


@pytest.fixture(scope="module")
def written(kafka_jars, tmp_path_factory):
    """A data directory after a mixed load, a kill -9, a restart, more load and a stop."""
    data = tmp_path_factory.mktemp("dump") / "data"
    with stablelog.serve(data, group_initial_rebalance_delay_ms=0) as broker:
        create_topic(broker.bootstrap, TOPIC, SMALL)
        held = write_everything(broker.bootstrap, TOPIC)
        commit_offsets(broker.bootstrap, TOPIC)
        broker.kill()
        broker.start()
        send(producer(broker.bootstrap), TOPIC, [b"after the crash"] * 3)
        broker.stop()
        broker.start()
        held = [held, write_everything(broker.bootstrap, TOPIC, leave_open=True)]
        broker.stop()
        del held
    return data


def batches(directory):
    """(header, bytes) of every batch, by our own reader."""
    for path in sorted(directory.glob("*.log")):
        content = path.read_bytes()
        position = 0
        while len(content) - position >= HEADER.size:
            header = read_header(content, position)
            yield header, content[position : position + header.size]
            position += header.size


def test_nothing_in_any_file_is_found_wrong(written):
    files = files_of(written / f"{TOPIC}-0")
    kinds = {path.suffix for path in files}
    assert kinds == {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    assert sum(path.suffix == ".log" for path in files) > 3
    assert dump(*files).complaints == []


def test_every_batch_and_record_is_read_as_we_read_it(written):
    found = dump(*sorted((written / f"{TOPIC}-0").glob("*.log")))
    told = [row for _, row in found.of(".log")]
    ours = list(batches(written / f"{TOPIC}-0"))
    assert [
        (
            int(row["baseOffset"]),
            int(row["lastOffset"]),
            int(row["count"]),
            int(row["baseSequence"]),
            int(row["producerId"]),
            int(row["producerEpoch"]),
            int(row["partitionLeaderEpoch"]),
            row["isTransactional"] == "true",
            row["isControl"] == "true",
            row["compresscodec"],
            int(row["size"]),
        )
        for row in told
    ] == [
        (
            header.base_offset,
            header.last_offset,
            header.record_count,
            header.base_sequence,
            header.producer_id,
            header.producer_epoch,
            header.leader_epoch,
            header.is_transactional,
            header.is_control,
            header.codec.name.lower(),
            header.size,
        )
        for header, _ in ours
    ]
    assert {row["compresscodec"] for row in told} == {"none", "gzip", "snappy", "lz4", "zstd"}
    records = [row for row in found.records() if "endTxnMarker" not in row]
    markers = [row["endTxnMarker"] for row in found.records() if "endTxnMarker" in row]
    decoded = [record for header, batch in ours if not header.is_control for record in decode_records(batch)]
    assert [(int(row["offset"]), row.get("payload", "")) for row in records] == [
        (record.offset, (record.value or b"").decode()) for record in decoded
    ]
    assert markers == [read_marker(batch).type.name for header, batch in ours if header.is_control]


def test_the_snapshots_and_aborted_transactions_are_there(written):
    found = dump(*files_of(written / f"{TOPIC}-0"))
    aborted = [row for _, row in found.of(".txnindex")]
    aborts = [
        header.base_offset
        for header, batch in batches(written / f"{TOPIC}-0")
        if header.is_control and read_marker(batch).type.name == "ABORT"
    ]
    assert [int(row["lastOffset"]) for row in aborted] == aborts
    newest = max(path for path, _ in found.of(".snapshot"))
    producers = [row for path, row in found.of(".snapshot") if path == newest]
    open_since = [row for row in producers if row["currentTxnFirstOffset"] != "OptionalLong.empty"]
    assert len(open_since) == 1


def test_its_index_checks_pass(written):
    files = [path for path in files_of(written / f"{TOPIC}-0") if path.suffix in (".index", ".timeindex")]
    for option in ("--index-sanity-check", "--verify-index-only"):
        assert dump(*files, options=(option,)).complaints == [], option


def test_the_commit_log_is_a_transaction_log_of_kafka(written):
    found = dump(*files_of(written / "__transaction_state-0"), options=("--transaction-log-decoder",))
    assert found.complaints == []
    latest = {}
    for row in found.records():
        if row["key"].startswith("{"):  # what is ours alone, Kafka passes over
            latest[json.loads(row["key"])["data"]["transactionalId"]] = json.loads(row["payload"])["data"]
    statuses = {name: TRANSACTION_STATUS[data["transactionStatus"]] for name, data in latest.items()}
    assert statuses == {
        "offsets": "CompleteAbort",
        f"{TOPIC}-one": "CompleteCommit",
        f"{TOPIC}-two": "CompleteCommit",
        f"{TOPIC}-undecided": "Ongoing",
    }
    partitions = latest[f"{TOPIC}-undecided"]["transactionPartitions"]
    assert partitions == [{"topic": TOPIC, "partitionIds": [0]}]


def test_the_offsets_log_is_one_of_kafka(written):
    found = dump(*files_of(written / "__consumer_offsets-0"), options=("--offsets-decoder",))
    assert found.complaints == []
    told = []
    for row in found.records():
        if "endTxnMarker" in row:
            told.append(row["endTxnMarker"])
        elif json.loads(row["key"])["type"] == OFFSET_KEY:
            told.append(json.loads(row["payload"])["data"]["offset"])
    assert told[:5] == [3, 5, "COMMIT", 7, "ABORT"]
    groups = [row for row in found.records() if '"type":"2"' in row.get("key", "")]
    assert {json.loads(row["key"])["data"]["group"] for row in groups} == {"readers"}


def test_it_would_say_so(written, tmp_path):
    """What the tests above rely on: an entry that is off by one is complained of."""
    source = max((written / f"{TOPIC}-0").glob("*.timeindex"), key=lambda path: path.stat().st_size)
    for suffix in (".log", ".index", ".timeindex"):
        copy = tmp_path / source.with_suffix(suffix).name
        copy.write_bytes(source.with_suffix(suffix).read_bytes())
        if suffix != ".log":
            damaged = bytearray(copy.read_bytes())
            damaged[3 if suffix == ".index" else 7] ^= 1
            copy.write_bytes(damaged)
    assert len(dump(*files_of(tmp_path)).complaints) >= 4
