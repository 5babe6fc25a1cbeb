"""The synchronous client (`stablelog.connect`), which writes transactions and reads whole transactions.

`client.aio` is the same client for asyncio. For all other purposes, use Kafka's clients. Each transaction and each
reader has its own connections, so threads can use different ones at the same time.
"""

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

from stablelog.client.cluster import DEADLINE_S, Cluster
from stablelog.client.cluster_pool import ClusterPool
from stablelog.client.cuts import describe_cut
from stablelog.client.deadlines import Deadlines
from stablelog.client.keys import WriterKeys
from stablelog.client.reading import CommittedTransaction, Pause, read_cuts, read_partitions
from stablelog.client.transaction import Transaction
from stablelog.client.writing import Outcome, Writing
from stablelog.errors import UsageError
from stablelog.wire.extension.transaction_groups import NAME_RULE, is_group_name

TIMEOUT_S = 30.0
TIMEOUT_MAX_S = 2**31 // 1000  # the protocol's field is a signed 32-bit number of milliseconds


class Client:
    """A client of a stablelog broker. `connect` makes it; several threads may use it.

    Args:
        clusters: the pool of `Cluster` objects, which hold the connections to the brokers.

    Attributes:
        clusters: as given.
        keys: pool of the keys of joint commits that no transaction uses now.
        deadlines: aborts the open transactions at their deadlines.
    """

    def __init__(self, clusters: ClusterPool) -> None:
        self.clusters = clusters
        self.keys = WriterKeys()
        self.deadlines = Deadlines()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the client: it refuses new transactions and readers. Connections in use are closed when their
        transaction or reader ends.
        """
        self.clusters.close()
        self.deadlines.wake()

    def transaction(self, group: str = "", timeout: float = TIMEOUT_S) -> Transaction:
        """Begin a transaction.

        Args:
            group: the transaction group of the topics; empty for the default group.
            timeout: seconds until an open transaction is aborted.

        Raises:
            UsageError: the timeout is out of range, or the group's name is invalid.
            RefusedError: the client is closed.
        """
        return Transaction(lambda on_end: self.begin(group, timeout, on_end))

    def begin(self, group: str, timeout_s: float, on_end: Callable[[Outcome], None]) -> Writing:
        """Begin a transaction whose records have no futures. `transaction` and `client.aio` add the futures.

        Args:
            group: the transaction group of the topics; empty for the default group.
            timeout_s: seconds until an open transaction is aborted.
            on_end: called once with the outcome of the transaction.

        Raises:
            UsageError: the timeout is out of range, or the group's name is invalid.
            RefusedError: the client is closed.
        """
        if not 0 < timeout_s <= TIMEOUT_MAX_S:
            raise UsageError(
                f"the timeout of {timeout_s} s is out of range: greater than 0, and at most {TIMEOUT_MAX_S}"
            )
        _check_group(group)
        writing = Writing(
            self.clusters.lend(),
            key=self.keys.take(group),
            timeout_s=timeout_s,
            on_end=on_end,
            release=self._release,
        )
        self.deadlines.add(writing)
        return writing

    def _release(self, writing: Writing) -> None:
        self.deadlines.remove(writing)
        if writing.is_key_free:
            self.keys.give_back(writing.key)
        self.clusters.give_back(writing.cluster)

    def read(
        self,
        topics: str | Iterable[str],
        *,
        order: Literal["commit"] = "commit",
        cut: bool = False,
        after: int | None = 0,
        wait: float | None = None,
        group: str | None = None,
    ) -> Iterator[CommittedTransaction]:
        """Read whole transactions of commit-ordered topics. Records outside transactions are skipped.

        Args:
            topics: one name or several.
            order: only "commit" is valid, because in no other order are transactions whole.
            cut: whether to return each transaction once, with its records of all partitions of all topics, in the order
                of the commits. Otherwise each partition is read separately, round-robin.
            after: the commit sequence after which to begin: that of the last transaction that the caller has handled. 0
                for the oldest transaction that is left, None for new commits only.
            wait: seconds to wait for another transaction before the reader ends; None for no limit.
            group: the transaction group of the topics; None asks the broker for it.

        Returns:
            A generator. After an exception, call `read` again with the commit sequence of the last transaction
            received.

        Raises:
            UsageError: another order, no topic, or an invalid group name.
            RefusedError: a topic does not exist, is not commit-ordered or is in another group; or the client is closed.
            DataLossError: transactions were removed before they were read.
            UnavailableError: no response within the deadline.
        """
        return self.reading(topics, order, cut=cut, after=after, wait_s=wait, group=group).whole()

    def reading(
        self,
        topics: str | Iterable[str],
        order: str,
        *,
        cut: bool,
        after: int | None,
        wait_s: float | None,
        group: str | None,
    ) -> "Reading":
        """Make a reader that yields a `Pause` where `read` would sleep. The arguments and the errors are those of
        `read`.
        """
        names = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
        if order != "commit":
            raise UsageError(
                f"the order {order!r} is not valid: whole transactions can only be read with order='commit'"
            )
        if not names:
            raise UsageError("there is no topic to read: name one or several")
        _check_group(group)
        return Reading(self.clusters, names, cut=cut, after=after, wait_s=wait_s, group=group)


@dataclass
class Reading:
    """A reader that the caller runs step by step. The arguments are those of `Client.read`.

    The reader takes a `Cluster` (connections) from the client's pool at its first step, and returns it at its end.
    """

    clusters: ClusterPool
    topics: tuple[str, ...]
    cut: bool
    after: int | None
    wait_s: float | None
    group: str | None
    _cluster: Cluster | None = None
    _owning: threading.Lock = field(default_factory=threading.Lock)

    def steps(self) -> Generator[CommittedTransaction | Pause, None, None]:
        """Yield transactions, and a `Pause` when there is no new one. This may wait for a broker, but not for new
        transactions.
        """
        cluster = self._cluster = self.clusters.lend()
        try:
            after = self.after
            if after is None or (self.group is not None and not self.cut):
                # `describe_cut` raises RefusedError if a topic belongs to another transaction group.
                cut = describe_cut(cluster, self.topics, group=self.group)
                after = cut.commit_sequence if after is None else after
            if self.cut:
                yield from read_cuts(cluster, self.topics, after, self.wait_s, self.group)
            else:
                yield from read_partitions(cluster, self.topics, after, self.wait_s)
        finally:
            with self._owning:
                self._cluster = None
                cluster.allow_retries()
            self.clusters.give_back(cluster)

    def whole(self) -> Generator[CommittedTransaction, None, None]:
        """Yield the transactions, and sleep while there is no new one."""
        with closing(self.steps()) as steps:
            for step in steps:
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                else:
                    yield step

    def cancel(self) -> None:
        """Cancel retries, so that a call in progress ends soon. May be called from any thread."""
        with self._owning:
            if self._cluster is not None:
                self._cluster.cancel_retries()


def _check_group(group: str | None) -> None:
    if group is not None and not is_group_name(group):
        raise UsageError(
            f"the transaction group {group!r} is not valid: {NAME_RULE}, or empty for the default group"
        )


def connect(bootstrap: str, *, deadline: float = DEADLINE_S) -> Client:
    """Make a client of the brokers at these addresses. This sends no request yet.

    The client needs a stablelog broker. Its methods are `transaction`, `read` and `close`.

    Args:
        bootstrap: "host:port,host:port"; one reachable address is enough.
        deadline: for how many seconds a request is retried before the call fails.

    Returns:
        The client. Several threads may use it. At the end of a `with` block it is closed.

    Raises:
        UsageError: an address is invalid.

    Example:
        with stablelog.connect(broker.bootstrap) as client:
            with client.transaction(timeout=30) as txn:  # commits at the end, aborts on an exception
                order = txn.write("orders", "o-17", b"3 chairs")
                txn.write("stock", "chair", b"-3")
            print(order.result())  # Position(topic='orders', partition=1, offset=41)

            for transaction in client.read(["orders", "stock"], cut=True, wait=1):
                print(transaction.commit_sequence, [record.value for record in transaction.records])
    """
    return Client(ClusterPool(bootstrap, deadline))
