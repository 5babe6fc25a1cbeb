"""The broker's ACLs (rules): the authorizer that decides by them, the file that stores them, and changes of them.

A change is durable before it takes effect. Changes are made one after another. The file is encoded and written in a
thread.
"""

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.broker.loop.threads import in_thread_to_its_end
from stablelog.broker.monitoring.limited_log import quote_for_log
from stablelog.broker.runtime import Runtime
from stablelog.broker.security.access import Access, DenialLog
from stablelog.broker.security.file_writer import store_in_thread
from stablelog.data_directory.acl_file import acl_file, encode_acls
from stablelog.errors import RefusedError
from stablelog.security.authorizer import Authorizer
from stablelog.wire.acls import AclBinding, AclFilter, Permission

log = logging.getLogger("stablelog.authorizer")

ACL_COUNT_MAX: Final = 100_000
CHANGED_AT_ONCE: Final = 500  # The number of rules that change in one turn of the event loop.


class AclAuthor(NamedTuple):
    """The client that changes rules (ACLs), for the line that the log gets about the change."""

    principal: str
    host: str


class BrokerAcls:
    """The ACLs of a broker with an authorizer.

    Args:
        runtime: the settings, the disk and the tasks of the broker.
        threads: the threads that encode and write the file, and search the rules.

    Attributes:
        authorizer: decides by the rules.
        denials: logs and counts denied requests.

    Raises:
        UnknownFormatError: a later release has written the file of rules.
        DamageError: the file is damaged, or missing although the broker had written it.
    """

    def __init__(self, runtime: Runtime, *, threads: Executor) -> None:
        config = runtime.config
        self._file = acl_file(runtime.disk, runtime.directory, runtime.reserve)
        bindings = self._file.load()
        super_users = config["super.users"]
        self.authorizer = Authorizer(
            bindings,
            super_users=super_users,
            allow_without_rules=config["allow.everyone.if.no.acl.found"],
        )
        self.denials = DenialLog(runtime.clock.now_ms)
        self._threads = threads
        self._tasks = runtime.tasks
        self._lock = asyncio.Lock()
        if not bindings and not super_users and not config["allow.everyone.if.no.acl.found"]:
            log.warning(
                "authorizer.class.name is set, and there are neither ACLs nor super.users: no client can do anything; "
                "set super.users to the principal of an administrator"
            )

    def record_file(self) -> None:
        """Record in `meta.properties` that the file of rules exists, so that a later start finds out if it is missing.

        The broker calls this when it starts. If the broker did so only when the first rule is created, an earlier loss
        of the file would not be noticed.

        Raises:
            RefusedError: the disk refused the write.
        """
        self._file.register()

    def access_of_client(self, principal: str, host: str, api: str) -> Access:
        """Return an object that tells what a client may do in one request, and logs what is denied."""
        return Access(self.authorizer, self.denials, principal, host, api)

    async def find_bindings(self, asked: AclFilter) -> list[AclBinding]:
        """Return the rules (ACLs) that a filter of a request selects."""
        async with self._lock:
            return await in_thread_to_its_end(
                self._threads, lambda: list(self.authorizer.index.matching(asked))
            )

    async def create_bindings(self, bindings: Sequence[AclBinding], author: AclAuthor) -> None:
        """Create rules (ACLs). A rule that exists already stays as it is. The rules are durable on return.

        Raises:
            RefusedError: the disk refused the write, or there would be too many rules; no rule was created.
        """
        await self._tasks.run_for_request("acls", lambda: self._create(bindings, author))

    async def delete_bindings(
        self, filters: Sequence[AclFilter], author: AclAuthor
    ) -> list[list[AclBinding]]:
        """Delete the rules (ACLs) that the filters select. The deletion is durable on return.

        Returns:
            For each filter, the rules that it selected.

        Raises:
            RefusedError: the disk refused the write; no rule was deleted.
        """
        return await self._tasks.run_for_request("acls", lambda: self._delete(filters, author))

    async def _create(self, bindings: Sequence[AclBinding], author: AclAuthor) -> None:
        async with self._lock:
            index = self.authorizer.index
            added = await in_thread_to_its_end(
                self._threads,
                lambda: [binding for binding in dict.fromkeys(bindings) if binding not in index],
            )
            if len(index) + len(added) > ACL_COUNT_MAX:
                raise RefusedError(
                    ErrorCode.policy_violation,
                    f"the broker has {len(index)} ACLs, and at most {ACL_COUNT_MAX} are allowed: "
                    "replace some of them by one with a prefixed pattern",
                )
            if added:
                await self._store(added, frozenset())
            # The rules that deny come first, so that at no time more is allowed than before and after the change.
            added.sort(key=lambda binding: binding.permission is Permission.ALLOW)
            for begin in range(0, len(added), CHANGED_AT_ONCE):
                some = added[begin : begin + CHANGED_AT_ONCE]
                self.authorizer.change(added=some)
                _log_changes("created", some, author)
                await asyncio.sleep(0)

    async def _delete(self, filters: Sequence[AclFilter], author: AclAuthor) -> list[list[AclBinding]]:
        async with self._lock:
            index = self.authorizer.index

            def find() -> tuple[list[list[AclBinding]], list[AclBinding]]:
                found = [list(index.matching(asked)) for asked in filters]
                removed = dict.fromkeys(binding for of_filter in found for binding in of_filter)
                return found, sorted(removed, key=lambda binding: binding.permission is Permission.DENY)

            found, removed = await in_thread_to_its_end(self._threads, find)
            if removed:
                await self._store([], frozenset(removed))
            for begin in range(0, len(removed), CHANGED_AT_ONCE):
                some = removed[begin : begin + CHANGED_AT_ONCE]
                self.authorizer.change(removed=some)
                _log_changes("deleted", some, author)
                await asyncio.sleep(0)
            return found

    async def _store(self, added: list[AclBinding], removed: frozenset[AclBinding]) -> None:
        """Write the file of rules (ACLs) with its new content. The caller holds the lock, so that the rules in memory
        do not change meanwhile.

        Args:
            added: the rules that the new content has in addition.
            removed: the rules that it no longer has.
        """

        def encode() -> bytes:
            kept = [binding for binding in self.authorizer.index if binding not in removed]
            return encode_acls(kept + added)

        content = await in_thread_to_its_end(self._threads, encode)
        await store_in_thread(self._threads, self._file, content)


def _log_changes(change: str, bindings: Sequence[AclBinding], author: AclAuthor) -> None:
    for binding in bindings:
        log.info(
            "an ACL was %s by %s from host %s: %s",
            change,
            quote_for_log(author.principal),
            author.host,
            quote_for_log(str(binding)),
        )
