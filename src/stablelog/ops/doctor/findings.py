"""Decides which facts about a machine, a data directory and a broker are findings, and what to do about each.

Every function is pure. A fact that is unknown is no finding.
"""

from collections.abc import Iterator
from typing import Final

from stablelog.coordinators.log_names import is_coordinator_log
from stablelog.data_directory.catalog import CATALOG_FILE
from stablelog.data_directory.clean_shutdown import CLEAN_SHUTDOWN_FILE
from stablelog.data_directory.meta_properties import META_FILE
from stablelog.data_directory.names import partition_named
from stablelog.log.verify import FileFinding
from stablelog.ops.doctor.facts import (
    BrokerFacts,
    DirectoryFacts,
    Finding,
    Limits,
    Rights,
    Versions,
    Volume,
)

MIB: Final = 1 << 20
# A partition of a commit-ordered topic needs up to four file descriptors, and connections need some, too.
DESCRIPTORS_PER_PARTITION: Final = 4
DESCRIPTORS_BESIDE: Final = 1024
# Large requests may take 256 MiB and a compaction 128 MiB, both by default. The rest is the program itself.
MEMORY_MIN: Final = 512 * MIB
# Responses to fetches map ranges of the log into memory, also ranges that other responses have mapped.
ADDRESS_SPACE_MIN: Final = 8192 * MIB
MAPPINGS_MIN: Final = 65_530  # Linux's default
# One segment of the default size: less space may be full within minutes.
FREE_MIN: Final = 1024 * MIB
# A clock that shows an earlier time has not been set since the machine's start. 2026-01-01 UTC.
CLOCK_MS_MIN: Final = 1_767_225_600_000
# A broker records the wall clock once a minute, and a read may come a moment after the clock was set by NTP.
CLOCK_TOLERANCE_MS: Final = 1000
NETWORK_FILE_SYSTEMS: Final = frozenset(
    [
        "9p",
        "afs",
        "ceph",
        "cifs",
        "fuse.glusterfs",
        "fuse.s3fs",
        "fuse.sshfs",
        "gfs2",
        "glusterfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "smb3",
        "smbfs",
    ]
)
VOLATILE_FILE_SYSTEMS: Final = frozenset(("tmpfs", "ramfs"))
DAMAGE_PAGE: Final = "docs/reference/damage.md says what the broker does without it"


def version_findings(versions: Versions) -> Iterator[Finding]:
    """Yield what is wrong with the program that runs."""
    if versions.is_optimized:
        yield Finding(
            "versions",
            "Python runs without assertions (-O or PYTHONOPTIMIZE), and a broker does not start so",
            "Run Python without -O, and unset PYTHONOPTIMIZE",
        )


def limit_findings(limits: Limits, partition_count: int) -> Iterator[Finding]:
    """Yield the limits that are too low for a broker with so many partitions."""
    files = DESCRIPTORS_BESIDE + DESCRIPTORS_PER_PARTITION * partition_count
    if limits.open_files_max is not None and limits.open_files_max < files:
        yield Finding(
            "limits",
            f"a process may open {limits.open_files_max} files, and a broker with {partition_count} partitions may "
            f"need {files}",
            "Raise the hard limit: LimitNOFILE of the service, or `ulimit -Hn` of the shell",
        )
    if limits.memory is not None and limits.memory < MEMORY_MIN:
        yield Finding(
            "limits",
            f"the machine or its control group has {limits.memory // MIB} MiB of memory, and a broker may need "
            f"{MEMORY_MIN // MIB} MiB",
            "Give it more memory, or lower queued.max.request.bytes and log.cleaner.dedupe.buffer.size",
        )
    if limits.address_space is not None and limits.address_space < ADDRESS_SPACE_MIN:
        yield Finding(
            "limits",
            f"a process has an address space of {limits.address_space // MIB} MiB, and a broker, which maps its logs into "
            f"memory, may need {ADDRESS_SPACE_MIN // MIB} MiB",
            "Remove the limit: `ulimit -v unlimited` in the shell, or LimitAS=infinity of the service",
        )
    if limits.mappings is not None and limits.mappings < MAPPINGS_MIN:
        yield Finding(
            "limits",
            f"a process may map {limits.mappings} ranges of files into memory, and Linux's default is {MAPPINGS_MIN}",
            f"Set it as root: sysctl vm.max_map_count={MAPPINGS_MIN}",
        )


def clock_findings(wall_ms: int) -> Iterator[Finding]:
    """Yield a finding if the machine's clock has not been set. `wall_ms` is its time, in ms since 1970."""
    if wall_ms < CLOCK_MS_MIN:
        yield Finding(
            "clock",
            "the machine's clock shows a time before this release was made",
            "Set the clock before a broker starts. Otherwise committed offsets may expire early",
        )


def volume_findings(volume: Volume) -> Iterator[Finding]:
    """Yield what is wrong with the file system of a data directory."""
    if volume.is_read_only:
        yield Finding(
            volume.path,
            "the file system is mounted read-only",
            "Mount it with the right to write. If the kernel did this after an error, its log (`dmesg`) says why",
        )
    if volume.file_system in NETWORK_FILE_SYSTEMS:
        yield Finding(
            volume.path,
            f"{volume.file_system} is a network file system: a broker on another machine may not see the lock, and the "
            "file server decides what a sync makes durable",
            "Use a disk of this machine",
        )
    if volume.file_system in VOLATILE_FILE_SYSTEMS:
        yield Finding(
            volume.path,
            f"{volume.file_system} is in memory: a restart of the machine loses all records",
            "Use a disk, unless the records are those of a test",
        )
    if volume.inodes_free == 0:
        yield Finding(
            volume.path, "the file system has no free inode, so that no file can be created", "Remove files"
        )
    yield from _space_findings(volume)


def _space_findings(volume: Volume) -> Iterator[Finding]:
    advice = "Make space: delete topics, lower their retention, or remove other files"
    if volume.is_full:
        yield Finding(volume.path, "the disk of the broker is full: it refuses new records", advice)
    elif volume.free is not None and volume.free < volume.reserve_missing:
        yield Finding(
            volume.path,
            f"{volume.free // MIB} MiB are free, and a broker accepts records only if its reserve and a margin fit, which "
            f"need {-(-volume.reserve_missing // MIB)} MiB",
            advice,
        )
    elif volume.free is not None and volume.free < FREE_MIN:
        yield Finding(
            volume.path,
            f"{volume.free // MIB} MiB are free, less than one segment of {FREE_MIN // MIB} MiB",
            advice,
        )


def directory_findings(facts: DirectoryFacts, wall_ms: int) -> Iterator[Finding]:
    """Yield what is wrong with a data directory. `wall_ms` is the time of the wall clock, in ms since 1970."""
    path = str(facts.path)
    if facts.failure:
        yield Finding(
            path,
            f"it cannot be read as a directory: {facts.failure}",
            "Name the data directory of the broker by --data, and run the command as the user of the broker",
        )
        return
    if facts.rights is not None:
        yield from _right_findings(path, facts.rights)
    if facts.refusal:
        yield Finding(path, "a broker does not use this directory", facts.refusal)
    yield from _lock_findings(facts)
    if facts.recorded_ms is not None and facts.recorded_ms - wall_ms > CLOCK_TOLERANCE_MS:
        yield Finding(
            path,
            f"the machine's clock is {(facts.recorded_ms - wall_ms) / 1000:.1f} s before the time at which a broker last "
            "used the directory",
            "Set the clock: new records get its time. If the clock was wrong then, nothing is to be done",
        )
    for fault in facts.faults:
        yield Finding(str(fault.path), fault.message, action_of(fault))


def _right_findings(path: str, rights: Rights) -> Iterator[Finding]:
    as_owner = f"Run the broker and its commands as the user {rights.owner}, who owns the directory"
    if not rights.is_usable:
        yield Finding(path, f"the user {rights.user} may not list it and create files in it", as_owner)
    elif rights.unusable:
        yield Finding(
            str(rights.first_unusable),
            f"the user {rights.user} may not read and write it"
            + (f", nor {rights.unusable - 1} others" if rights.unusable > 1 else ""),
            as_owner,
        )
    if rights.foreign:
        yield Finding(
            str(rights.first_foreign),
            f"it belongs to the user {rights.foreign_owner}, and the data directory to {rights.owner}"
            + (f"; so do {rights.foreign - 1} others" if rights.foreign > 1 else ""),
            f"Give the files to the user of the broker: chown -R {rights.owner} {path}",
        )
    for file in rights.exposed:
        yield Finding(
            str(file), "other users may read this file, which has secrets", f"Run: chmod 600 {file}"
        )


def _lock_findings(facts: DirectoryFacts) -> Iterator[Finding]:
    path = str(facts.path)
    if facts.lock == "unsupported":
        yield Finding(
            path,
            "the file system has no locks, so that two brokers could use the directory",
            "Use a file system with locks, such as that of a disk of this machine",
        )
    holder = facts.holder
    if holder is not None and holder.is_stopped:
        yield Finding(
            path,
            f"the process {holder.process_id} ({holder.command}) holds the lock and is stopped",
            f"Let it continue: kill -CONT {holder.process_id}. Or end it: kill -KILL {holder.process_id}",
        )


def broker_findings(facts: BrokerFacts, directory: DirectoryFacts | None) -> Iterator[Finding]:
    """Yield what is wrong with a broker. `directory` is a data directory of the same report; None if there is none."""
    if facts.failure:
        held = directory is not None and directory.lock == "held"
        yield Finding(
            f"broker {facts.bootstrap}",
            facts.failure,
            "Read the log of the broker: a process holds the lock of the data directory, so it runs or starts"
            if held
            else "Start the broker, or correct the address and the settings of the login",
        )
        return
    for refusal in facts.refusals:
        yield Finding(f"broker {facts.bootstrap}", refusal, "Use a user with this right")
    if facts.offline:
        yield Finding(
            f"broker {facts.bootstrap}",
            f"{facts.offline} of {facts.partitions} partitions are offline",
            "Read the log of the broker: it names each file that is damaged or missing",
        )
    if facts.volume is not None and facts.volume.is_full:
        yield from _space_findings(facts.volume)


def action_of(fault: FileFinding) -> str:
    """Return what to do about a fault that a verification of a data directory has found."""
    if "this release reads" in fault.message:
        return "Start the release that wrote it, or a later one"
    if fault.path.name == META_FILE and "the next start writes it again" in fault.message:
        return "Nothing: start the broker"
    if fault.path.name == CLEAN_SHUTDOWN_FILE:
        return "Nothing: the broker writes it again when it stops"
    if fault.path.name == CATALOG_FILE:
        return "Restore the file from a backup. An older copy is sufficient"
    for place in (fault.path, fault.path.parent):
        partition = partition_named(place.name)
        if partition is not None and is_coordinator_log(partition[0]):
            return f"Restore the whole directory {place} from a backup"
    return f"Restore it from a backup. {DAMAGE_PAGE}"
