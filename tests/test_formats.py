"""The tables of docs/reference/formats.md, the structs of the code and the examples say the same."""

import dataclasses
import importlib
import json
import re

import pytest

from tests import documented

TEXT = documented.page("formats.md")
STRUCT = re.compile(
    r"`(stablelog(?:\.\w+)+\.[A-Z_]+)`\.?[^\n]*(?:\n[^|\n][^\n]*)*\n\n(\|[^\n]*\n\|[-| ]*\n(?:\|[^\n]*\n)+)"
)
FOUND = STRUCT.findall(TEXT)
LOCAL, _, TIERED = TEXT.partition("\n## Tiered storage\n")


def test_every_struct_has_a_table():
    assert len(FOUND) == 24, [name for name, _ in FOUND]


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
    "example", re.findall(r"`([0-9a-f]{16,})`", LOCAL) + re.findall(r"^    ([0-9a-f]{100,})$", LOCAL, re.M)
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
            (producer,) = ProducerTable.from_blocks([content])
            assert (producer.producer_id, producer.producer_epoch, producer.txn_first_offset) == (5, 2, -1)
            assert [(one.last_sequence, one.last_offset) for one in producer.batches] == [(0, 5), (1, 6)]
        case _:
            assert crc_holds(content, 0, read_header(content))


@pytest.mark.parametrize("version", [1, 2])
def test_the_example_of_broker_json_is_read(version):
    from stablelog.data_directory.settings_file import META_LINE, decode_settings, encode_settings

    [example] = re.findall(rf'^    (\{{"version":{version},"settings".*)\n    ([0-9a-f]{{8}})$', TEXT, re.M)
    content = "\n".join([*example, ""]).encode()
    assert encode_settings(*decode_settings(content)) == content
    assert f"`{META_LINE}`" in TEXT


def test_the_example_of_acls_json_is_read():
    from stablelog.data_directory.acl_file import decode_acls, encode_acls
    from stablelog.data_directory.registered_file import ACLS

    [example] = re.findall(r'^    (\{"version":1,"acls".*)\n    ([0-9a-f]{8})$', TEXT, re.M)
    content = "\n".join([*example, ""]).encode()
    assert encode_acls(decode_acls(content)) == content
    assert f"`{ACLS.meta_line}`" in TEXT


def test_the_example_of_users_json_is_read():
    from stablelog.data_directory.registered_file import USERS
    from stablelog.data_directory.user_file import decode_users, encode_users
    from stablelog.security.credentials import is_password

    [example] = re.findall(r'^    (\{"version":1,"secret".*)\n    ([0-9a-f]{8})$', TEXT, re.M)
    content = "\n".join([*example, ""]).encode()
    credentials = decode_users(content)
    assert is_password(credentials.find_any("alice"), "alice-secret")
    assert encode_users(credentials) == content
    assert f"`{USERS.meta_line}`" in TEXT


def test_the_example_of_quotas_json_is_read():
    from stablelog.data_directory.quota_file import decode_quotas, encode_quotas
    from stablelog.data_directory.registered_file import QUOTAS

    [example] = re.findall(r'^    (\{"version":1,"quotas".*)\n    ([0-9a-f]{8})$', TEXT, re.M)
    content = "\n".join([*example, ""]).encode()
    assert encode_quotas(decode_quotas(content)) == content
    assert f"`{QUOTAS.meta_line}`" in TEXT


def test_the_example_of_a_log_start_is_the_codes():
    from stablelog.log.files.log_start import encode_log_start

    example = "".join(f"    {line}\n" for line in encode_log_start(31).decode().splitlines())
    assert example in TEXT


def test_the_example_of_the_sequences_before_a_segment_is_the_codes():
    from stablelog.commit_order.first_sequence import FirstSequence, encode_first_sequences

    content = encode_first_sequences([FirstSequence(31, 7), FirstSequence(52, 9)])
    assert "".join(f"    {line}\n" for line in content.decode().splitlines()) in TEXT


# -- tiered storage ----------------------------------------------------------------------------------------------------

BLOCK = r":\n\n((?:    [^\n]+\n)+)"


def bytes_of(block):
    """The bytes of an example: lines of hexadecimal digits, or text."""
    text = "".join(line.strip() for line in block.splitlines())
    return text.encode() if text.startswith("{") else bytes.fromhex(text)


def examples_in_the_store():
    """The examples of objects, by key."""
    found = re.findall(rf"Example,(?:[^`:]|\n)*`([^`]+)`{BLOCK}", TIERED)
    return {key: bytes_of(block) for key, block in found}


def test_the_examples_are_the_objects_and_events_that_brokers_write():
    """If a format has changed: `python -m tests.broker.tiering.example` prints what the document has to have."""
    from tests.broker.tiering.example import example

    objects, events = example()
    told = examples_in_the_store()
    assert told == {key: objects.get(key) for key in told}
    assert {
        int(kind): bytes_of(block) for kind, block in re.findall(rf"Example of kind (\d)[^:]*{BLOCK}", TIERED)
    } == events


ID = r"[\w-]{22}"
WORDS = {
    "TOPIC": "t",
    "TOPIC_ID": ID,
    "PARTITION": "0",
    "SEGMENT_ID": ID,
    "PART_ID": ID,
    "PIN_ID": ID,
    "BASE": r"\d{20}",
    "EPOCH": r"\d{10}",
    "NUMBER": r"\d{12}",
}


def test_each_kind_of_object_has_an_example():
    (table,) = re.findall(r"\| key \| content \|\n\|[-|]*\n((?:\|.*\n)+)", TIERED)
    patterns = [
        re.sub(r"[A-Z][A-Z_]+", lambda word: WORDS[word[0]], re.escape(row.split("`")[1]))
        for row in table.splitlines()
    ]
    keys = list(examples_in_the_store())
    # The example of a pin has no key of its own. `deleted` has the content of `cluster`, and `settings` of `broker.json`.
    patterns = [pattern for pattern in patterns if not re.search("/pins/|/deleted|settings/", pattern)]
    assert [pattern for pattern in patterns if not any(re.fullmatch(pattern, key) for key in keys)] == []
    assert [key for key in keys if not any(re.fullmatch(pattern, key) for pattern in patterns)] == []
    kinds = {content[6] for key, content in examples_in_the_store().items() if "/manifest/" in key}
    assert kinds == {0, 1, 2}, "claims, manifests and fences"


def test_the_example_is_read_as_a_partition():
    """A read-committed reader finds the aborted transaction of the first segment, by the objects in the document alone."""
    from stablelog.batch.header import headers_in
    from stablelog.env.objects.retrying_store import ObjectStore
    from stablelog.testing.sim_objects import SimObjects
    from stablelog.tier.chain import ChainName, LinkKind, decode_link
    from stablelog.tier.index_object import IndexKind, indexes_of
    from stablelog.tier.names import INDEXES
    from stablelog.tier.prefix import Prefix
    from stablelog.tier.remote_log import RemoteLog
    from tests.tier.tiered_log import PARTITION, Loaded, Tier

    objects = examples_in_the_store()
    prefix = Prefix(ObjectStore(SimObjects(objects=dict(objects))))
    manifest = prefix.last_manifest(PARTITION)
    assert prefix.cluster_id() == manifest.cluster_id == "cluster"
    assert (manifest.log_start, len(manifest.segments), len(manifest.parts)) == (5, 2, 1)
    _, payload = decode_link(objects[PARTITION.chain_key(ChainName(1, 1))])
    first, _ = manifest.segments
    assert prefix.read_manifest(PARTITION, payload)[0].segments == (first,)
    assert decode_link(objects[PARTITION.chain_key(ChainName(1, 2))])[0] is LinkKind.FENCE

    key = PARTITION.segment_key(first.base_offset, first.segment_id, INDEXES)
    kinds = sorted(indexes_of(objects[key], key))
    assert (
        f"with files of the kinds 0 (it is empty), {', '.join(map(str, kinds[1:-1]))} and {kinds[-1]},"
        in TIERED
    )
    assert not indexes_of(objects[key], key)[IndexKind.OFFSETS]

    tier = Tier()
    tier.loaded = Loaded(objects)
    remote = RemoteLog(PARTITION, manifest, tier.loaded, lambda _start: None)
    found = tier.loading(lambda: remote.read(5, 8, 1 << 20, at_least_one=True))
    headers = [header for _, header in headers_in(b"".join(found.buffers))]
    assert [(header.base_offset, header.is_control) for header in headers] == [(5, False), (7, True)]
    aborted, is_complete = tier.loading(lambda: remote.aborted_in(5, 8))
    assert [(txn.producer_id, txn.first_offset, txn.last_offset) for txn in aborted] == [(5, 5, 7)]
    assert is_complete


def test_the_tables_of_fields_are_those_of_the_objects():
    import uuid

    from stablelog.batch.records import decode_records
    from stablelog.tier.published import Published

    objects = examples_in_the_store()
    part = next(content for key, content in objects.items() if "/part/" in key)
    whole, with_part = (objects[key] for key in sorted(objects) if key.endswith("-000000000001"))
    heads = {"manifest": [whole[31:], with_part[31:]], "part": [part]}
    names = {"cluster": set(json.loads(objects["cluster"]))}
    for name, contents in heads.items():
        records = [next(iter(decode_records(content, 0))) for content in contents]
        assert {record.key for record in records} == {name.encode()}
        names[name] = {field for record in records for field in json.loads(record.value)}
    published = [
        json.loads(next(iter(decode_records(one, 0))).value)["published"] for one in heads["manifest"]
    ]
    left_out = Published(
        0, 0, 1, {}, uuid.UUID(int=7), 0, view_start=1
    ).to_json()  # the examples are not in commit order
    names["published"] = {field for one in (*published, left_out) for field in one}
    tables = re.findall(r"\| field of `(\w+)` \|.*\n\|[-|]*\n((?:\|.*\n)+)", TIERED)
    assert {name: set(re.findall(r"^\| `(\w+)`", table, re.M)) for name, table in tables} == names


def test_the_table_of_fields_of_messages_is_the_codes():
    from stablelog.tier import records

    (table,) = re.findall(r"\| field \| type \| kinds \|.*\n\|[-|]*\n((?:\|.*\n)+)", TIERED)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    for kind, message in enumerate(records.KINDS):
        told = [row[1] for row in rows if str(kind) in row[2].split(", ")]
        assert told == list(types_of(message)), message


def types_of(message):
    """The types of a message's fields, with those of nested messages in place of them."""
    for field in dataclasses.fields(message):
        if dataclasses.is_dataclass(field.type):
            yield from types_of(field.type)
        else:
            yield field.metadata.get("kafka_type", "array")


def test_the_summary_is_at_the_place_that_the_document_says():
    from stablelog.tier.records import decode_record

    ((words, block),) = re.findall(rf"Example of kind 1([^:]*){BLOCK}", TIERED)
    content = bytes_of(block)
    summary = decode_record(content).custom_metadata
    size, place = map(int, re.findall(r"\d+", words))
    assert (content.index(summary), len(summary)) == (place, size)
