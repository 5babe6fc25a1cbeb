"""The file `acls.json` with the broker's ACLs. It is replaced as a whole.

Format: docs/reference/formats.md, "acls.json".
"""

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

from stablelog.data_directory.registered_file import ACLS, RegisteredFile, decode_json, with_crc
from stablelog.env.disk import Disk, FileWriter
from stablelog.security.acls import check_binding
from stablelog.wire.acls import AclBinding, Operation, Pattern, PatternType, Permission, ResourceType

ROWS_AT_ONCE: Final = 500


def encode_acls(bindings: Iterable[AclBinding]) -> bytes:
    """Encode the content of `acls.json`. The bindings (ACLs) are encoded in several parts: no other thread, such as
    that of the event loop, can run during a call of the JSON encoder, so each call must be short.
    """
    rows = map(_row, bindings)
    parts = []
    while part := list(islice(rows, ROWS_AT_ONCE)):
        parts.append(json.dumps(part, separators=(",", ":"))[1:-1])
    return with_crc(f'{{"version":{ACLS.version},"acls":[{",".join(parts)}]}}'.encode())


def _row(binding: AclBinding) -> list[str]:
    pattern, principal, host, operation, permission = binding
    return [
        pattern.resource_type.name,
        pattern.pattern_type.name,
        pattern.name,
        principal,
        host,
        operation.name,
        permission.name,
    ]


def decode_acls(content: bytes) -> list[AclBinding]:
    """Decode the content of `acls.json`.

    Raises:
        UnknownFormatError: a later release has written the file.
        DamageError: the file is damaged.
    """

    def read(_version: int, members: Mapping[str, Any]) -> list[AclBinding]:
        return [_read_row(row) for row in members["acls"]]

    return decode_json(ACLS, content, read)


def _read_row(row: list[str]) -> AclBinding:
    kind, pattern_type, name, principal, host, operation, permission = row
    binding = AclBinding(
        Pattern(ResourceType[kind], name, PatternType[pattern_type]),
        principal,
        host,
        Operation[operation],
        Permission[permission],
    )
    check_binding(binding)
    return binding


def acl_file(
    disk: Disk, directory: Path, writer: FileWriter | None = None
) -> RegisteredFile[list[AclBinding]]:
    """Return an object that reads and writes the file of ACLs, `acls.json`, in a data directory. `writer` writes the
    file, such as the disk reserve, which can write on a full disk; None for the disk itself.
    """
    return RegisteredFile(ACLS, disk, directory, decode=decode_acls, empty=encode_acls(()), writer=writer)
