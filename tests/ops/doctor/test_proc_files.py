"""The texts of /proc, with examples of their manual pages and of machines."""

from pathlib import PurePosixPath

import pytest

from stablelog.ops.doctor.proc_files import Mount, command_and_state, lock_holder, mount_of

MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /tmp rw,nosuid - tmpfs tmpfs rw,size=1024k
31 22 0:27 / /srv/log rw,relatime master:1 - nfs4 server:/log rw,vers=4.2
32 22 0:28 / /srv/with\040space ro,relatime - ext4 /dev/vdb rw
33 22 0:29 / /srv/broken rw,relatime - ext4 /dev/vdc ro,errors=remount-ro
34 22 0:30 / /tmp rw - xfs /dev/vdd rw
not a line
"""
LOCKS = """1: FLOCK  ADVISORY  WRITE 1423 fe:00:10650245 0 EOF
2: POSIX  ADVISORY  WRITE 28361 fe:0a:10641781 0 EOF
2: -> POSIX  ADVISORY  WRITE 777 fe:00:5 0 EOF
3: FLOCK  ADVISORY  WRITE 0 fe:00:99 0 EOF
4: LEASE  ACTIVE    READ  5 fe:00:98 0 EOF
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/var/lib/stablelog", Mount("ext4", False)),
        ("/srv/log", Mount("nfs4", False)),
        ("/srv/log/a/b", Mount("nfs4", False)),
        ("/srv/logs", Mount("ext4", False)),
        ("/srv/with space/data", Mount("ext4", True)),
        ("/srv/broken/data", Mount("ext4", True)),
    ],
)
def test_the_longest_place_has_the_path(path, expected):
    assert mount_of(MOUNTS, PurePosixPath(path)) == expected


def test_of_several_file_systems_at_one_place_the_last_one_counts():
    assert mount_of(MOUNTS, PurePosixPath("/tmp/x")) == Mount("xfs", False)


def test_without_a_line_the_file_system_is_unknown():
    assert mount_of("", PurePosixPath("/srv")) is None


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ((0xFE, 0, 10650245), 1423),
        ((0xFE, 10, 10641781), 28361),
        ((0xFE, 0, 10641781), None),  # another device
        ((0xFE, 0, 5), None),  # it only waits
        ((0xFE, 0, 99), None),  # a process of another namespace
        ((0xFE, 0, 98), None),  # a lease is no lock
    ],
)
def test_the_holder_of_a_lock(place, expected):
    assert lock_holder(LOCKS, *place) == expected


@pytest.mark.parametrize(
    ("stat", "expected"),
    [
        ("12 (python) S 1 12 12 0", ("python", "S")),
        ("12 (a (b) c) T 1 12", ("a (b) c", "T")),
        ("", None),
        ("12 (python) ", None),
    ],
)
def test_the_command_and_the_state_of_a_process(stat, expected):
    assert command_and_state(stat) == expected
