"""Gathers facts about a data directory. Nothing is written, and a running broker may use the directory meanwhile."""

import contextlib
import dataclasses
import errno
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from stablelog.broker.directory.broker_time import read_broker_time
from stablelog.broker.directory.dynamic_settings import DynamicSettings
from stablelog.broker.durability.disk_reserve import margin_size
from stablelog.broker.settings.config import BrokerConfig, setting_of_broker
from stablelog.data_directory.catalog import Catalog, read_catalog
from stablelog.data_directory.clean_shutdown import CLEAN_SHUTDOWN_FILE
from stablelog.data_directory.foreign_directory import MOUNTED, refuse_foreign_directory
from stablelog.data_directory.incomplete_restore import check_is_restored
from stablelog.data_directory.names import RESERVE_FILE, partition_named
from stablelog.data_directory.registered_file import REGISTERED_FILES
from stablelog.env.local_disk import LocalDisk
from stablelog.env.lock import LOCK_FILE, LockState, LocksUnsupportedError, lock_state
from stablelog.errors import DamageError, DiskError, UnavailableError, UnknownFormatError, UsageError
from stablelog.log.verify import FileFinding
from stablelog.ops.doctor.facts import (
    DirectoryFacts,
    Lock,
    LockHolder,
    Rights,
    ShownSetting,
    Volume,
    shown_value,
)
from stablelog.ops.doctor.machine import read_text, user_name, volume
from stablelog.ops.doctor.proc_files import command_and_state, lock_holder
from stablelog.ops.verify import verify_data_directory

PRIVATE_FILES = tuple(kind.name for kind in REGISTERED_FILES if kind.is_private)
ROOT = 0
STOPPED_STATES = "Tt"  # stopped by a signal, or by a debugger


def directory_facts(path: Path) -> DirectoryFacts:
    """Return what a data directory is like. A path that is no directory, and one that cannot be read, is a fact, too."""
    try:
        found = path.stat()
    except OSError as error:
        return DirectoryFacts(path, failure=os.strerror(error.errno or errno.EIO))
    if not stat.S_ISDIR(found.st_mode):
        return DirectoryFacts(path, failure=os.strerror(errno.ENOTDIR))
    disk = LocalDisk(read_only=True)
    lock, holder = _lock(path)
    facts = DirectoryFacts(path, rights=_rights(path, found.st_uid), lock=lock, holder=holder)
    if not _may(path, os.R_OK | os.X_OK):
        return facts
    try:
        refuse_foreign_directory(disk, path)
        check_is_restored(disk, path)
    except UsageError as refused:
        return dataclasses.replace(facts, refusal=str(refused))
    except DiskError as error:
        return dataclasses.replace(facts, faults=(FileFinding(path, f"it cannot be read: {error}"),))
    catalog = None
    with contextlib.suppress(DamageError, DiskError, UnknownFormatError):
        catalog = read_catalog(disk, path)
    recorded = None
    with contextlib.suppress(DiskError):
        recorded = read_broker_time(disk, path)
    try:
        faults = tuple(verify_data_directory(disk, path))
    except (DiskError, FileNotFoundError) as error:
        faults = (FileFinding(path, f"it cannot be verified: {error}"),)
    return dataclasses.replace(
        facts,
        is_stopped_cleanly=disk.exists(path / CLEAN_SHUTDOWN_FILE),
        topics=None if catalog is None else len(catalog.topics),
        partitions=None if catalog is None else sum(one.partition_count for one in catalog.topics),
        recorded_ms=None if recorded is None else recorded[1],
        faults=faults,
        settings=tuple(_settings(disk, path, catalog)),
    )


def directory_volume(path: Path) -> Volume:
    """Return the file system of a data directory, with the disk reserve in it."""
    found = volume(path)
    wanted: int = BrokerConfig({})["stablelog.disk.reserve.bytes"]
    reserve = None
    with contextlib.suppress(OSError):
        reserve = (path / RESERVE_FILE).stat().st_size
    # A broker that has used the directory without a reserve has none that it could restore.
    is_used = os.path.exists(path / LOCK_FILE)
    missing = 0 if reserve is None and is_used else max(wanted - (reserve or 0), 0)
    return dataclasses.replace(found, reserve=reserve, reserve_missing=missing + margin_size(wanted))


def _rights(directory: Path, owner: int) -> Rights:
    """Return what this user may do with the files of a data directory and of its partitions. `owner` is the id of the
    directory's owner.
    """
    unusable, exposed = [], []
    owners: dict[Path, int] = {}
    for entry in _entries(directory):
        path = Path(entry.path)
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # A running broker deletes files.
        except OSError:
            unusable.append(path)
            continue
        owners[path] = found.st_uid
        needed = os.R_OK | os.W_OK | (os.X_OK if stat.S_ISDIR(found.st_mode) else 0)
        if not _may(path, needed) and os.path.lexists(path):
            unusable.append(path)
        if entry.name in PRIVATE_FILES and found.st_mode & (stat.S_IRGRP | stat.S_IROTH):
            exposed.append(path)
    # A volume of a container belongs to root, and the broker's user owns what is in it.
    if owner == ROOT and owners and ROOT not in owners.values():
        ((owner, _),) = Counter(owners.values()).most_common(1)
    foreign = [path for path, found in owners.items() if found != owner]
    return Rights(
        user_name(os.geteuid()),
        user_name(owner),
        is_usable=_may(directory, os.R_OK | os.W_OK | os.X_OK),
        unusable=len(unusable),
        first_unusable=min(unusable, default=None),
        foreign=len(foreign),
        first_foreign=min(foreign, default=None),
        foreign_owner=user_name(owners[min(foreign)]) if foreign else "",
        exposed=tuple(sorted(exposed)),
    )


def _may(path: Path | str, mode: int) -> bool:
    """Whether this process may use a file or directory in these ways (`os.R_OK` and others)."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _entries(directory: Path) -> Iterator["os.DirEntry[str]"]:
    """Yield the entries of a data directory and of the directories of its partitions. Those that cannot be listed have
    none.
    """
    try:
        with os.scandir(directory) as found:
            entries = list(found)
    except OSError:
        return
    for entry in entries:
        if entry.name == MOUNTED:
            continue  # It belongs to root on every file system that has it.
        yield entry
        if partition_named(entry.name) is not None and entry.is_dir(follow_symlinks=False):
            yield from _entries(Path(entry.path))


def _lock(directory: Path) -> tuple[Lock, LockHolder | None]:
    """Return whether a process holds the lock of a data directory, and the process if it is known."""
    try:
        state = lock_state(directory)
    except LocksUnsupportedError:
        return "unsupported", None
    except UnavailableError:
        return "missing", None  # The file cannot be read: the rights say so.
    if state is not LockState.HELD:
        return ("free" if state is LockState.FREE else "missing"), None
    with contextlib.suppress(OSError):
        file = (directory / LOCK_FILE).stat()
        device = os.major(file.st_dev), os.minor(file.st_dev)
        process_id = lock_holder(read_text(Path("/proc/locks")), *device, file.st_ino)
        if process_id is not None:
            found = command_and_state(read_text(Path(f"/proc/{process_id}/stat")))
            if found is not None:
                return "held", LockHolder(process_id, found[0], is_stopped=found[1] in STOPPED_STATES)
    return "held", None


def _settings(disk: LocalDisk, directory: Path, catalog: Catalog | None) -> Iterator[ShownSetting]:
    """Yield the settings in the files of a data directory. Topics and groups are counted, not named."""
    try:
        own, defaults, groups = DynamicSettings(disk, directory).load()
    except (DamageError, DiskError, UnknownFormatError):
        own, defaults, groups = {}, {}, {}
    for values, source in ((own, "dynamic broker"), (defaults, "dynamic default")):
        for name, value in sorted(values.items()):
            yield ShownSetting(name, shown_value(name, value, is_secret=_is_secret(name)), source)
    topics = [] if catalog is None else [topic.configs for topic in catalog.topics]
    yield from _counted(topics, "topic")
    yield from _counted(list(groups.values()), "group")


def _counted(owners: Sequence[Mapping[str, str]], what: str) -> Iterator[ShownSetting]:
    pairs = Counter(pair for one in owners for pair in one.items())
    for (name, value), count in sorted(pairs.items()):
        source = f"{count} {what}{'' if count == 1 else 's'}"
        yield ShownSetting(name, shown_value(name, value, is_secret=False), source)


def _is_secret(name: str) -> bool:
    """Whether the table of settings calls a setting secret. An unknown one counts as secret."""
    try:
        return setting_of_broker(name).is_secret
    except UsageError:
        return True
