"""A list of topics that is older than the logs, as one that was restored from a backup: nothing is lost, no epoch used twice."""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.records import Record, encode_batch
from stablelog.data_directory.catalog import CATALOG_FILE, read_catalog
from stablelog.log.files.epochs import LeaderEpochs
from stablelog.log.recovery.epoch_check import latest_epoch
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import DATA, batch, opened

EPOCHS = "leader-epoch-checkpoint"
LIST = DATA / CATALOG_FILE


def life(disk, topics=()):
    """A start, a record to each partition, and a stop. Returns the leader epoch and what readers get."""

    async def conversation():
        async with opened(disk, topics=topics) as desk:
            for partition in (0, 1):
                assert (await desk.produce(batch(b"x"), partition=partition)).error_code is ErrorCode.none
            await desk.durable()
            for one in desk.broker.partitions:
                one.log.prove_segments()
            assert not any(map(desk.broker.partitions.offline_in, desk.broker.topics))
            return desk.broker.topics.leader_epoch, [desk.values(partition=index) for index in (0, 1)]

    return asyncio.run(asyncio.wait_for(conversation(), 120))


@pytest.mark.parametrize("damage", ["none", "one file lost", "all files lost", "one file torn", "power cut"])
def test_a_broker_starts_with_an_older_list_and_uses_no_epoch_twice(damage, caplog):
    disk = SimDisk()
    life(disk, topics=("t",))
    older = disk.read_bytes(LIST)
    for _ in range(3):
        last_epoch, _ = life(disk)
    if damage == "power cut":
        disk.remove(DATA / ".kafka_cleanshutdown")
    if damage == "one file torn":
        disk.damage(DATA / "t-0" / EPOCHS, b"0\n")
    for name in {"one file lost": ("t-0",), "all files lost": ("t-0", "t-1")}.get(damage, ()):
        disk.lose(DATA / name / EPOCHS)
    disk.damage(LIST, older)
    epoch, values = life(disk)
    assert epoch == last_epoch + 1
    assert values == [[b"x"] * 5] * 2
    assert read_catalog(disk, DATA).leader_epoch == epoch
    assert "cluster.json has leader epoch 0, and the logs have 3: the file is an older copy" in caplog.text
    assert life(disk)[0] == epoch + 1
    for index in (0, 1):
        epochs = LeaderEpochs.decode(disk.read_bytes(DATA / f"t-{index}" / EPOCHS)).entries
        assert epochs == [(epoch, epoch) for epoch in range(6)]


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_an_epoch_that_no_batch_has_is_not_believed_and_the_file_is_rebuilt(clean):
    disk = SimDisk()
    life(disk, topics=("t",))
    life(disk)
    disk.damage(DATA / "t-0" / EPOCHS, b"0\n2\n0 0\n9 1\n")
    if not clean:
        disk.remove(DATA / ".kafka_cleanshutdown")
    assert life(disk) == (2, [[b"x"] * 3] * 2)
    assert LeaderEpochs.decode(disk.read_bytes(DATA / "t-0" / EPOCHS)).entries == [(0, 0), (1, 1), (2, 2)]


def partition(epochs, *batches):
    """A partition's directory with a log file for each list of (offset, epoch)."""
    disk = SimDisk()
    disk.make_dir(DATA / "t-0")
    if epochs is not None:
        disk.write_atomic(DATA / "t-0" / EPOCHS, LeaderEpochs(epochs).encode())
    for base, headers in batches:
        content = b"".join(
            encode_batch([Record(0, 0, None, b"value", ())], base_offset=offset, leader_epoch=epoch)
            for offset, epoch in headers
        )
        disk.write_atomic(DATA / "t-0" / f"{base:020d}.log", content)
    return disk


CASES = {
    "no file, no batch": (None, [(0, [])], 1),
    "a batch has it": ([(2, 0), (5, 1)], [(0, [(0, 2), (1, 5)])], 5),
    "no batch has it": ([(2, 0), (9, 1)], [(0, [(0, 2), (1, 5)])], 2),
    "no batch from where it begins": ([(2, 0), (5, 2)], [(0, [(0, 2), (1, 2)])], 5),
    "what it wrote is deleted": ([(2, 0), (5, 7)], [(90, [])], 5),
    "in a segment before the last": ([(2, 0), (5, 1)], [(0, [(0, 2), (1, 5)]), (2, [])], 5),
    "no file": (None, [(0, [(0, 2)]), (1, [(1, 5)]), (2, [])], 5),
    "the list knows": ([(0, 0), (1, 1)], [(0, [(0, 0), (1, 7)])], 1),
}


@pytest.mark.parametrize("case", CASES)
def test_an_epoch_counts_if_the_log_does_not_deny_it(case):
    epochs, batches, wanted = CASES[case]
    assert latest_epoch(partition(epochs, *batches), DATA / "t-0", 1) == wanted


@pytest.mark.parametrize("epochs", [None, [(2, 0), (5, 1)]])
def test_what_is_torn_or_damaged_in_a_log_file_says_no_epoch(epochs):
    disk = partition(epochs, (0, [(0, 2), (1, 5)]))
    path = DATA / "t-0" / f"{0:020d}.log"
    content = disk.read_bytes(path)
    for damaged in (content[:-1], content[:-1] + b"?"):
        disk.damage(path, damaged)
        assert latest_epoch(disk, DATA / "t-0", 1) == (2 if epochs is None else 5)  # of 5, nothing is left
    disk.damage(path, content + bytes(100))
    assert latest_epoch(disk, DATA / "t-0", 1) == 5
