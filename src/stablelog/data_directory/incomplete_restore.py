"""The file `restoring`, which marks an incomplete restore: the data directory may lack files, and no broker may use it.

The file is empty until the restore publishes its first manifest (the list of a partition's segments in the object
store). From then on it has the nonce (a random id) of the restore, which the restore's objects in the store have, too.
If the restore is interrupted, the next one ignores these objects: no broker has used the directory that they belong to.

Format: docs/reference/formats.md, "restoring".
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from stablelog.env.disk import Disk, read_if_there
from stablelog.errors import UsageError, adding_path, refuse_unknown_version
from stablelog.json_text import parse_json

RESTORING_FILE: Final = "restoring"
VERSION: Final = 1


def check_is_restored(disk: Disk, directory: Path) -> None:
    """Refuse the data directory of an incomplete restore.

    Raises:
        UsageError: the restore was interrupted, or still runs.
    """
    if disk.exists(directory / RESTORING_FILE):
        raise UsageError(
            f"{directory} is an incomplete restore, and may lack files: when no `stablelog restore` runs, run the same "
            "command again"
        )


def encode_restoring(nonces: Iterable[bytes]) -> bytes:
    """Encode the content of the file `restoring`, which marks an incomplete restore.

    Args:
        nonces: the nonces (random ids) of this restore, and of interrupted ones that have published manifests, the
            lists of partitions' segments in the object store.
    """
    return json.dumps({"version": VERSION, "nonces": sorted(one.hex() for one in nonces)}).encode()


def read_restoring(disk: Disk, directory: Path) -> frozenset[bytes]:
    """Return the nonces (random ids) of the interrupted restores into this directory that have published manifests, the
    lists of partitions' segments in the object store.

    A damaged file counts as one without nonces. The next restore then treats the manifests of interrupted restores like
    those of finished ones. This is safe: the next restore only skips more offsets, commit sequences (the numbers that
    order the commits) and producer ids than necessary.

    Raises:
        UnknownFormatError: a later release has written the file.
    """
    path = directory / RESTORING_FILE
    content = read_if_there(disk, path)
    try:
        fields = parse_json(content or b"{}")
        with adding_path(path):
            refuse_unknown_version(
                "the mark of an incomplete restore", fields.get("version", VERSION), VERSION
            )
        return frozenset(bytes.fromhex(one) for one in fields.get("nonces", ()))
    except (ValueError, TypeError, AttributeError):
        return frozenset()
