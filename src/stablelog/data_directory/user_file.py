"""The file `users.json` with the credentials of the users who log in with a password. It is replaced as a whole.

Only its owner may read it: with its content, an attacker could try passwords, and could pose as the broker.

Format: docs/reference/formats.md, "users.json".
"""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stablelog.data_directory.registered_file import USERS, RegisteredFile, decode_json, encode_json
from stablelog.env.disk import Disk, FileWriter
from stablelog.errors import DamageError
from stablelog.security.credentials import SECRET_SIZE, CredentialTable


def encode_users(credentials: CredentialTable) -> bytes:
    """Encode the content of `users.json`."""
    return encode_json(USERS.version, credentials.to_json())


def decode_users(content: bytes) -> CredentialTable:
    """Decode the content of `users.json`.

    Raises:
        UnknownFormatError: a later release has written the file.
        DamageError: the file is damaged.
    """

    def read(version: int, members: Mapping[str, Any]) -> CredentialTable:
        if version != USERS.version:
            raise DamageError(
                f"the file has version {version}, and this release reads version {USERS.version}"
            )
        return CredentialTable.from_json(members)

    return decode_json(USERS, content, read)


def user_file(
    disk: Disk, directory: Path, writer: FileWriter | None = None
) -> RegisteredFile[CredentialTable]:
    """Return an object that reads and writes the file of users, `users.json`, in a data directory. `writer` writes the
    file, such as the disk reserve, which can write on a full disk; None for the disk itself.
    """
    # The secret is stored with the first user. Before that no user exists whom it could hide.
    empty = encode_users(CredentialTable(secrets.token_bytes(SECRET_SIZE)))
    return RegisteredFile(USERS, disk, directory, decode=decode_users, empty=empty, writer=writer)
