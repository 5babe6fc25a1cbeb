"""Transactional ids without an open transaction: nearly all of them, so each costs little memory.

Such an id is kept as the bytes of its record, about 65 of them, and decoded when it is asked for. Those that were used
last are kept decoded, too. The ids stand in the order of their last use, so that the longest unused come first and no
queue has to say when each expires.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Final

from stablelog.coordinators.transactions.log_ends import NO_ENDS
from stablelog.coordinators.transactions.records import (
    IdleHead,
    Transaction,
    decode_transaction,
    encode_transaction,
    read_idle_head,
)

DECODED_MAX: Final = 1000  # ids that are kept decoded


class IdleIds:
    """The transactional ids without an open transaction, the longest unused first."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._decoded: OrderedDict[str, Transaction] = OrderedDict()
        self._owners: dict[int, str] | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def get(self, transactional_id: str) -> Transaction | None:
        """The state of an id; None if it is not here."""
        txn = self._decoded.get(transactional_id)
        if txn is None:
            value = self._values.get(transactional_id)
            if value is None:
                return None
            txn = decode_transaction(value)
            self._keep_decoded(transactional_id, txn)
        return txn

    def value(self, transactional_id: str) -> bytes | None:
        """The value of the id's record; None if it is not here."""
        return self._values.get(transactional_id)

    def put(self, transactional_id: str, txn: Transaction, value: bytes) -> None:
        """Add an id that is not here, as the one that was used last.

        Args:
            transactional_id: the id.
            txn: its state, without an open transaction.
            value: of its record.
        """
        assert not txn.state.is_open
        self.put_encoded(transactional_id, value)
        if self._owners is not None:
            self._owners[txn.producer_id] = transactional_id
        self._keep_decoded(transactional_id, txn)

    def put_encoded(self, transactional_id: str, value: bytes) -> None:
        """The same, with its record only."""
        assert transactional_id not in self._values
        self._values[transactional_id] = value

    def remove(self, transactional_id: str) -> bool:
        """Take an id out. Returns whether it was here."""
        self._decoded.pop(transactional_id, None)
        return self._values.pop(transactional_id, None) is not None

    def oldest(self, count_max: int) -> list[tuple[str, IdleHead]]:
        """The longest unused ids, at most so many."""
        return [(key, read_idle_head(value)) for key, value in islice(self._values.items(), count_max)]

    def head(self, transactional_id: str) -> IdleHead | None:
        """What can be read of an id without decoding its record; None if it is not here."""
        value = self._values.get(transactional_id)
        return None if value is None else read_idle_head(value)

    def heads(self) -> Iterator[tuple[str, IdleHead]]:
        """All ids, with what can be read without decoding the record."""
        for transactional_id, value in self._values.items():
            yield transactional_id, read_idle_head(value)

    # -- start -------------------------------------------------------------------------------------------------

    def sort(self) -> None:
        """Put the ids into the order of their last use: a log may have them in another."""
        self._values = dict(sorted(self._values.items(), key=lambda item: read_idle_head(item[1]).update_ms))

    def clamp_times(self, now_ms: int) -> None:
        """Make times after `now_ms` into `now_ms`."""
        assert not self._decoded, "nothing has been asked for before the times are right"
        for transactional_id, value in self._values.items():
            if (txn := decode_transaction(value)).latest_ms > now_ms:
                self._values[transactional_id] = encode_transaction(txn.clamped(now_ms))

    def index_owners(self) -> None:
        """Make `owner` fast for the ids that are here now, until `drop_owner_index`: about 100 bytes for each."""
        self._owners = {head.producer_id: transactional_id for transactional_id, head in self.heads()}

    def drop_owner_index(self) -> None:
        """Give the memory of the index back."""
        self._owners = None

    def owner(self, producer_id: int) -> str | None:
        """The id that a producer id belongs to. Looks at every id, unless there is an index."""
        if self._owners is None:
            return next((key for key, head in self.heads() if head.producer_id == producer_id), None)
        found = self._owners.get(producer_id)
        value = None if found is None else self._values.get(found)
        return found if value is not None and read_idle_head(value).producer_id == producer_id else None

    def _keep_decoded(self, transactional_id: str, txn: Transaction) -> None:
        self._decoded[transactional_id] = txn
        if len(self._decoded) > DECODED_MAX:
            self._decoded.popitem(last=False)


def idle_value(txn: Transaction, value: bytes) -> bytes:
    """The value to keep for a record that was read: the same, if `read_idle_head` can read it."""
    if value[1] == 1 and not txn.partitions:
        return value
    return encode_transaction(txn._replace(partitions=frozenset(), ends=NO_ENDS))
