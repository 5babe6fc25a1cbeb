"""The list of topics: what is damaged or gone is named, and never taken for a directory of another program."""

import asyncio
import json
import random
import uuid
from pathlib import Path

import pytest
from crc32c import crc32c

from stablelog.data_directory.catalog import (
    CATALOG_FILE,
    Catalog,
    DeletedTopic,
    ListedTopic,
    encode_catalog,
    read_catalog,
)
from stablelog.data_directory.clean_shutdown import CLEAN_SHUTDOWN_FILE
from stablelog.data_directory.meta_properties import META_FILE
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.files.log_start import LOG_START_FILE
from stablelog.testing.sim_disk import SimDisk
from stablelog.testing.sim_faults import SimulatedCrash
from tests.broker.desk import DATA, batch, opened

TOPICS = [ListedTopic("t", uuid.UUID(int=7), 2, {"retention.ms": "5", "stablelog.order": "commit"})]
PATH = DATA / CATALOG_FILE


def test_what_is_written_is_read():
    disk = SimDisk()
    disk.make_dir(DATA)
    assert read_catalog(disk, DATA) is None
    disk.write_atomic(PATH, encode_catalog("cluster", 4, 2, TOPICS))
    assert read_catalog(disk, DATA) == Catalog("cluster", 4, 2, TOPICS)
    deleted = [DeletedTopic("t", uuid.UUID(int=8), 3)]
    disk.write_atomic(PATH, encode_catalog("cluster", 4, 2, TOPICS, deleted))
    assert read_catalog(disk, DATA) == Catalog("cluster", 4, 2, TOPICS, deleted)
    disk.write_atomic(PATH, encode_catalog("cluster", 4, None, TOPICS))
    assert read_catalog(disk, DATA) == Catalog("cluster", 4, None, TOPICS)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_file_is_the_json_of_its_members_and_their_crc(count):
    """Its entries are encoded one by one, and a release that encoded them all at once has written the same bytes."""
    names = ["b", 'a-\N{SNOWMAN}-"quoted"', "c\\\n"][:count]
    topics = [
        ListedTopic(name, uuid.UUID(int=7), 2, {"z": "1", "a": '"'} if name > "b" else {}) for name in names
    ]
    content = {
        "version": 2,
        "cluster_id": 'a "cluster"',
        "leader_epoch": 4,
        "established_epoch": None,
        "topics": {
            one.name: {"id": str(one.topic_id), "partitions": 2, "configs": one.configs} for one in topics
        },
    }
    checked = json.dumps(content, sort_keys=True, separators=(",", ":"))
    crc = f"{crc32c(checked.encode()):08x}"
    found = encode_catalog('a "cluster"', 4, None, topics)
    assert found == json.dumps({**content, "crc": crc}, indent=1).encode()


@pytest.mark.parametrize("change", ["create", "configure", "delete"])
def test_a_change_of_one_topic_encodes_no_other_topic(monkeypatch, change):
    dumps, sizes = json.dumps, []

    def counted(*args, **kwargs):
        text = dumps(*args, **kwargs)
        sizes.append(len(text))
        return text

    async def encoded_size(count):
        async with opened(topics=[f"topic-{number:02d}" for number in range(count)], partitions=1) as desk:
            topic_files = desk.broker.topic_files
            changed = desk.broker.topics.get("topic-00")
            with monkeypatch.context() as patched:
                patched.setattr(json, "dumps", counted)
                sizes.clear()
                if change == "create":
                    topic_files.create("new", 1, {})
                elif change == "configure":
                    topic_files.configure(changed, {"retention.ms": "5000"})
                else:
                    topic_files.unlist("topic-00")
                    desk.broker.topics.end_reservation(changed)
            return sum(sizes)

    assert asyncio.run(encoded_size(20)) == asyncio.run(encoded_size(2))


def test_version_1_is_refused():
    disk = SimDisk()
    disk.make_dir(DATA)
    disk.write_atomic(PATH, b'{"version": 1, "leader_epoch": 3, "topics": {}}')
    with pytest.raises(
        UnknownFormatError, match=rf"^{PATH}: the list of topics of version 1; no release has written"
    ):
        read_catalog(disk, DATA)


@pytest.mark.parametrize("bits", [0x01, 0x40])
def test_no_flipped_bit_goes_unnoticed(bits):
    disk = SimDisk()
    disk.make_dir(DATA)
    content = encode_catalog("cluster", 4, 2, TOPICS)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= bits
        disk.write_atomic(PATH, bytes(changed))
        try:
            found = read_catalog(disk, DATA)
        except (DamageError, UnknownFormatError):
            continue
        assert found == Catalog("cluster", 4, 2, TOPICS), (place, bytes(changed))  # a space was changed


def conversation(disk, *, topics=("t",)):
    """A broker's life: each start and end is one."""

    async def life():
        async with opened(disk, topics=topics) as desk:
            if topics:
                assert (await desk.produce(batch(b"x"))).error_code.value == 0
                desk.broker.topic_files.create("ordered", 1, {"stablelog.order": "commit"})

    asyncio.run(life())


@pytest.mark.parametrize("what", ["all", "no partition files", "meta.properties"])
def test_a_directory_that_has_lost_its_list_is_refused_and_stays_as_it_is(what):
    disk = SimDisk()
    conversation(disk)
    disk.lose(PATH)
    for path in list(disk.files(DATA)):
        ours = path.name in (LOG_START_FILE, "view-start-offset") or path.suffix not in (".log", ".metadata")
        if path.parent != DATA and (what == "meta.properties" and ours):
            disk.lose(path)
        if path.name == META_FILE and what == "no partition files":
            disk.lose(path)
    before = {path: disk.read_bytes(path) for path in disk.files()}
    with pytest.raises(DamageError, match=r"cluster\.json is missing"):
        conversation(disk, topics=())
    assert {path: disk.read_bytes(path) for path in disk.files()} == before


def test_a_lost_partition_directory_keeps_its_partition_offline_and_is_named(caplog):
    disk = SimDisk()
    conversation(disk)
    disk.remove_dir(DATA / "t-0")
    disk.sync_dir(DATA)

    async def life():
        async with opened(disk, topics=()) as desk:
            assert desk.broker.partitions.of_topic(desk.broker.topics.named("t")).keys() == {1}
            assert desk.broker.partitions.of_topic(desk.broker.topics.named("ordered")).keys() == {0}

    asyncio.run(life())
    assert f"{DATA / 't-0'} is missing" in caplog.text
    assert not disk.exists(DATA / "t-0")


def test_a_lost_meta_properties_is_written_again_with_the_clusters_id(caplog):
    disk = SimDisk()
    conversation(disk)
    before = disk.read_bytes(DATA / META_FILE)
    disk.lose(DATA / META_FILE)
    conversation(disk, topics=())
    assert disk.read_bytes(DATA / META_FILE) == before
    assert "meta.properties again; the reason is that the file is gone" in caplog.text


def test_a_meta_properties_of_another_cluster_is_refused():
    disk = SimDisk()
    conversation(disk)
    text = disk.read_bytes(DATA / META_FILE).replace(b"cluster.id=", b"cluster.id=X")
    disk.damage(DATA / META_FILE, text)
    with pytest.raises(DamageError, match=r"meta\.properties says cluster\.id=X"):
        conversation(disk, topics=())


@pytest.mark.extended
def test_a_take_over_is_completed_and_a_crash_in_between_does_no_harm():
    whole = SimDisk()
    conversation(whole)
    crash_at, done = 0, False
    while not done:
        crash_at += 1
        disk = not_established(whole)
        disk.crash_at = disk.steps + crash_at
        try:
            conversation(disk, topics=())
            done = True
        except SimulatedCrash:
            pass
        disk.crash_at = None
        conversation(disk, topics=())
        found = read_catalog(disk, DATA)
        assert found.established_epoch is not None
        assert disk.exists(DATA / "t-0" / LOG_START_FILE)
        assert disk.exists(DATA / "ordered-0" / "view-start-offset")
    assert crash_at > 10
    assert read_catalog(not_established(whole), DATA).established_epoch is None


def not_established(disk):
    """A copy of a directory whose take-over has not come to the files of the partitions."""
    copy = disk.crash(random.Random(0))  # all of it is durable
    found = read_catalog(copy, DATA)
    copy.damage(PATH, encode_catalog(found.cluster_id, found.leader_epoch, None, found.topics))
    for path in list(copy.files(DATA)):
        if path.name in (LOG_START_FILE, "view-start-offset"):
            copy.lose(Path(path))
    return copy


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        (
            META_FILE,
            b"version=1",
            b"version=0",
            "meta.properties again; the reason is that the file says version=0",
        ),
        (
            META_FILE,
            b"version=1\n",
            b"",
            "meta.properties again; the reason is that the file does not say its version",
        ),
        (
            META_FILE,
            b"node.id=1\n",
            b"",
            "meta.properties again; the reason is that the file does not name the node",
        ),
        (CLEAN_SHUTDOWN_FILE, b"brokerEpoch", b"brokerEpoci", "cleanshutdown is damaged"),
        (CLEAN_SHUTDOWN_FILE, b"}", b"", "cleanshutdown is damaged"),
    ],
)
def test_a_sign_of_the_directory_that_has_changed_is_named_and_written_again(name, old, new, told, caplog):
    disk = SimDisk()
    conversation(disk)
    before = disk.read_bytes(DATA / name)
    disk.damage(DATA / name, before.replace(old, new))
    conversation(disk, topics=())
    assert told in caplog.text
    assert disk.read_bytes(DATA / name) == before
