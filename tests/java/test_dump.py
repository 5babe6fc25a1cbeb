"""Apache Kafka's own dump tool reads every file that the broker writes, and says of each record what we say."""

import json
import re

import pytest

import stablelog
from stablelog.batch.header import HEADER, read_header
from stablelog.batch.markers import read_marker
from stablelog.batch.records import decode_records
from tests.java.dump import dump, files_of
from tests.java.load import (
    commit_offsets,
    create_topic,
    producer,
    send,
    write_everything,
    write_worked_example,
)

# One worker makes the directory that all of them read.
pytestmark = [pytest.mark.java, pytest.mark.xdist_group("dump"), pytest.mark.filterwarnings("ignore")]

TOPIC, EXAMPLE, IN_COMMIT_ORDER, IN_A_GROUP = "everything", "worked-example", "in-commit-order", "in-a-group"
TRANSACTION_STATUS = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
)
GAP = re.compile(r"^Non-consecutive offsets in|^\s+\d+ is followed by \d+$")
SMALL = {"segment.bytes": "3000", "index.interval.bytes": "300", "segment.index.bytes": "1200"}


@pytest.fixture(scope="module")
def written(kafka_jars, module_path):
    """A data directory after a mixed load, a kill -9, a restart, more load and a stop."""
    data = module_path / "data"
    with stablelog.serve(data, group_initial_rebalance_delay_ms=0) as broker:
        create_topic(broker.bootstrap, TOPIC, SMALL)
        held = write_everything(broker.bootstrap, TOPIC)
        commit_offsets(broker.bootstrap, TOPIC)
        create_topic(broker.bootstrap, EXAMPLE, {})
        write_worked_example(broker.bootstrap, EXAMPLE)
        create_topic(broker.bootstrap, IN_COMMIT_ORDER, {**SMALL, "stablelog.order": "commit"})
        write_everything(broker.bootstrap, IN_COMMIT_ORDER, leave_open=False)
        create_topic(broker.bootstrap, IN_A_GROUP, {"stablelog.group": "payments"})
        one = producer(broker.bootstrap, **{"transactional.id": "payments/one"})
        one.begin_transaction()
        send(one, IN_A_GROUP, [b"paid"])
        one.commit_transaction(30)
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


def test_the_worked_example_of_the_abort_index(written):
    """P2 was aborted from 2 to 5 while P1 was open since 6; P1 from 6 to 9 while P2 was open since 7."""
    found = dump(*files_of(written / f"{EXAMPLE}-0"))
    assert found.complaints == []
    entries = [
        (int(row["firstOffset"]), int(row["lastOffset"]), int(row["lastStableOffset"]))
        for _, row in found.of(".txnindex")
    ]
    assert entries == [(2, 5, 6), (6, 9, 7)]


def test_a_topic_in_commit_order_is_one_of_kafka_with_gaps(written):
    """A commit takes the offsets of its view, which no record has in the log: as after compaction."""
    directory = written / f"{IN_COMMIT_ORDER}-0"
    found = dump(*files_of(directory))
    assert found.complaints
    assert [line for line in found.complaints if not GAP.search(line)] == []
    markers = [header for header, _ in batches(directory) if header.is_control]
    assert max(header.last_offset_delta for header in markers) > 1
    assert len(found.of(".log")) == len(list(batches(directory)))


# The examples of docs/reference/formats.md: transactional data, its abort, and what the files beside the log say of them.
EXAMPLES = {
    "00000000000000000000.log": "0000000000000005000000420000000302151ba14c0010000000010000018bcfe568000000018bcfe56800000000000000"
    "00050002000000000000000210000000026b0276000e00000201027700"
    "00000000000000070000004200000003028dc466a70030000000000000018bcfe568000000018bcfe5680000000000000000050002ffffffff0000000120000000"
    "08000000000c00000000000900",
    "00000000000000000000.index": "0000000600000000",
    "00000000000000000000.timeindex": "0000018bcfe5680000000006",
    "00000000000000000000.txnindex": "00000000000000000005000000000000000500000000000000070000000000000008",
    "00000000000000000008.snapshot": "0001aea893c80000000100000000000000050002000000010000000000000006000000010000018bcfe5680000000009ffffffffffffffff",
}


def test_the_examples_of_the_formats_are_kafkas(kafka_jars, tmp_path):
    for name, content in EXAMPLES.items():
        (tmp_path / name).write_bytes(bytes.fromhex(content))
    found = dump(*files_of(tmp_path))
    assert found.complaints == []
    assert [(row["offset"], row.get("key"), row.get("payload")) for row in found.records()] == [
        ("5", "k", "v"),
        ("6", None, "w"),
        ("7", None, None),
    ]
    assert found.records()[2]["endTxnMarker"] == "ABORT"
    assert found.records()[2]["coordinatorEpoch"] == "9"
    (entry,) = [row for _, row in found.of(".txnindex")]
    assert entry == {
        "version": "0",
        "producerId": "5",
        "firstOffset": "5",
        "lastOffset": "7",
        "lastStableOffset": "8",
    }
    (producer_row,) = [row for _, row in found.of(".snapshot")]
    assert (producer_row["producerId"], producer_row["lastSequence"], producer_row["lastOffset"]) == (
        "5",
        "1",
        "6",
    )


def test_its_index_checks_pass(written):
    files = [path for path in files_of(written / f"{TOPIC}-0") if path.suffix in (".index", ".timeindex")]
    for option in ("--index-sanity-check", "--verify-index-only"):
        assert dump(*files, options=(option,)).complaints == [], option


def test_the_commit_log_of_a_group_is_one_too(written):
    log = written / "__transaction_state.payments-0"
    found = dump(*files_of(log), options=("--transaction-log-decoder",))
    assert found.complaints == []
    rows = [json.loads(row["payload"])["data"] for row in found.records() if row["key"].startswith("{")]
    assert [TRANSACTION_STATUS[row["transactionStatus"]] for row in rows] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "CompleteCommit",
    ]
    assert dump(*files_of(written / f"{IN_A_GROUP}-0")).complaints == []


def test_the_commit_log_is_a_transaction_log_of_kafka(written):
    found = dump(*files_of(written / "__transaction_state-0"), options=("--transaction-log-decoder",))
    assert found.complaints == []
    latest = {}
    for row in found.records():
        if row["key"].startswith("{"):  # what is ours alone, Kafka passes over
            name = json.loads(row["key"])["data"]["transactionalId"]
            if row["payload"].startswith("{"):
                latest[name] = json.loads(row["payload"])["data"]
            else:  # a group that has begun takes its ids over from the default group
                del latest[name]
    statuses = {name: TRANSACTION_STATUS[data["transactionStatus"]] for name, data in latest.items()}
    assert statuses == {
        "offsets": "CompleteAbort",
        f"{EXAMPLE}-P1": "CompleteAbort",
        f"{EXAMPLE}-P2": "CompleteCommit",
        f"{IN_COMMIT_ORDER}-one": "CompleteCommit",
        f"{IN_COMMIT_ORDER}-two": "CompleteCommit",
        f"{TOPIC}-one": "CompleteCommit",
        f"{TOPIC}-two": "CompleteCommit",
        f"{TOPIC}-undecided": "Ongoing",
    }
    partitions = latest[f"{TOPIC}-undecided"]["transactionPartitions"]
    assert {row["topic"]: row["partitionIds"] for row in partitions} == {
        TOPIC: [0],
        "__consumer_offsets": [0],
    }


def test_the_offsets_log_is_one_of_kafka(written):
    found = dump(*files_of(written / "__consumer_offsets-0"), options=("--offsets-decoder",))
    assert found.complaints == []
    told = []
    for row in found.records():
        if "endTxnMarker" in row:
            told.append(row["endTxnMarker"])
        elif '"type":"1"' in row["key"] and '"readers"' in row["key"]:
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
