"""A start looks first whether this release reads everything that the broker needs; nothing is written, damage is left alone.

That a real broker refuses each file of a later release is proven with directories that a broker has written
(tests/golden/test_newer_formats.py).
"""

import struct
from pathlib import Path

import pytest

from stablelog.batch.header import CONTROL, write_crc
from stablelog.batch.records import Record, encode_batch
from stablelog.coordinators.consumer_groups.records import (
    OVERTAKEN_BY_TAG,
    REPEATED_TAG,
    OffsetValue,
    encode_group_key,
    encode_offset_key,
    encode_offset_value,
)
from stablelog.coordinators.record_fields import tagged_fields
from stablelog.coordinators.transactions.records import group_key, joint_key, transaction_key
from stablelog.data_directory.formats import check_formats, check_partition_formats, newer_formats
from stablelog.data_directory.registered_file import encode_json
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.testing.sim_disk import SimDisk

DATA = Path("/data")
COMMIT_LOG, OFFSETS_LOG = "__transaction_state-0", "__consumer_offsets-0"
LOG = f"{0:020d}.log"
TOMORROW = {  # each with the version that it says
    "cluster.json": (b'{"version": 3}', 3),
    "meta.properties": (b"version=2\n", 2),
    "broker.json": (encode_json(4, {}), 4),
    "acls.json": (encode_json(2, {}), 2),
    "users.json": (encode_json(2, {}), 2),
    "quotas.json": (encode_json(2, {}), 2),
    ".kafka_cleanshutdown": (b'{"version":1,"brokerEpoch":1}', 1),
    "log-start-offset-checkpoint": (b"1\n0\n", 1),
    "cleaner-offset-checkpoint": (b"1\n0\n", 1),
    "recovery-point-offset-checkpoint": (b"1\n0\n", 1),
    "replication-offset-checkpoint": (b"1\n0\n", 1),
}


def disk_with(files):
    disk = SimDisk()
    disk.make_dir(DATA)
    for name, content in files.items():
        disk.make_dir((DATA / name).parent)
        disk.write_atomic(DATA / name, content)
    return disk


def found_in(files):
    """The files that are named, relative to the directory, with the place and the version of each error."""
    disk = disk_with(files)
    before = {path: disk.read_bytes(path) for path in disk.files(DATA)}
    found = [
        (str(path.relative_to(DATA)), error.place, error.found) for path, error in newer_formats(disk, DATA)
    ]
    assert {path: disk.read_bytes(path) for path in disk.files(DATA)} == before, "nothing is written"
    return found


def log_of(*records, base_offset=0):
    return encode_batch([Record(0, 0, key, value) for key, value in records], base_offset=base_offset)


# -- files of the directory --------------------------------------------------------------------------------------------


def test_an_empty_directory_is_read():
    check_formats(disk_with({}), DATA)


@pytest.mark.parametrize("name", TOMORROW)
def test_a_file_of_a_later_release_is_named_with_its_version(name):
    content, version = TOMORROW[name]
    assert found_in({name: content}) == [(name, f"/data/{name}", version)]


def test_all_such_files_are_named_and_a_start_is_refused_with_the_first():
    files = {name: content for name, (content, _) in TOMORROW.items()}
    assert [name for name, _, _ in found_in(files)] == list(TOMORROW)
    with pytest.raises(
        UnknownFormatError, match=r"^/data/cluster\.json: the list of topics of version 3; this release"
    ):
        check_formats(disk_with(files), DATA)


@pytest.mark.parametrize("name", TOMORROW)
@pytest.mark.parametrize("content", [b"", b"\xff", b"{}", b"[]"])
def test_damage_is_left_to_who_reads_the_file(name, content):
    check_formats(disk_with({name: content}), DATA)


def test_a_list_of_topics_of_before_the_first_release_is_named_too():
    assert found_in({"cluster.json": b'{"version": 1}'}) == [("cluster.json", "/data/cluster.json", 1)]


# -- the coordinators' logs --------------------------------------------------------------------------------------------

RECORDS = {
    "transactional id": (COMMIT_LOG, transaction_key("x"), 2),
    "group of transactions": (COMMIT_LOG, group_key("pay"), 1),
    "joint commit": (COMMIT_LOG, joint_key("", "x"), 3),
    "committed offset": (OFFSETS_LOG, encode_offset_key("g", "t", 0), 5),
    "consumer group": (OFFSETS_LOG, encode_group_key("g"), 5),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_of_a_later_release_is_named_with_its_offset(kind):
    log, key, version = RECORDS[kind]
    known = log_of((key, None))
    later = log_of((key, None), (key, struct.pack(">h40x", version)), base_offset=1)
    name = f"{log}/{LOG}"
    assert found_in({name: known + later}) == [(name, f"/data/{name}, offset 2", version)]


def test_a_kind_of_record_that_only_a_later_release_knows_is_named():
    key = struct.pack(">h", 10_002) + b"\0\1x"
    name = f"{COMMIT_LOG}/{LOG}"
    assert found_in({name: log_of((key, b"value"))}) == [(name, f"/data/{name}, offset 0", 10_002)]


def test_a_committed_offset_with_a_field_of_an_earlier_program_is_named():
    """Only the whole value shows the field, so each value with tagged fields is read."""
    key = encode_offset_key("g", "t", 0)
    plain = encode_offset_value(OffsetValue(1, -1, "", 0, is_repeated=True))
    strange = plain.removesuffix(tagged_fields([(REPEATED_TAG, b"")])) + tagged_fields(
        [(OVERTAKEN_BY_TAG, bytes(8))]
    )
    name = f"{OFFSETS_LOG}/{LOG}"
    assert found_in({name: log_of((key, plain))}) == []
    ((file, place, _),) = found_in({name: log_of((key, plain), (key, strange))})
    assert (file, place) == (name, f"/data/{name}, offset 1")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (transaction_key("x"), None),
        (transaction_key("x"), struct.pack(">h40x", 1)),
        (struct.pack(">h", 3) + b"\0\1x", struct.pack(">h", 999)),
        (None, b"value"),
    ],
    ids=["a tombstone", "the version of this release", "a kind of Kafka's that is not read", "no key"],
)
def test_other_records_are_passed_over(key, value):
    assert found_in({f"{COMMIT_LOG}/{LOG}": log_of((key, value))}) == []


def test_what_stands_behind_damage_or_in_a_control_batch_is_not_looked_at():
    later = log_of((transaction_key("x"), struct.pack(">h40x", 2)))
    control = bytearray(later)
    control[22] |= CONTROL
    write_crc(control)
    damaged = bytearray(log_of((transaction_key("y"), None)))
    damaged[-1] ^= 1
    for before in (control, damaged + later, later[:-1]):
        assert found_in({f"{COMMIT_LOG}/{LOG}": bytes(before)}) == []


def test_of_one_log_the_first_such_file_is_named_and_each_log_is_looked_at():
    later = log_of((transaction_key("x"), struct.pack(">h40x", 2)))
    behind = log_of((transaction_key("x"), struct.pack(">h40x", 2)), base_offset=1)
    files = {
        f"{COMMIT_LOG}/{LOG}": later,
        f"{COMMIT_LOG}/{1:020d}.log": behind,
        f"__transaction_state.pay-0/{LOG}": later,
    }
    assert [name for name, _, _ in found_in(files)] == [
        f"{COMMIT_LOG}/{LOG}",
        f"__transaction_state.pay-0/{LOG}",
    ]


def test_a_file_of_a_coordinators_partition_is_named():
    files = {f"{COMMIT_LOG}/partition.metadata": b"version: 1\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA"}
    name = f"{COMMIT_LOG}/partition.metadata"
    assert found_in(files) == [(name, f"/data/{name}", 1)]


def test_partitions_of_other_topics_do_not_keep_the_broker_from_starting():
    metadata = b"version: 1\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA"
    assert found_in({"flights-0/partition.metadata": metadata, "__transaction_state": b"no directory"}) == []
    disk = disk_with({"flights-0/partition.metadata": metadata})
    with pytest.raises(
        UnknownFormatError, match=r"^/data/flights-0/partition\.metadata: .* of version 1; this release"
    ):
        check_partition_formats(disk, DATA / "flights-0")


def test_damage_of_a_partition_that_a_start_repairs_is_passed_over():
    check_partition_formats(disk_with({"flights-0/partition.metadata": b"x"}), DATA / "flights-0")


def test_a_damaged_start_of_the_view_is_an_error():
    with pytest.raises(DamageError, match="view-start-offset"):
        check_partition_formats(disk_with({"flights-0/view-start-offset": b"x"}), DATA / "flights-0")
