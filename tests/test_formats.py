"""The tables of docs/formats.md, the structs of the code and the examples say the same."""

import importlib
import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[1] / "docs" / "formats.md").read_text()
STRUCT = re.compile(
    r"`(stablelog(?:\.\w+)+\.[A-Z_]+)`\.?[^\n]*(?:\n[^|\n][^\n]*)*\n\n(\|[^\n]*\n\|[-| ]*\n(?:\|[^\n]*\n)+)"
)
FOUND = STRUCT.findall(TEXT)


def test_every_struct_has_a_table():
    assert len(FOUND) == 22, [name for name, _ in FOUND]


@pytest.mark.parametrize(("name", "table"), FOUND, ids=[name for name, _ in FOUND])
def test_a_table_says_what_the_struct_does(name, table):
    module, _, attribute = name.rpartition(".")
    struct = getattr(importlib.import_module(module), attribute)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    layout = "".join(row[1] for row in rows)
    assert struct.format == ">" + layout
    at = 0
    for row in rows:
        assert int(row[0]) == at, row
        at += __import__("struct").calcsize(">" + row[1])
    assert at == struct.size


@pytest.mark.parametrize(
    "example", re.findall(r"`([0-9a-f]{16,})`", TEXT) + re.findall(r"^    ([0-9a-f]{100,})$", TEXT, re.M)
)
def test_the_examples_are_read(example):
    from stablelog.batch.header import crc_holds, read_header
    from stablelog.coordinators.transactions.joint.records import JointState, decode_joint
    from stablelog.log.indexes.offset_index import OffsetIndex
    from stablelog.log.indexes.time_index import TimeIndex
    from stablelog.log.indexes.transaction_index import TransactionIndex
    from stablelog.log.producer_state.producer_table import ProducerTable
    from stablelog.log.producer_state.snapshots import decode_snapshot

    content = bytes.fromhex(example)
    match len(content):
        case 8:
            assert OffsetIndex(0, content)[0] == (6, 0)
        case 12:
            assert TimeIndex(0, content)[0] == (1_700_000_000_000, 6)
        case 34:
            assert TransactionIndex(content)[0] == (5, 5, 7, 8)
        case 58:
            assert decode_joint(content) == JointState(7, 42, update_ms=1_700_000_000_000)
        case 56:
            assert next(iter(decode_snapshot(content, 0))).last_sequence == 1
        case 88:
            (producer,) = ProducerTable.of_blocks([content])
            assert (producer.producer_id, producer.producer_epoch, producer.txn_first_offset) == (5, 2, -1)
            assert [(one.last_sequence, one.last_offset) for one in producer.batches] == [(0, 5), (1, 6)]
        case _:
            assert crc_holds(content, 0, read_header(content))


def test_the_example_of_broker_json_is_read():
    from stablelog.broker.directory.dynamic_settings import META_LINE, decode_settings, encode_settings

    [example] = re.findall(r'^    (\{"version":1,"settings".*)\n    ([0-9a-f]{8})$', TEXT, re.M)
    content = "\n".join([*example, ""]).encode()
    assert encode_settings(decode_settings(content)) == content
    assert f"`{META_LINE}`" in TEXT


def test_the_table_of_versions_is_the_codes():
    from stablelog.broker.directory import catalog, directory_signs, dynamic_settings, formats
    from stablelog.coordinators.transactions import records as commit_log
    from stablelog.log.files import epochs, kafka_files, log_start
    from stablelog.log.indexes import summary, transaction_index
    from stablelog.log.producer_state import snapshots
    from stablelog.tier import manifest
    from stablelog.views import index_format

    (table,) = re.findall(r"\| file or record \|.*\n\|[-|]*\n((?:\|.*\n)+)", TEXT)
    told = {row.split("|")[1].strip(): int(row.split("|")[3]) for row in table.splitlines()}
    by_kind = {**formats.COMMIT_LOG_VALUES, "offset": formats.OFFSETS_LOG_VALUES[1]}
    assert told == {
        "`cluster.json`": catalog.VERSION,
        "`meta.properties`": kafka_files.META_VERSION,
        "`broker.json`": dynamic_settings.SETTINGS_VERSION,
        "`.kafka_cleanshutdown`": directory_signs.CLEAN_SHUTDOWN_VERSION,
        "offset checkpoints": kafka_files.CHECKPOINT_VERSION,
        "`partition.metadata`": kafka_files.METADATA_VERSION,
        "`leader-epoch-checkpoint`": epochs.VERSION,
        "`log-start-offset`, `view-start-offset`": log_start.VERSION,
        "`remote-manifest`": manifest.PARTED_VERSION,
        "`remote-manifest-part-ID`": manifest.PART_VERSION,
        "`remote-log-start`": log_start.VERSION,
        "`.summary`": summary.VERSION,
        "`.snapshot`": snapshots.SNAPSHOT_VERSION,
        "`.producers`": snapshots.PRODUCERS_VERSION,
        "`.txnindex`": transaction_index.VERSION,
        "`.commitsummary`": index_format.VERSION,
        "commit log, a transactional id": by_kind[commit_log.TRANSACTION_KIND][1],
        "commit log, a transaction group": by_kind[commit_log.GROUP_KIND][1],
        "commit log, a joint commit's key": by_kind[commit_log.JOINT_KIND][1],
        "commit log, keys of the kinds 10000 to 10099": commit_log.JOINT_KIND,
        "offsets log, a committed offset": by_kind["offset"][1],
        "offsets log, the metadata of a group": formats.OFFSETS_LOG_VALUES[2][1],
    }
    assert {10_000, 10_099} <= set(commit_log.OWN_KINDS) <= set(range(10_000, 10_100))


def test_the_example_of_a_log_start_is_the_codes():
    from stablelog.log.files.log_start import encode_log_start

    example = "".join(f"    {line}\n" for line in encode_log_start(31).decode().splitlines())
    assert example in TEXT
