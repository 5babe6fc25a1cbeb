"""The client's side of DescribeTransactions: the coordinator's state of a transactional id."""

from dataclasses import field, fields, make_dataclass
from functools import cache
from types import GenericAlias
from typing import Any, Final

from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse, TransactionState
from kio.static.primitive import i64

from stablelog.client.connection import Connection
from stablelog.client.responses import check

_KIO_CONSTANTS: Final = ("__type__", "__version__", "__flexible__", "__api_key__", "__header_schema__")


def describe_transaction(connection: Connection, transactional_id: str) -> Any:
    """Return the coordinator's state of a transactional id. Its `transaction_start_time` is in ms, -1 without a
    transaction.

    Raises:
        RefusedError: the coordinator does not know the id.
        UnavailableError: the broker does not respond.
    """
    request = DescribeTransactionsRequest(transactional_ids=(transactional_id,))
    found = connection.call(request, _response_class()).transaction_states[0]
    check(found.error_code, f"transactional id {transactional_id!r}")
    return found


@cache
def _response_class() -> Any:
    """Return the response class of the kio library, changed so that the start time is a number: the original class
    rejects -1, which means that there is no transaction.
    """
    state = _with_field(TransactionState, "transaction_start_time", i64, "int64")
    return _with_field(
        DescribeTransactionsResponse, "transaction_states", GenericAlias(tuple, (state, ...)), None
    )


def _with_field(kio_class: Any, name: str, annotation: Any, kafka_type: str | None) -> Any:
    """Copy a message class, but give one field another type."""
    changed = {name: (annotation, {"kafka_type": kafka_type} if kafka_type else {})}
    members = [(f.name, *changed.get(f.name, (f.type, f.metadata))) for f in fields(kio_class)]
    return make_dataclass(
        kio_class.__name__,
        [(member, kind, field(metadata=metadata)) for member, kind, metadata in members],
        namespace={key: value for key, value in vars(kio_class).items() if key in _KIO_CONSTANTS},
        kw_only=True,
        frozen=True,
    )
