"""What the doctor gathers: values about the machine, a data directory and a running broker, and the findings.

No value is a secret: `shown_value` leaves out the values of secret settings.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from stablelog.log.verify import FileFinding

HIDDEN: Final = "(hidden)"
# Settings whose values are hidden, although the broker does not call them secret: brokers of other makers, and
# settings that this release does not know.
_SECRET_NAME: Final = re.compile(
    r"password|passphrase|pwd|secret|credential|jaas|token|license|user\.info|\.key$", re.IGNORECASE
)
# A login before a host, the fragment, a parameter or the query of a URL: each may have a secret or be a signature.
_SECRET_PART: Final = re.compile(r"[@#]|;\s*[\w.-]+\s*=|://[^\s?]*\?")

Lock = Literal["missing", "free", "held", "unsupported"]


class Finding(NamedTuple):
    """Something that is wrong, or soon will be.

    Attributes:
        subject: what it concerns: a path, or the part of the report that has its values.
        problem: what is wrong.
        action: what to do.
    """

    subject: str
    problem: str
    action: str


class ShownSetting(NamedTuple):
    """A setting of the report.

    Attributes:
        setting: its name.
        value: its value; HIDDEN in place of a secret.
        source: where the value is from, such as "static broker" or "2 topics".
    """

    setting: str
    value: str
    source: str


def shown_value(name: str, value: str | None, *, is_secret: bool) -> str:
    """Return the value of a setting as a report may show it: HIDDEN if the setting is secret, if its name is one that
    secrets have, or if the value has a part that may be one: a login, a fragment, a parameter or the query of a URL.

    Args:
        name: the name of the setting.
        value: the value; None if the broker left it out or there is none.
        is_secret: whether the broker or the table of settings calls the setting secret.
    """
    if is_secret or _SECRET_NAME.search(name):
        return HIDDEN
    return HIDDEN if _SECRET_PART.search(value or "") else value or ""


@dataclass(frozen=True)
class Versions:
    """The versions of what runs.

    Attributes:
        stablelog: the release.
        python: the version of Python, with the name of the implementation.
        system: the operating system and the processor.
        libraries: the version of each installed library that stablelog can use, by its name.
        is_optimized: whether Python runs without assertions (`-O`).
    """

    stablelog: str
    python: str
    system: str
    libraries: Mapping[str, str]
    is_optimized: bool = False


@dataclass(frozen=True)
class Limits:
    """The limits of the process that runs the command. A broker that the same user starts has the same ones.

    Attributes:
        open_files: the soft limit of file descriptors; None if there is none.
        open_files_max: the hard limit, which a broker uses; None if there is none.
        address_space: the limit of the address space in bytes; None if there is none.
        memory: the memory in bytes that the machine or its control group allows; None if unknown.
        mappings: how many ranges of files a process may map into memory; None if unknown.
    """

    open_files: int | None
    open_files_max: int | None
    address_space: int | None
    memory: int | None
    mappings: int | None


@dataclass(frozen=True)
class Volume:
    """The file system of a data directory, or the one that a broker reports.

    Attributes:
        path: the data directory.
        file_system: its type, such as "ext4"; empty if unknown.
        total: its size in bytes; None if unknown.
        free: how many bytes may still be written; None if unknown.
        inodes_free: how many files may still be created; None if the file system does not count them.
        is_read_only: whether it is mounted without the right to write.
        reserve: the size of the file `disk-reserve` in bytes; None if there is none.
        reserve_missing: how many bytes must be free before the broker accepts writes: what `disk-reserve` lacks of its
            default size, and the margin beside it.
        is_full: whether a running broker says that its disk is full.
    """

    path: str
    file_system: str = ""
    total: int | None = None
    free: int | None = None
    inodes_free: int | None = None
    is_read_only: bool = False
    reserve: int | None = None
    reserve_missing: int = 0
    is_full: bool = False


@dataclass(frozen=True)
class Rights:
    """What a user may do with the files of a data directory.

    Attributes:
        user: the name of the user who runs the command.
        owner: the name of the user who owns the directory; of most files if root owns the directory and none of its files.
        is_usable: whether the user may list the directory and create files in it.
        unusable: how many of its files and directories the user may not read or write.
        first_unusable: the first of them.
        foreign: how many of them another user owns than the directory.
        first_foreign: the first of them.
        foreign_owner: the name of its owner.
        exposed: files with secrets that other users may read.
    """

    user: str
    owner: str
    is_usable: bool = True
    unusable: int = 0
    first_unusable: Path | None = None
    foreign: int = 0
    first_foreign: Path | None = None
    foreign_owner: str = ""
    exposed: tuple[Path, ...] = ()


@dataclass(frozen=True)
class LockHolder:
    """The process that holds the lock of a data directory.

    Attributes:
        process_id: its id.
        command: the name of its program.
        is_stopped: whether it is stopped, as by SIGSTOP or a debugger, and will not continue by itself.
    """

    process_id: int
    command: str
    is_stopped: bool


@dataclass(frozen=True)
class DirectoryFacts:
    """A data directory.

    Attributes:
        path: the directory.
        failure: why it cannot be used as a directory, in the words of the operating system; empty if it can.
        refusal: why a broker does not use it, as of a directory with files of another program; empty if it does.
        rights: what the user may do with its files; None if it cannot be used.
        lock: whether a process holds its lock.
        holder: the process that holds the lock; None if there is none, or if it is unknown.
        is_stopped_cleanly: whether the last broker has stopped cleanly.
        topics: the number of its topics; None if there is no list of topics, or no whole one.
        partitions: the number of its partitions; None likewise.
        recorded_ms: the wall clock when a broker last recorded it; None if it did not.
        faults: what a verification of the directory's own files has found.
        settings: the settings in its files.
    """

    path: Path
    failure: str = ""
    refusal: str = ""
    rights: Rights | None = None
    lock: Lock = "missing"
    holder: LockHolder | None = None
    is_stopped_cleanly: bool = False
    topics: int | None = None
    partitions: int | None = None
    recorded_ms: int | None = None
    faults: tuple[FileFinding, ...] = ()
    settings: tuple[ShownSetting, ...] = ()


@dataclass(frozen=True)
class BrokerFacts:
    """A running broker.

    Attributes:
        bootstrap: the addresses by which it was asked.
        failure: why no broker responds, or why it accepts no request; empty if one does.
        refusals: the requests that it refused, each with the reason.
        brokers: the address of each broker of the cluster, by its id.
        topics: the number of topics that the user may describe; None if unknown.
        partitions: the number of their partitions; None if unknown.
        offline: how many of them are offline; None if unknown.
        volume: the file system of the data directory that it reports; None if it reports none.
        settings: its settings, without those that have their default.
    """

    bootstrap: str
    failure: str = ""
    refusals: tuple[str, ...] = ()
    brokers: Mapping[int, str] | None = None
    topics: int | None = None
    partitions: int | None = None
    offline: int | None = None
    volume: Volume | None = None
    settings: tuple[ShownSetting, ...] = ()
