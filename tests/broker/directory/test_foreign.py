"""A broker does not fill a directory of other files."""

from pathlib import Path

import pytest

from stablelog.broker.directory.foreign import OWN_FILES, refuse_foreign
from stablelog.errors import UsageError
from stablelog.testing.sim_disk import SimDisk

DIRECTORY = Path("/data")


def disk_with(*names):
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    for name in names:
        if name.endswith("/"):
            disk.make_dir(DIRECTORY / name)
        else:
            disk.write_atomic(DIRECTORY / name, b"")
    return disk


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("lost+found/",),
        (".hidden",),
        *((name, "notes.txt") for name in OWN_FILES),
        ("cluster.json.tmp",),
        ("flights-0/", "notes.txt"),
    ],
    ids=" ".join,
)
def test_a_new_directory_or_one_with_a_brokers_file_is_accepted(names):
    refuse_foreign(disk_with(*names), DIRECTORY)
    refuse_foreign(SimDisk(), DIRECTORY)


@pytest.mark.parametrize(
    "names", [("notes.txt",), ("src/", "a.py"), (".git/", "README.md"), ("store/",)], ids=" ".join
)
def test_a_directory_of_other_files_is_refused_by_name(names):
    with pytest.raises(
        UsageError, match=r"/data is not empty and no data directory: it has '(notes|a.py|README|s)"
    ):
        refuse_foreign(disk_with(*names), DIRECTORY)
