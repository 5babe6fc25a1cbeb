"""The live state of a coordinator as records, for a checkpoint that is written in slices.

Other changes happen between two slices, and append their own records. Replaying the log gives the newest state of each
key nevertheless, because of four rules:

- A record of `rest` is made when it is taken, from the state at that time, and the caller appends it before anything
  else changes. So it repeats what the log says at this point.
- A key that has been forgotten since the checkpoint began gives no record: its tombstone is in the log.
- A key that has come since the checkpoint began need not give one: its record is in the log behind the beginning.
- What depends on the order of records is in `undivided`, which the caller appends as one batch, first of all and before
  anything else changes. Such records that come later are in the log in their own order.
"""

from collections.abc import Iterator
from typing import NamedTuple


class LiveState(NamedTuple):
    """Records that hold the whole live state of a coordinator.

    Attributes:
        undivided: for one batch, which a crash keeps or takes away as a whole.
        rest: the other records; see above for when they are made.
    """

    undivided: list[tuple[bytes, bytes | None]]
    rest: Iterator[tuple[bytes, bytes | None]]
