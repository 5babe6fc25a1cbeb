"""Readers of the texts in Linux's /proc: which file system a path is on, and which process holds a lock.

Source: proc(5), proc_pid_mountinfo(5), proc_locks(5).
"""

import re
from pathlib import PurePath
from typing import Final, NamedTuple

_OCTAL: Final = re.compile(r"\\([0-7]{3})")
# A line of /proc/locks: kind, mode, process id, device and inode. A line of a waiting process has an arrow.
_LOCK: Final = re.compile(
    r"^\d+: (?:FLOCK|POSIX|OFDLCK) +\w+ +\w+ +(-?\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.M
)


class Mount(NamedTuple):
    """A mounted file system: its type, and whether it is mounted read-only."""

    file_system: str
    is_read_only: bool


def mount_of(mountinfo: str, path: PurePath) -> Mount | None:
    """Return the file system that has a path, by the text of `/proc/self/mountinfo`; None if no line has it. Of several
    file systems at one place, the last one counts.
    """
    found, depth = None, -1
    for line in mountinfo.splitlines():
        before, separator, behind = line.partition(" - ")
        fields, kinds = before.split(" "), behind.split(" ")
        if not separator or len(fields) < 6 or len(kinds) < 3:
            continue
        place = PurePath(_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        if path.is_relative_to(place) and len(place.parts) >= depth:
            is_read_only = "ro" in fields[5].split(",") or "ro" in kinds[2].split(",")
            found, depth = Mount(kinds[0], is_read_only), len(place.parts)
    return found


def lock_holder(locks: str, major: int, minor: int, inode: int) -> int | None:
    """Return the id of the process that holds a lock of a file, by the text of `/proc/locks`.

    Args:
        locks: the text.
        major: the major number of the file's device.
        minor: the minor number of the file's device.
        inode: the inode of the file.

    Returns:
        The id; None if no process holds a lock, or if the process is in another namespace.
    """
    for process_id, found_major, found_minor, found_inode in _LOCK.findall(locks):
        place = int(found_major, 16), int(found_minor, 16), int(found_inode)
        if place == (major, minor, inode) and int(process_id) > 0:
            return int(process_id)
    return None


def command_and_state(stat: str) -> tuple[str, str] | None:
    """Return the name of a process's program and its state in one letter, by the text of `/proc/PID/stat`; None if the
    text is not whole. The name may contain spaces and parentheses.
    """
    before, separator, behind = stat.rpartition(") ")
    _, opened, command = before.partition(" (")
    return (command, behind[:1]) if separator and opened and behind else None
