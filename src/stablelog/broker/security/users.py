"""The users of one broker: their SCRAM credentials, in the file `users.json`.

Only the owner of the file may read it: who has it can try passwords, and can take the place of the broker.
Format: docs/formats.md, "users.json".
"""

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stablelog.broker.directory.noted_file import USERS, NotedFile, decode_json, encode_json
from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.env.disk import Disk
from stablelog.errors import DamageError
from stablelog.security.credentials import SECRET_SIZE, Credentials, Deletion, Outcome, Upsertion


def decode_users(content: bytes) -> Credentials:
    """Decode the content of `users.json`.

    Raises:
        NewerFormatError: a later release has written the file.
        DamageError: the file is damaged.
    """

    def read(version: int, members: Mapping[str, Any]) -> Credentials:
        if version != USERS.version:
            raise DamageError(f"it is of version {version}, and this release reads version {USERS.version}")
        return Credentials.from_json(members)

    return decode_json(USERS, content, read)


class Users:
    """The users of one data directory.

    Args:
        directory: the data directory.
        reserve: frees disk space for the file if the disk is full.

    Attributes:
        credentials: the credentials of all users.

    Raises:
        NewerFormatError, DamageError: `users.json` cannot be read, or is missing. The broker must not start: clients
            could not log in, or with credentials that were replaced.
    """

    def __init__(self, disk: Disk, directory: Path, reserve: DiskReserve | None = None) -> None:
        # The secret is stored with the first user. Before that no user exists whom it could hide.
        empty = encode_json(USERS.version, Credentials(secrets.token_bytes(SECRET_SIZE)).to_json())
        self._file = NotedFile(USERS, disk, directory, decode=decode_users, empty=empty, reserve=reserve)
        self.credentials = self._file.load()

    def alter(self, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]) -> list[Outcome]:
        """Change credentials. Durable on return.

        Returns:
            The outcome for each user: see `Credentials.altered`.

        Raises:
            RefusedError: the disk refused the write; nothing changed.
        """
        after, outcomes = self.credentials.altered(deletions, upsertions)
        if after.users != self.credentials.users:
            self._file.store(encode_json(USERS.version, after.to_json()))
            self.credentials = after
        return outcomes
