"""The client for who writes transactions and reads them whole: `stablelog.connect`; `client.aio` is its other face.

For everything else there are Kafka's clients. Transactions and readers each have connections of their own, so that
several threads can have one each.
"""

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from types import TracebackType
from typing import Final, Literal, Self

from kio.schema.errors import ErrorCode

from stablelog.client.cluster import DEADLINE_S, Cluster
from stablelog.client.cuts import describe_cut
from stablelog.client.deadlines import Deadlines
from stablelog.client.keys import WriterKeys
from stablelog.client.reading import CommittedTransaction, Pause, read_cuts, read_partitions
from stablelog.client.transaction import Transaction
from stablelog.client.writing import Outcome, Writing
from stablelog.errors import InvalidConfig, Refused
from stablelog.wire.extension.transaction_groups import NAME_RULE, is_group_name

TIMEOUT_S = 30.0
IDLE_MAX: Final = 32  # clusters with open connections that wait for a transaction or reader
TIMEOUT_MAX_S = 2**31 // 1000  # what the protocol can say in milliseconds


class Client:
    """A client of a stablelog broker. Made by `connect`; may be used by several threads.

    Args:
        bootstrap: "host:port,host:port"; one that answers is enough.
        deadline_s: how long whatever is asked is tried again before it fails.
    """

    def __init__(self, bootstrap: str, *, deadline_s: float = DEADLINE_S) -> None:
        self._bootstrap = bootstrap
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._idle = [Cluster(bootstrap, deadline_s=deadline_s)]
        self._keys = WriterKeys()
        self._is_closed = False
        self._deadlines = Deadlines()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; those of transactions and readers when these end. No more can be begun."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for cluster in idle:
            cluster.close()
        self._deadlines.wake()

    def _lend(self) -> Cluster:
        """A cluster for one transaction or reader.

        Raises:
            Refused: the client is closed.
        """
        with self._lock:
            if self._is_closed:
                raise Refused(
                    ErrorCode.invalid_request,
                    f"the client of {self._bootstrap} is closed: make another one with stablelog.connect",
                )
            if self._idle:
                return self._idle.pop()
        return Cluster(self._bootstrap, deadline_s=self._deadline_s)

    def _give_back(self, cluster: Cluster) -> None:
        """Keep a cluster with its connections for the next one; close the one that was idle for longest if too many are."""
        with self._lock:
            if not self._is_closed:
                self._idle.append(cluster)
                if len(self._idle) <= IDLE_MAX:
                    return
                cluster = self._idle.pop(0)
        cluster.close()

    def transaction(self, group: str = "", timeout: float = TIMEOUT_S) -> Transaction:
        """Begin a transaction.

        Args:
            group: the transaction group, to which the topics belong; empty for the default one.
            timeout: seconds after which it is aborted, if it is still open.

        Raises:
            InvalidConfig: the timeout is none that a transaction can have, or no group can have this name.
            Refused: the client is closed.
        """
        return Transaction(lambda on_end: self.begin(group, timeout, on_end))

    def begin(self, group: str, timeout_s: float, on_end: Callable[[Outcome], None]) -> Writing:
        """A transaction without a face: what `transaction` makes futures of.

        Args:
            group: as in `transaction`.
            timeout_s: as in `transaction`.
            on_end: as in `Writing`.

        Raises:
            InvalidConfig: as in `transaction`.
            Refused: as in `transaction`.
        """
        if not 0 < timeout_s <= TIMEOUT_MAX_S:
            raise InvalidConfig(
                f"a timeout of {timeout_s} s: it must be greater than 0, and at most {TIMEOUT_MAX_S}"
            )
        _check_group(group)
        writing = Writing(
            self._lend(),
            key=self._keys.take(group),
            timeout_s=timeout_s,
            on_end=on_end,
            release=self._release,
        )
        self._deadlines.add(writing)
        return writing

    def _release(self, writing: Writing) -> None:
        self._deadlines.remove(writing)
        if writing.is_key_free:
            self._keys.give_back(writing.key)
        self._give_back(writing.cluster)

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
        """Read whole transactions of commit-ordered topics. Records outside transactions are passed over.

        Args:
            topics: a name, or several.
            order: there is no other in which transactions are whole.
            cut: whether a transaction is handed out over all partitions of all topics, and all in the order of their
                commits; else each partition is read for itself, and partitions take turns.
            after: the commit sequence after which to begin: that of the last transaction that was dealt with. 0 for
                the first that is still there, None for the first that is yet to come.
            wait: seconds to wait for another transaction before the reader ends; None for ever.
            group: the transaction group of the topics, which is asked for if it is None.

        Returns:
            A generator. After an exception, read again, after the last transaction that came.

        Raises:
            InvalidConfig: another order, no topic, or no group can have this name.
            Refused: a topic is not there, not in commit order, or of another group; or the client is closed.
            OffsetOutOfRange: transactions were removed before they were read.
            Unavailable: no answer within the deadline.
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
        """A reader without a face. The arguments are those of `read`, and so are the errors."""
        names = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
        if order != "commit":
            raise InvalidConfig(
                f"order {order!r}: transactions are whole in the order of commits, 'commit', only"
            )
        if not names:
            raise InvalidConfig("no topic to read")
        _check_group(group)
        return Reading(self._lend, self._give_back, names, cut=cut, after=after, wait_s=wait_s, group=group)


class Reading:
    """One reader, step by step.

    Args:
        lend: where a cluster comes from, once something is read.
        give_back: where it goes in the end.
        topics: as in `Client.read`, and so are the rest.
    """

    def __init__(
        self,
        lend: Callable[[], Cluster],
        give_back: Callable[[Cluster], None],
        topics: tuple[str, ...],
        *,
        cut: bool,
        after: int | None,
        wait_s: float | None,
        group: str | None,
    ) -> None:
        self._lend = lend
        self._give_back = give_back
        self._topics = topics
        self._cut = cut
        self._after = after
        self._wait_s = wait_s
        self._group = group
        self._cluster: Cluster | None = None
        self._owning = threading.Lock()

    def steps(self) -> Generator[CommittedTransaction | Pause, None, None]:
        """Transactions, and pauses where there is none yet. May wait for a broker, never for transactions."""
        cluster = self._cluster = self._lend()
        try:
            after = self._after
            if after is None or (self._group is not None and not self._cut):
                cut = describe_cut(
                    cluster, self._topics, group=self._group
                )  # and refuses what is of another group
                after = cut.commit_sequence if after is None else after
            if self._cut:
                yield from read_cuts(cluster, self._topics, after, self._wait_s, self._group)
            else:
                yield from read_partitions(cluster, self._topics, after, self._wait_s)
        finally:
            with self._owning:
                self._cluster = None
                cluster.calm()
            self._give_back(cluster)

    def whole(self) -> Generator[CommittedTransaction, None, None]:
        """The transactions. Waits for them."""
        with closing(self.steps()) as steps:
            for step in steps:
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                else:
                    yield step

    def call_off(self) -> None:
        """From any thread: have who waits for a broker wait no longer than need be."""
        with self._owning:
            if self._cluster is not None:
                self._cluster.hurry()


def _check_group(group: str | None) -> None:
    if group is not None and not is_group_name(group):
        raise InvalidConfig(f"a transaction group {group!r}: {NAME_RULE}, or empty for the default one")


def connect(bootstrap: str, *, deadline: float = DEADLINE_S) -> Client:
    """A client of the brokers behind these addresses. Nothing is asked of them yet.

    Args:
        bootstrap: "host:port,host:port"; one that answers is enough.
        deadline: seconds for which whatever is asked is tried again before it fails.

    Raises:
        InvalidConfig: an address that is none.
    """
    return Client(bootstrap, deadline_s=deadline)
