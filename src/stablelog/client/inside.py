"""The insides of what a program gets from the client, for the tests of stablelog. No program needs them.

The classes of the client have no public attribute that is not meant for programs. A test that looks behind them, or that
makes something happen there, calls these functions.
"""

from typing import Any

from stablelog.client.aio.client import AsyncClient
from stablelog.client.aio.group_reader import AsyncGroupReader
from stablelog.client.cluster_pool import ClusterPool
from stablelog.client.core.group_reading import GroupReading
from stablelog.client.deadlines import Deadlines
from stablelog.client.group_reader import GroupReader
from stablelog.client.keys import WriterKeys
from stablelog.client.native import Client

# ruff: noqa: SLF001


def clusters_of(client: Client | AsyncClient) -> ClusterPool[Any]:
    """Return the pool of the clusters that no transaction and no reader of a client uses now."""
    return client._clusters


def keys_of(client: Client | AsyncClient) -> WriterKeys:
    """Return the pool of the keys of joint commits that no transaction of a client uses now."""
    return client._writers.keys


def deadlines_of(client: Client) -> Deadlines:
    """Return what aborts the transactions of a client at their deadlines."""
    return client._deadlines


def reading_of(reader: GroupReader | AsyncGroupReader) -> GroupReading:
    """Return what decides what a reader of a consumer group reads and commits."""
    return reader._reading
