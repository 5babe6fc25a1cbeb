"""The names of a partition's files, and files of other names beside them."""

import asyncio
import random

import pytest
from kio.schema.errors import ErrorCode

from stablelog.env.local_disk import LocalDisk
from stablelog.log.files.names import is_log, is_partition_file, is_snapshot, is_summary
from stablelog.log.verify import verify_directory
from stablelog.ops.inspect import files_of, inspect_file
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import DATA, batch, opened

OFFSET = f"{7:020d}"
STRAY = [
    "1.log",
    "²" * 20 + ".log",
    "٠" * 20 + ".log",
    "0" * 19 + ".log",
    "0" * 21 + ".log",
    "9" * 20 + ".log",
    "notes.log",
    "notes.log.swap",
    "notes.log.cleaned",
    "notes.swap",
    "notes.deleted",
    "notes.tmp",
    "notes.summary",
    "1.summary",
    "²" * 20 + ".snapshot",
    "5.producers",
    "3.index",
    f"{OFFSET}.log.copy",
    f"{OFFSET}",
    "leader-epoch-checkpoint.old",
]


def test_what_a_partition_has_is_known():
    for suffix in (
        ".log",
        ".index",
        ".timeindex",
        ".txnindex",
        ".summary",
        ".snapshot",
        ".producers",
        ".cut",
        ".cut.12",
    ):
        for more in ("", ".deleted", ".cleaned", ".swap", ".tmp"):
            assert is_partition_file(f"{OFFSET}{suffix}{more}")
    for name in (
        "leader-epoch-checkpoint",
        "partition.metadata",
        "log-start-offset",
        "view-start-offset",
        "log-start-sequence",
    ):
        assert is_partition_file(name)
        assert is_partition_file(f"{name}.tmp")
    assert is_log(f"{OFFSET}.log")
    assert is_log(f"{2**63 - 1}.log".zfill(24))
    assert is_snapshot(f"{OFFSET}.snapshot")
    assert is_summary(f"{OFFSET}.summary")
    assert not is_summary(f"{OFFSET}.log")
    assert not any(
        is_partition_file(name) or is_log(name) or is_snapshot(name) or is_summary(name) for name in STRAY
    )


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("name", [*STRAY, "all of them"])
def test_a_file_of_another_name_is_named_and_left_alone(name, clean, caplog):
    disk = SimDisk()
    strays = STRAY if name == "all of them" else [name]

    async def conversation():
        async with opened(disk, topics=("t",) if not disk.exists(DATA) else ()) as desk:
            assert (await desk.produce(batch(b"x"))).error_code is ErrorCode.none
            await desk.durable()
            desk.broker.partitions.require("t", 0).log.prove_segments()
            return desk.values(), disk.crash(random.Random(0))

    _, killed = asyncio.run(conversation())
    if not clean:
        disk = killed
    for stray in strays:
        disk.write_atomic(DATA / "t-0" / stray, b"\0\1x")
    disk.sync_dir(DATA / "t-0")
    assert asyncio.run(conversation())[0] == [b"x", b"x"]
    assert all(disk.read_bytes(DATA / "t-0" / stray) == b"\0\1x" for stray in strays)
    line = next(message for message in caplog.messages if "not files of a partition" in message)
    assert f"{DATA / 't-0'} contains" in line
    assert f"{min(strays)}" in line
    assert list(verify_directory(disk, DATA / "t-0")) == []


def test_inspect_passes_over_other_names(tmp_path):
    for name in (*STRAY, f"{OFFSET}.log"):
        (tmp_path / name).write_bytes(b"")
    disk = LocalDisk()
    assert [path.name for path in files_of(disk, tmp_path)] == [f"{OFFSET}.log"]
    assert inspect_file(disk, tmp_path / f"{OFFSET}.log", records=False).problem is None
