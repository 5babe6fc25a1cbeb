"""Protection of directories that are no data directories: a broker that is started with a wrong path must not write its
files into a user's directory.

A directory counts as a data directory only if one of its entries has content that a broker writes. A name alone proves
little: `backup-1` looks like a partition's directory, and many programs have a `users.json`. Only for files whose names
no other program uses is the name enough.
"""

import re
from pathlib import Path
from typing import Final

from stablelog.data_directory.catalog import CATALOG_FILE
from stablelog.data_directory.checkpoints import CHECKPOINTS
from stablelog.data_directory.meta_properties import META_FILE, decode_meta
from stablelog.data_directory.names import RESERVE_FILE
from stablelog.data_directory.registered_file import REGISTERED_FILES
from stablelog.env.disk import Disk
from stablelog.errors import UsageError
from stablelog.log.files.names import is_log
from stablelog.log.files.partition_metadata import METADATA_FILE

OWN_NAMES: Final = (  # Names that only a broker gives.
    RESERVE_FILE,
    *CHECKPOINTS,
)
# What a broker's files of JSON contain: the list of topics begins with its version, the others end with a checksum.
_JSON_FILES: Final = {
    CATALOG_FILE: re.compile(rb'\A\{\s*"version":\s*\d+,.*"topics":\s*\{', re.DOTALL),
    **{kind.name: re.compile(rb"\n[0-9a-f]{8}\n\Z") for kind in REGISTERED_FILES},
}
# A crash in the first start of a broker may leave one of these files, incomplete, and nothing else.
UNFINISHED: Final = frozenset(f"{name}.tmp" for name in (*OWN_NAMES, *_JSON_FILES, META_FILE))
MOUNTED: Final = "lost+found"  # An empty file system of its own may have this directory.
META_KEYS: Final = ("cluster.id", "node.id", "broker.id")
_PARTITION: Final = re.compile(r".+-\d+(?:\..+-(?:delete|stray))?")  # The name of a partition's directory.


def refuse_foreign_directory(disk: Disk, directory: Path) -> None:
    """Refuse a directory that has files, but none that a broker has written. Hidden files do not count, so that a
    directory with only such files is accepted.

    Raises:
        UsageError: the directory is no data directory.
    """
    if not disk.is_dir(directory):
        return
    names = sorted(name for name in disk.list_dir(directory) if not name.startswith(".") and name != MOUNTED)
    if names and not any(_is_own(disk, directory, name) for name in names):
        raise UsageError(
            f"{directory} is not a data directory: it contains {names[0]!r} and no file of a broker. "
            "Use another directory, or an empty one"
        )


def _is_own(disk: Disk, directory: Path, name: str) -> bool:
    """Whether a broker has written the file or directory `name` in a directory."""
    path = directory / name
    if disk.is_dir(path):
        return _PARTITION.fullmatch(name) is not None and _has_partition(disk.list_dir(path))
    if name in OWN_NAMES or name in UNFINISHED:
        return True
    if name != META_FILE and name not in _JSON_FILES:
        return False
    if not disk.exists(path) or not disk.size(path):
        return False  # A link to nothing, or a pipe: a reader of a pipe would wait for its writer.
    content = disk.read_bytes(path)
    if name == META_FILE:
        return not decode_meta(content).keys().isdisjoint(META_KEYS)
    return _JSON_FILES[name].search(content) is not None


def _has_partition(names: list[str]) -> bool:
    """Whether the names of a directory include a partition's log file, or the file with the topic's id."""
    return METADATA_FILE in names or any(is_log(name.removesuffix(".deleted")) for name in names)
