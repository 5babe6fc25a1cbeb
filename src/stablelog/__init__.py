"""stablelog: a transactional log in Python that every Kafka client can use.

    serve           run a broker in a process of its own, in a `with` block; returns an `EmbeddedBroker`
    connect         make a client that writes and reads whole transactions; returns a `Client`
    aio.connect     make the same client for asyncio; `stablelog.aio` has its classes
    admin           the types of `Client.admin`
    spark.session   make a Spark session that knows format("stablelog")
    StablelogError  the base class of all errors; `stablelog.errors` has the tree of the classes

For all other purposes use any Kafka client with the address `EmbeddedBroker.bootstrap`.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stablelog import admin, aio, spark
    from stablelog.client.blocking.client import Client, connect
    from stablelog.client.blocking.group_reader import GroupReader
    from stablelog.client.blocking.reader import Reader
    from stablelog.client.blocking.transaction import Transaction
    from stablelog.client.core.outcomes import Committed
    from stablelog.client.core.positions import Position
    from stablelog.client.core.read_position import ReadPosition
    from stablelog.client.core.transaction_stream import CommittedTransaction, ReadRecord
    from stablelog.client.futures import WriteFuture, WriteManyFuture
    from stablelog.embedded import EmbeddedBroker, serve
    from stablelog.errors import (
        AuthenticationError,
        DamageError,
        DataLossError,
        FencedError,
        OffsetOutOfRangeError,
        OutcomeUnknownError,
        ProducerFencedError,
        RefusedError,
        StablelogError,
        TransactionAbortedError,
        UnavailableError,
        UnknownFormatError,
        UsageError,
    )

__version__ = "0.1.0"
__all__ = [
    "AuthenticationError",
    "Client",
    "Committed",
    "CommittedTransaction",
    "DamageError",
    "DataLossError",
    "EmbeddedBroker",
    "FencedError",
    "GroupReader",
    "OffsetOutOfRangeError",
    "OutcomeUnknownError",
    "Position",
    "ProducerFencedError",
    "ReadPosition",
    "ReadRecord",
    "Reader",
    "RefusedError",
    "StablelogError",
    "Transaction",
    "TransactionAbortedError",
    "UnavailableError",
    "UnknownFormatError",
    "UsageError",
    "WriteFuture",
    "WriteManyFuture",
    "__version__",
    "admin",
    "aio",
    "connect",
    "serve",
    "spark",
]


# The modules of the names that are not errors.
_MODULES = {
    "Client": "stablelog.client.blocking.client",
    "Committed": "stablelog.client.core.outcomes",
    "CommittedTransaction": "stablelog.client.core.transaction_stream",
    "EmbeddedBroker": "stablelog.embedded",
    "GroupReader": "stablelog.client.blocking.group_reader",
    "Position": "stablelog.client.core.positions",
    "ReadPosition": "stablelog.client.core.read_position",
    "ReadRecord": "stablelog.client.core.transaction_stream",
    "Reader": "stablelog.client.blocking.reader",
    "Transaction": "stablelog.client.blocking.transaction",
    "WriteFuture": "stablelog.client.futures",
    "WriteManyFuture": "stablelog.client.futures",
    "admin": "stablelog.admin",
    "aio": "stablelog.aio",
    "connect": "stablelog.client.blocking.client",
    "serve": "stablelog.embedded",
    "spark": "stablelog.spark",
}


def __dir__() -> list[str]:
    """Return the public names of the package, also those that are not imported yet."""
    return sorted({*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__"})


if not TYPE_CHECKING:  # a type checker knows the names above, and refuses all others

    def __getattr__(name: str) -> Any:
        """Import a public name when a program first uses it, so that `import stablelog` is fast."""
        if name not in __all__:
            raise AttributeError(f"module 'stablelog' has no attribute {name!r}")
        # The library kio imports an installed hypothesis, which writes to the current directory, unless this entry is
        # None.
        is_hidden = "hypothesis" not in sys.modules
        if is_hidden:
            sys.modules["hypothesis"] = None
        try:
            module = import_module(_MODULES.get(name, "stablelog.errors"))
        finally:
            if is_hidden:
                del sys.modules["hypothesis"]
        return module if module.__name__ == f"stablelog.{name}" else getattr(module, name)
