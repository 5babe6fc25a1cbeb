"""The users of a running broker: their SCRAM credentials, which are stored in the file `users.json`."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

from stablelog.broker.loop.threads import in_thread_to_its_end
from stablelog.broker.runtime import Runtime
from stablelog.broker.security.file_writer import store_in_thread
from stablelog.data_directory.user_file import encode_users, user_file
from stablelog.security.credentials import (
    AlterationOutcome,
    CredentialDeletion,
    CredentialTable,
    CredentialUpsertion,
)


class BrokerUsers:
    """The users of one data directory.

    Args:
        runtime: the disk, the data directory and the tasks of the broker.
        threads: the threads that write the file.

    Attributes:
        credentials: the credentials of all users.

    Raises:
        UnknownFormatError, DamageError: `users.json` cannot be read, or is missing. The broker must then not start:
            clients could not log in, or could log in with credentials that were replaced.
    """

    def __init__(self, runtime: Runtime, *, threads: Executor) -> None:
        self._file = user_file(runtime.disk, runtime.directory, runtime.reserve)
        self._threads = threads
        self._tasks = runtime.tasks
        self._lock = asyncio.Lock()
        self.credentials = self._file.load()

    async def alter_credentials(
        self, deletions: Sequence[CredentialDeletion], upsertions: Sequence[CredentialUpsertion]
    ) -> list[AlterationOutcome]:
        """Change credentials. The new credentials are durable and in effect on return.

        Args:
            deletions: credentials to remove.
            upsertions: credentials to add or to replace.

        Returns:
            The outcome for each user: see `CredentialTable.with_changes`.

        Raises:
            RefusedError: the disk refused the write; nothing changed.
        """
        return await self._tasks.run_for_request("users", lambda: self._alter(deletions, upsertions))

    async def _alter(
        self, deletions: Sequence[CredentialDeletion], upsertions: Sequence[CredentialUpsertion]
    ) -> list[AlterationOutcome]:
        async with self._lock:
            before = self.credentials

            def alter() -> tuple[CredentialTable, list[AlterationOutcome], bytes | None]:
                after, outcomes = before.with_changes(deletions, upsertions)
                return after, outcomes, encode_users(after) if after.users != before.users else None

            after, outcomes, content = await in_thread_to_its_end(self._threads, alter)
            if content is not None:
                await store_in_thread(self._threads, self._file, content)
                self.credentials = after
            return outcomes
