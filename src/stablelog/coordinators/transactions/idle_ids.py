"""Transactional ids without an open transaction, in little memory.

Nearly all transactional ids are idle. The coordinator keeps an idle id as the encoded value of its record, about 65
bytes, and decodes the value when a request needs it. Recently used ids are kept decoded, too. The ids are in the order
of their last use. So the ids that expire first come first, without a queue of deadlines.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Final

from stablelog.coordinators.transactions.log_ends import NO_ENDS
from stablelog.coordinators.transactions.partition_set import NO_PARTITIONS
from stablelog.coordinators.transactions.records import (
    IdleHead,
    decode_transaction,
    encode_transaction,
    read_idle_head,
)
from stablelog.coordinators.transactions.transaction import TransactionMetadata

DECODED_MAX: Final = 1000  # The number of idle ids that are also kept decoded.


class IdleIds:
    """The idle transactional ids, those without an open transaction, in the order of their last use."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._decoded: OrderedDict[str, TransactionMetadata] = OrderedDict()
        self._owners: dict[int, str] | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def get(self, transactional_id: str) -> TransactionMetadata | None:
        """Return the decoded state of an idle transactional id (one without an open transaction); None if the id is not
        idle.
        """
        txn = self._decoded.get(transactional_id)
        if txn is None and transactional_id in self._values:
            txn = decode_transaction(self._values[transactional_id])
            self._keep_decoded(transactional_id, txn)
        return txn

    def value(self, transactional_id: str) -> bytes | None:
        """Return the encoded record value of an idle transactional id (one without an open transaction); None if the id
        is not idle.
        """
        return self._values.get(transactional_id)

    def put(self, transactional_id: str, txn: TransactionMetadata, value: bytes) -> None:
        """Add an idle id as the most recently used one.

        Args:
            transactional_id: the id.
            txn: its state, without an open transaction.
            value: the encoded value of its record.
        """
        assert not txn.state.is_open
        self.put_encoded(transactional_id, value)
        if self._owners is not None:
            self._owners[txn.producer_id] = transactional_id
        self._keep_decoded(transactional_id, txn)

    def put_encoded(self, transactional_id: str, value: bytes) -> None:
        """Add an idle transactional id (one without an open transaction) as the most recently used one, in encoded form
        only.
        """
        assert transactional_id not in self._values
        self._values[transactional_id] = value

    def remove(self, transactional_id: str) -> bool:
        """Remove a transactional id. Return whether it was among the idle ids, those without an open transaction."""
        self._decoded.pop(transactional_id, None)
        return self._values.pop(transactional_id, None) is not None

    def oldest(self, count_max: int) -> Iterator[tuple[str, IdleHead]]:
        """Yield the ids that were not used for the longest time, at most `count_max`, each in a pair with those fields
        of its record that `read_idle_head` reads.
        """
        return ((key, read_idle_head(value)) for key, value in list(islice(self._values.items(), count_max)))

    def head(self, transactional_id: str) -> IdleHead | None:
        """Return the head of an idle transactional id (one without an open transaction): the fields that can be read
        without decoding its whole record. None if the id is not idle.
        """
        value = self._values.get(transactional_id)
        return None if value is None else read_idle_head(value)

    # -- start -------------------------------------------------------------------------------------------------

    def sort(self) -> None:
        """Sort the ids by the time of their last use. After a replay they have the order of the log, which can differ."""
        self._values = dict(sorted(self._values.items(), key=lambda item: read_idle_head(item[1]).update_ms))

    def clamp_times(self, now_ms: int) -> None:
        """Replace each time of last use that is later than `now_ms` by `now_ms`. If the machine's clock was set back,
        an id may have such a time in the future, and would expire too late.
        """
        assert not self._decoded, "an id was read before its times were right"
        for transactional_id, value in self._values.items():
            if (txn := decode_transaction(value)).latest_ms > now_ms:
                self._values[transactional_id] = encode_transaction(txn.with_clamped_times(now_ms))

    def index_owners(self) -> None:
        """Build an index from producer ids to idle ids (transactional ids without an open transaction), which makes
        `owner_of` fast. The index takes about 100 bytes for each id.
        """
        self._owners = {read_idle_head(value).producer_id: key for key, value in self._values.items()}

    def drop_owner_index(self) -> None:
        """Free the memory of the index from producer ids to transactional ids that `index_owners` built."""
        self._owners = None

    def owner_of(self, producer_id: int) -> str | None:
        """Return the idle transactional id (one without an open transaction) that has a producer id; None if no idle id
        has it.

        Without the index of `index_owners`, this method reads a part of every record.
        """
        candidates = self._values if self._owners is None else [self._owners.get(producer_id, "")]
        heads = ((key, self.head(key)) for key in candidates)
        return next((key for key, head in heads if head and head.producer_id == producer_id), None)

    def _keep_decoded(self, transactional_id: str, txn: TransactionMetadata) -> None:
        self._decoded[transactional_id] = txn
        if len(self._decoded) > DECODED_MAX:
            self._decoded.popitem(last=False)


def idle_value(txn: TransactionMetadata, value: bytes) -> bytes:
    """Return the encoded state of a transactional id without an open transaction, in the form in which `IdleIds` stores
    it.

    Args:
        txn: the state of the id.
        value: the value of its record in the commit log.

    Returns:
        `value` itself if `read_idle_head` can read it; otherwise `txn` encoded again, without partitions.
    """
    if value[1] == 1 and not txn.partitions:
        return value
    return encode_transaction(txn._replace(partitions=NO_PARTITIONS, ends=NO_ENDS))
