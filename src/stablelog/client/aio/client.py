"""The asyncio client (`stablelog.aio.connect`): it writes transactions, and reads whole transactions."""

import asyncio
import re
import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from stablelog.batch.codec import Codec
from stablelog.client.aio.cluster import AsyncCluster
from stablelog.client.aio.group_reader import AsyncGroupReader
from stablelog.client.aio.reader import AsyncReader
from stablelog.client.aio.transaction import AsyncTransaction
from stablelog.client.base_group_reader import prepare_subscription, reading_of
from stablelog.client.base_reader import check_selection
from stablelog.client.cluster_pool import ClusterPool
from stablelog.client.core.read_position import ReadPosition
from stablelog.client.core.settings import read_client_settings
from stablelog.client.transaction_factory import TIMEOUT_S, TransactionFactory
from stablelog.errors import UsageError
from stablelog.processes import watch_forks

if TYPE_CHECKING:
    from stablelog.client.aio.admin import AsyncAdmin


class OwnLoop:
    """The event loop to which an asyncio client belongs: the first one in which the client is used."""

    def __init__(self) -> None:
        watch_forks(self)
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked process, forget the event loop of the parent process: the client belongs to the next loop that
        uses it.
        """
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        """Raise UsageError if another event loop has used the client, because the connections belong to that loop."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            raise UsageError(
                "this client was used in another event loop, to which its connections belong: make a client in each event "
                "loop with stablelog.aio.connect"
            )


class AsyncClient:
    """A client of a stablelog broker. `connect` makes it.

    Args:
        clusters: the pool of cluster objects, which hold the connections to the brokers.
        codec: the compression of the batches that are written.
    """

    def __init__(self, clusters: ClusterPool[AsyncCluster], codec: Codec = Codec.NONE) -> None:
        self._clusters = clusters
        self._writers = TransactionFactory(clusters, codec)
        self._loop = OwnLoop()

    def __repr__(self) -> str:
        state = "closed" if self._clusters.is_closed else "open"
        return f"<{type(self).__name__} of {self._clusters.bootstrap}, {state}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the client: it refuses new transactions and readers. The connections of an open transaction or reader
        are closed when it ends.
        """
        self._clusters.close()

    @cached_property
    def admin(self) -> "AsyncAdmin":
        """Administration: topics, settings, groups, transactions, users, ACLs and quotas."""
        from stablelog.client.aio.admin import AsyncAdmin

        return AsyncAdmin(self._clusters, self._loop.check)

    def transaction(
        self, group: str = "", timeout: float = TIMEOUT_S, *, offsets_of: AsyncGroupReader | None = None
    ) -> AsyncTransaction:
        """Begin a transaction. Call this in the event loop in which the program awaits the futures.

        Args:
            group: the transaction group of the topics, whose commits have one order; empty for the default group.
            timeout: seconds until an open transaction is aborted.
            offsets_of: a reader of `subscribe`: the transaction commits the offsets of the records that the reader has
                handed out before the commit. If the transaction does not commit, the reader goes back to the committed
                offsets.

        Raises:
            TypeError: an argument has a wrong type.
            UsageError: the timeout is out of range, or the group's name is invalid; or the reader is closed, or has
                another open transaction; or another event loop has used the
                client.
            RefusedError: the client is closed.
        """
        self._loop.check()
        reading = reading_of(offsets_of, AsyncGroupReader, self._clusters.bootstrap)
        return AsyncTransaction(
            lambda on_end: self._writers.begin_transaction(group, timeout, time.monotonic(), on_end, reading)
        )

    def subscribe(
        self,
        topics: str | Iterable[str] | re.Pattern[str],
        *,
        group: str,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        start: Literal["earliest", "latest"] = "earliest",
        wait: float | None = None,
        instance_id: str | None = None,
    ) -> AsyncGroupReader:
        """Read records as a member of a consumer group (KIP-848). The reader sends no request before its first call.

        Args:
            topics: one name or several; or a compiled regular expression that whole names must match. The broker applies
                it (RE2), and also selects topics that are created later.
            group: the consumer group; not a transaction group, as in `transaction` and `read`.
            isolation: "read_committed" for committed records only, or "read_uncommitted".
            start: where to read a partition without a committed offset from: "earliest" or "latest".
            wait: seconds to wait for another record before an iteration ends; None for no limit.
            instance_id: the id of a static member, which keeps its partitions when it leaves and joins again.

        Raises:
            TypeError: an argument has a wrong type.
            UsageError: no topic, an invalid name, an expression with flags, an empty group or id, or an unknown isolation
                or start; or another event loop has used the client.
            RefusedError: the client is closed.
        """
        self._loop.check()
        cluster, reading, wait_s = prepare_subscription(
            self._clusters,
            topics,
            group,
            isolation=isolation,
            start=start,
            wait=wait,
            instance_id=instance_id,
        )
        return AsyncGroupReader(cluster, reading, wait_s, self._clusters.return_cluster, self._loop.check)

    def read(
        self,
        topics: str | Iterable[str],
        *,
        order: Literal["commit"] = "commit",
        cut: bool = True,
        after: ReadPosition | str | int | None = 0,
        wait: float | None = None,
        group: str | None = None,
        skip_unreadable: bool = False,
    ) -> AsyncReader:
        """Read whole transactions of commit-ordered topics. Records outside transactions are skipped.

        The reader sends no request before the program asks for the first transaction, and raises most of its errors
        then.

        Args:
            topics: one name or several.
            order: only "commit" is valid, because in no other order are transactions whole.
            cut: whether to return each transaction once, with its records of all partitions of all topics, in the order
                of the commits. Otherwise each partition is read separately, round-robin.
            after: where to begin. The `position` of a reader or its text continues after the last transaction that the
                program has got. A number is a commit sequence (the number of a commit in its transaction group), after
                which the reader begins: only with `cut=True`, or for a single partition. 0 begins with the oldest
                stored transaction, and None with new commits only.
            wait: seconds to wait for another transaction before the iteration ends; None for no limit, 0 for no wait.
            group: the transaction group of the topics, whose commits have one order; None asks the broker for it.
            skip_unreadable: whether to leave out records that no client can decode, although their CRC is right. The field
                `unreadable_count` of a transaction says how many are left out.

        Raises:
            TypeError: an argument has a wrong type.
            UsageError: another order, no topic, an invalid name, or an `after` or `wait` that is not valid; or another event
                loop has used the client.
            RefusedError: a topic does not exist, is not commit-ordered or is in another transaction group than the
                other topics or `group`; or the client is closed.
            DataLossError: transactions were removed before they were read; or the position is of a deleted topic, or
                the broker was restored since from a copy that lacks records before the position.
            DamageError: bytes have changed since they were written, or records cannot be decoded. The message names the
                partition and the offset.
            UnavailableError: no response within the deadline.
        """
        return AsyncReader(
            self._clusters,
            check_selection(
                topics,
                order,
                cut=cut,
                after=after,
                wait_s=wait,
                group=group,
                skips_unreadable=skip_unreadable,
            ),
            self._loop.check,
        )


def connect(
    bootstrap: str, *, deadline: float | None = None, settings: Mapping[str, Any] | None = None
) -> AsyncClient:
    """Make a client of the brokers at these addresses. This sends no request yet.

    `read` needs a stablelog broker; `transaction`, `subscribe` and `admin` also work with Apache Kafka.

    Args:
        bootstrap: "host:port,host:port"; one reachable address is enough.
        deadline: how many seconds a call may take before it fails; None for 30, or for `default.api.timeout.ms`.
        settings: settings by the names of Kafka's Java client, such as {"client.id": "shop", "compression.type": "zstd",
            "security.protocol": "SASL_SSL", ...}.

    Returns:
        The client, for one event loop. At the end of an `async with` block it is closed.

    Raises:
        TypeError: an argument has a wrong type.
        UsageError: an address is invalid; or a setting is unknown, missing or not valid.

    Example:
        async def main():
            async with stablelog.aio.connect(broker.bootstrap) as client:
                async with client.transaction(timeout=30) as txn:
                    order = await txn.write("orders", b"a table", key="o-18")
                print(await order)  # Position(topic='orders', partition=0, offset=43)

                async for transaction in client.read("orders", wait=1):
                    print(transaction.commit_sequence, [record.value for record in transaction.records])

        asyncio.run(main())
    """
    given = read_client_settings(settings, deadline)

    def make() -> AsyncCluster:
        return AsyncCluster(
            bootstrap,
            client_id=given.client_id,
            timeout_s=given.timeout_s,
            deadline_s=given.deadline_s,
            security=given.security,
            backoff_s=given.backoff_s,
        )

    return AsyncClient(ClusterPool(make), given.compression)
