"""The present state of a coordinator as records, for a checkpoint: these records are appended to the coordinator's log,
and the older records can then be deleted.

A checkpoint is appended in slices. The coordinator makes other decisions between two slices, and their records are
appended too. A replay of the log nevertheless gives the newest state of each key. Four rules about two parts of
`LiveState`, `undivided` and `rest`, ensure this:

- A record of `rest` is made when the caller takes it, from the state at that time. The caller appends the record before
  the state changes again. The record therefore repeats the latest record of its key in the log.
- A key that was removed after the checkpoint began has no record in `rest`: its tombstone is in the log.
- A key that was added after the checkpoint began needs no record in `rest`: the record that added the key stands in the
  log after the beginning of the checkpoint.
- `undivided` holds the records whose order matters. The caller appends these as one batch, before all other records and
  before the state changes again. Later records whose order matters stand in the log in their own order.

The third part, `ordered`, is for records whose order matters only within a small item, such as those of one key. It can
contain records of open transactions, which are appended as a part of their transaction. The caller takes the items
after the last record of `rest`. It appends all records of an item, in their order, before the state changes again.
"""

from collections.abc import Iterator
from typing import NamedTuple

from stablelog.coordinators.record_fields import Record


class OwnedRecord(NamedTuple):
    """A record for a coordinator's log, and the producer id of the open transaction that owns it: the record is
    appended as a part of this transaction.

    `producer_id` is None for a record outside transactions.
    """

    producer_id: int | None
    record: Record


class LiveState(NamedTuple):
    """The whole present state of a coordinator as records, to be appended to the coordinator's log again.

    Attributes:
        undivided: records whose order matters. The caller appends them as one batch, so a crash keeps or loses all of
            them.
        rest: records whose order does not matter. Each is made when the caller takes it from the iterator.
        ordered: small lists of records; the order matters within a list. Each list is made when the caller takes it,
            after the last record of `rest`.
    """

    undivided: list[Record]
    rest: Iterator[Record]
    ordered: Iterator[list[OwnedRecord]] = iter(())
