"""A small file of the data directory that is registered in `meta.properties`: there a line says that the file exists,
so that its loss is noticed. The dynamic settings, the ACLs, the users and the quotas each have such a file.

The file has two lines: JSON with a version, and the CRC-32C of that line in eight hex digits. The broker replaces it as
a whole. Without the line in `meta.properties`, the broker would take a lost file for one that was never written, and
start with other settings, or without ACLs.

Format: docs/reference/formats.md, "broker.json".
"""

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from stablelog.crc32c import crc32c
from stablelog.data_directory.meta_properties import META_FILE
from stablelog.env.disk import Disk, FileWriter
from stablelog.errors import (
    DamageError,
    DiskError,
    RefusedError,
    adding_path,
    in_words,
    refuse_unknown_version,
)
from stablelog.json_text import parse_json

log = logging.getLogger(__name__)

Content = TypeVar("Content")


class FileKind(NamedTuple):
    """One kind of registered file: a small file whose existence a line in `meta.properties` records, so that its loss
    is noticed.

    Attributes:
        name: the name of the file.
        key: the key of the line in `meta.properties` that says that the file exists.
        what: a short description of the content, for error messages: `the broker's settings`.
        why: a longer description of the content, for the error message about a lost file: `the settings that were
            changed while the broker ran`.
        version: the greatest version of the format that this release reads.
        is_private: whether only the owner of the file may read it.
    """

    name: str
    key: str
    what: str
    why: str
    version: int
    is_private: bool = False

    @property
    def meta_line(self) -> str:
        """The line of `meta.properties` that registers the file."""
        return f"{self.key}={self.name}"


SETTINGS: Final = FileKind(
    "broker.json",
    key="stablelog.dynamic.settings",
    what="the broker's dynamic settings",
    why="the settings that were changed while the broker ran",
    version=3,
)
ACLS: Final = FileKind("acls.json", key="stablelog.acls", what="the ACLs", why="the ACLs", version=1)
USERS: Final = FileKind(
    "users.json",
    key="stablelog.users",
    what="the users' credentials",
    why="the credentials of users",
    version=1,
    is_private=True,
)
QUOTAS: Final = FileKind(
    "quotas.json", key="stablelog.quotas", what="the clients' quotas", why="the quotas of clients", version=1
)
REGISTERED_FILES: Final = (SETTINGS, ACLS, USERS, QUOTAS)


def encode_json(version: int, members: Mapping[str, object]) -> bytes:
    """Encode the content of a registered file: a line of JSON with the version and these members, and a line with its
    CRC.
    """
    return with_crc(json.dumps({"version": version, **members}, separators=(",", ":")).encode())


def with_crc(text: bytes) -> bytes:
    """Return the content of a registered file: the line `text` of JSON, and after it the line with its CRC."""
    return text + b"\n%08x\n" % crc32c(text)


def decode_json(kind: FileKind, content: bytes, read: Callable[[int, Mapping[str, Any]], Content]) -> Content:
    """Decode the content of a registered file.

    Args:
        kind: the kind of the file.
        content: the bytes of the file.
        read: converts the version and the members of the JSON object. For members that are not valid, it may raise
            ValueError, KeyError, TypeError or AttributeError.

    Raises:
        UnknownFormatError: a later release has written the file.
        DamageError: the file is damaged.
    """
    text, _, crc = content.removesuffix(b"\n").rpartition(b"\n")
    if crc != b"%08x" % crc32c(text):
        raise DamageError("the CRC in the file does not match its content")
    try:
        members = parse_json(text)
        version = members["version"]
        refuse_unknown_version(kind.what, version, kind.version)
        if type(version) is not int or version < 1:
            raise DamageError(
                f"the file has version {version}, and this release reads versions 1 to {kind.version}"
            )
        return read(version, members)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamageError(f"the file does not hold {kind.what}: {in_words(error)}") from error


def has_registered_file(kind: FileKind, disk: Disk, directory: Path) -> bool:
    """Whether a data directory has the file, or had it and has lost it: `meta.properties` then still registers the
    file.
    """
    return disk.exists(directory / kind.name) or is_registered(kind, disk, directory)


def is_registered(kind: FileKind, disk: Disk, directory: Path) -> bool:
    """Whether a line in `meta.properties` of a data directory registers a file of this kind: says that it exists."""
    try:
        meta = disk.read_bytes(directory / META_FILE)
    except FileNotFoundError:
        return False
    return kind.meta_line in meta.decode(errors="replace").splitlines()


class RegisteredFile(Generic[Content]):
    """Reads and writes one registered file of a data directory, such as that of the dynamic settings. `meta.properties`
    says that the file exists, so that its loss is noticed.

    Args:
        kind: the kind of the file.
        disk: the disk of the directory.
        directory: the data directory.
        decode: decodes the bytes of the file; raises DamageError or UnknownFormatError.
        empty: the encoded content of a file without entries, which `register` writes.
        writer: writes the file, such as the disk reserve, which can write on a full disk; None for the disk itself.
    """

    def __init__(
        self,
        kind: FileKind,
        disk: Disk,
        directory: Path,
        *,
        decode: Callable[[bytes], Content],
        empty: bytes,
        writer: FileWriter | None = None,
    ) -> None:
        self.path = directory / kind.name
        self._kind = kind
        self._disk = disk
        self._decode = decode
        self._empty = empty
        self._writer: FileWriter = writer or disk
        self._meta = directory / META_FILE
        self._is_registered = partial(is_registered, kind, disk, directory)

    def load(self) -> Content:
        """Read and decode the file. If it was never written, return the content without entries. Nothing is written.

        Raises:
            UnknownFormatError: a later release has written the file.
            DamageError: the file is damaged, or is missing, and `meta.properties` says that it exists.
        """
        try:
            with adding_path(self.path):
                return self._decode(self._disk.read_bytes(self.path))
        except FileNotFoundError:
            if not self._is_registered():
                return self._decode(self._empty)
            why = "the file is missing"
        except DamageError as corrupt:
            why = str(corrupt)
        raise DamageError(
            f"{self.path}, which holds {self._kind.why}, cannot be read: {why}. Restore the file; or, "
            f"to start without its content, remove the file and the line {self._kind.meta_line} of "
            f"{self._meta.name}"
        )

    def register(self) -> None:
        """Register the file: write it without entries if it is missing, and add the line to `meta.properties` that says
        that the file exists. Do nothing if the line is there already.

        Raises:
            RefusedError: the disk refused the write.
        """
        if self._is_registered():
            return
        with self._refusing():
            if not self._disk.exists(self.path):
                self._writer.write_atomic(self.path, self._empty, is_private=self._kind.is_private)
            # Write the line in `meta.properties` after the file: if the broker crashes between the two writes, the
            # line must not name a missing file, because the broker would then refuse to start.
            meta = self._disk.read_bytes(self._meta)
            separator = b"" if meta.endswith(b"\n") else b"\n"
            line = f"{self._kind.meta_line}\n".encode()
            self._writer.write_atomic(self._meta, meta + separator + line)

    def store(self, content: bytes) -> None:
        """Replace the content of the file, and register the file in `meta.properties` if it is not registered yet. The
        change is durable on return.

        Raises:
            RefusedError: the disk refused the write. The file has its old or its new content.
        """
        self.register()
        with self._refusing():
            self._writer.write_atomic(self.path, content, is_private=self._kind.is_private)

    def replace(self, content: bytes) -> None:
        """Replace the content of a file that is registered already, directly on the disk. The change is durable on
        return. A thread may call this.

        Raises:
            DiskError: the disk refused the write. The file has its old or its new content.
        """
        self._disk.write_atomic(self.path, content, is_private=self._kind.is_private)

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Context that converts a disk error of its body to RefusedError, and logs it."""
        try:
            yield
        except DiskError as error:
            log.error("%s cannot be stored: %s", self._kind.what, error)
            raise RefusedError(
                ErrorCode.kafka_storage_error, f"{self._kind.what} cannot be stored: {error}"
            ) from error
