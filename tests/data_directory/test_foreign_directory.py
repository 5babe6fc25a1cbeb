"""A broker does not fill a directory of other files."""

import os
from pathlib import Path

import pytest

from stablelog.data_directory.catalog import encode_catalog
from stablelog.data_directory.foreign_directory import OWN_NAMES, UNFINISHED, refuse_foreign_directory
from stablelog.data_directory.meta_properties import META_FILE, encode_meta
from stablelog.data_directory.registered_file import REGISTERED_FILES, encode_json
from stablelog.env.local_disk import LocalDisk
from stablelog.errors import UsageError
from stablelog.testing.sim_disk import SimDisk

DIRECTORY = Path("/data")
LOG = "00000000000000000000.log"
WRITTEN = {  # files that a broker writes, with the content that it writes
    META_FILE: encode_meta("cluster", 1, ()),
    "cluster.json": encode_catalog("cluster", 1, 1, ()),
    **{kind.name: encode_json(1, {}) for kind in REGISTERED_FILES},
}


def disk_with(*names, **contents):
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    for name in names:
        path = DIRECTORY / name
        if name.endswith("/"):
            disk.make_dir(path)
        else:
            disk.make_dir(path.parent)
            disk.write_atomic(path, WRITTEN.get(name, b""))
    for name, content in contents.items():
        disk.write_atomic(DIRECTORY / name, content)
    return disk


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("lost+found/",),
        (".hidden",),
        *((name, "notes.txt") for name in (*OWN_NAMES, *WRITTEN, *sorted(UNFINISHED))),
        (f"flights-0/{LOG}", "notes.txt"),
        ("flights-0/partition.metadata", "notes.txt"),
        (f"flights-0.0123456789abcdef0123456789abcdef-delete/{LOG}.deleted", "notes.txt"),
    ],
    ids=" ".join,
)
def test_a_new_directory_or_one_with_what_a_broker_has_written_is_accepted(names):
    refuse_foreign_directory(disk_with(*names), DIRECTORY)
    refuse_foreign_directory(SimDisk(), DIRECTORY)


@pytest.mark.parametrize(
    "names",
    [
        ("notes.txt",),
        ("src/", "a.py"),
        (".git/", "README.md"),
        ("store/",),
        ("ImageMagick-6/policy.xml", "notes.txt"),
        ("backup-2026/",),
        ("dbus-1",),
        (f"reports/{LOG}",),
        ("backup-1/partition.metadata.txt",),
        ("disk-reserve.md",),
    ],
    ids=" ".join,
)
def test_a_directory_of_other_files_is_refused_by_name(names):
    with pytest.raises(
        UsageError,
        match=rf"/data is not a data directory: it contains '({'|'.join(names).replace('/', '|')})",
    ):
        refuse_foreign_directory(disk_with(*names), DIRECTORY)


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("content", [b"", b"{}", b'{"users": []}\n', b"version=1\n", b"\xff\x00"])
def test_a_file_of_another_program_with_the_name_of_a_brokers_file_proves_nothing(name, content):
    with pytest.raises(UsageError, match="no file of a broker"):
        refuse_foreign_directory(disk_with("a.txt", **{name: content}), DIRECTORY)


def test_pipes_and_links_to_nothing_prove_nothing_and_are_not_read(tmp_path):
    for name in WRITTEN:
        os.mkfifo(tmp_path / name)
    for name in ("other", "b-1"):
        (tmp_path / name).symlink_to(tmp_path / "gone")
    with pytest.raises(UsageError, match="no file of a broker"):
        refuse_foreign_directory(LocalDisk(), tmp_path)
    for name in WRITTEN:
        (tmp_path / name).unlink()
        (tmp_path / name).symlink_to(tmp_path / "gone")
    with pytest.raises(UsageError, match="no file of a broker"):
        refuse_foreign_directory(LocalDisk(), tmp_path)
