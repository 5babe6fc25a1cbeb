"""The insides of what a program gets from the client, for the tests of stablelog. No program needs them.

The classes of the client have no public attribute that is not meant for programs. A test that looks behind them, or that
makes something happen there, calls these functions.
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
    """Return the pool of the clusters that no transaction and no reader of a client uses now."""
    return client._clusters


def keys_of(client: Client | AsyncClient) -> WriterKeyPool:
    """Return the pool of the keys of joint commits that no transaction of a client uses now."""
    return client._writers.keys


def reading_of(reader: GroupReader | AsyncGroupReader) -> GroupReading:
    """Return what decides what a reader of a consumer group reads and commits."""
    return reader._reading


def is_in_use(reader: BaseReader[Any] | BaseGroupReader[Any]) -> bool:
    """Return whether a call of a reader is running."""
    return reader._calls.is_running


def writing_of(txn: Transaction | AsyncTransaction) -> Writing:
    """Return what decides what a transaction sends and how it ends."""
    return txn._writing


def flush(txn: Transaction) -> None:
    """Send what was written so far, and wait until the broker has it."""
    txn._run(txn._writing.flush())


def flush_soon(txn: AsyncTransaction) -> Awaitable[None]:
    """As `flush`."""
    return txn._run(txn._writing.flush)


def set_deadline(client: Client, txn: Transaction, deadline: float) -> None:
    """Set the time (`time.monotonic`) at which a transaction is aborted."""
    txn._writing.deadline = deadline
    client._deadlines.add(txn._expire, deadline)


def set_deadline_in_loop(txn: AsyncTransaction, deadline: float) -> None:
    """As `set_deadline`, in the event loop of the transaction."""
    txn._writing.deadline = deadline
    txn._watch_deadline()
