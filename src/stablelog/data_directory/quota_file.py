"""The file `quotas.json` with the quotas of clients. It is replaced as a whole.

Format: docs/reference/formats.md, "quotas.json".
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stablelog.data_directory.registered_file import QUOTAS, RegisteredFile, decode_json, encode_json
from stablelog.env.disk import Disk, FileWriter
from stablelog.errors import RefusedError
from stablelog.security.quotas.entities import Entity, Values, check_value, entity_of
from stablelog.wire.quotas import QuotaKey

Quotas = dict[Entity, dict[QuotaKey, float]]


def encode_quotas(quotas: Mapping[Entity, Values]) -> bytes:
    """Encode the content of `quotas.json`."""
    rows = [
        [dict(entity.pairs), {key.value: value for key, value in values.items()}]
        for entity, values in quotas.items()
        if values
    ]
    return encode_json(QUOTAS.version, {"quotas": rows})


def decode_quotas(content: bytes) -> Quotas:
    """Decode the content of `quotas.json`.

    Raises:
        UnknownFormatError: a later release has written the file.
        DamageError: the file is damaged.
    """

    def read(_version: int, members: Mapping[str, Any]) -> Quotas:
        try:
            return dict(map(_read_row, members["quotas"]))
        except RefusedError as refused:
            raise ValueError(str(refused)) from refused

    return decode_json(QUOTAS, content, read)


def _read_row(row: tuple[dict[str, str | None], dict[str, float]]) -> tuple[Entity, dict[QuotaKey, float]]:
    names, values = row
    entity = entity_of(names.items())
    return entity, {check_value(entity, key, value): float(value) for key, value in values.items()}


def quota_file(disk: Disk, directory: Path, writer: FileWriter | None = None) -> RegisteredFile[Quotas]:
    """Return an object that reads and writes the file of quotas, `quotas.json`, in a data directory. `writer` writes
    the file, such as the disk reserve, which can write on a full disk; None for the disk itself.
    """
    return RegisteredFile(
        QUOTAS, disk, directory, decode=decode_quotas, empty=encode_quotas({}), writer=writer
    )
