"""Access to the internals of clients, readers and transactions, for the tests of stablelog. No program needs it.

The classes of the client have no public attribute that is not meant for programs. A test that has to read or change
internal state calls these functions.
"""

from collections.abc import Awaitable
from typing import Any

from stablelog.client.aio.client import AsyncClient
from stablelog.client.aio.group_reader import AsyncGroupReader
from stablelog.client.aio.transaction import AsyncTransaction
from stablelog.client.base_group_reader import BaseGroupReader
from stablelog.client.base_reader import BaseReader
from stablelog.client.blocking.client import Client
from stablelog.client.blocking.group_reader import GroupReader
from stablelog.client.blocking.transaction import Transaction
from stablelog.client.cluster_pool import ClusterPool
from stablelog.client.core.group_reading import GroupReading
from stablelog.client.core.writing import Writing
from stablelog.client.key_pool import WriterKeyPool

# ruff: noqa: SLF001


def clusters_of(client: Client | AsyncClient) -> ClusterPool[Any]:
    """Return the pool of a client's cluster objects, which hold its connections."""
    return client._clusters


def keys_of(client: Client | AsyncClient) -> WriterKeyPool:
    """Return a client's pool of keys of joint commits. A stablelog broker commits each transaction of the client as a
    joint commit (a commit of several transactions together, here of one). A key (a text) and a version (the number of
    the commit under the key) identify it.
    """
    return client._writers.keys


def reading_of(reader: GroupReader | AsyncGroupReader) -> GroupReading:
    """Return the object of `client.core` that has the state of a reader of a consumer group, and decides what its calls
    do.
    """
    return reader._reading


def is_in_use(reader: BaseReader[Any] | BaseGroupReader[Any]) -> bool:
    """Return whether a call of a reader is running."""
    return reader._calls.is_running


def writing_of(txn: Transaction | AsyncTransaction) -> Writing:
    """Return the object of `client.core` that has the state of a transaction, and decides what the calls of the
    transaction do.
    """
    return txn._writing


def flush(txn: Transaction) -> None:
    """Send all records written so far, and wait until the broker has acknowledged them."""
    txn._run(txn._writing.flush())


def flush_soon(txn: AsyncTransaction) -> Awaitable[None]:
    """Return an awaitable that does the same as `flush` in the asyncio client: it sends all records written so far, and
    waits until the broker has acknowledged them. Nothing is sent before it is awaited.
    """
    return txn._run_in_turn(txn._writing.flush)


def set_deadline(client: Client, txn: Transaction, deadline: float) -> None:
    """Set the deadline of a transaction of the blocking client, at which it is aborted: a time by `time.monotonic`."""
    txn._writing.deadline = deadline
    client._deadlines.add_transaction(txn._expire, deadline)


def set_deadline_in_loop(txn: AsyncTransaction, deadline: float) -> None:
    """Set the deadline of a transaction of the asyncio client, at which it is aborted: a time by the clock of the event
    loop.
    """
    txn._writing.deadline = deadline
    txn._watch_deadline()
