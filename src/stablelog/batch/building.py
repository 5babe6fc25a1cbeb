"""A record batch that a client fills record by record. Each record is encoded when it is added."""

from collections.abc import Sequence
from typing import Final

from stablelog.batch.compression import compress
from stablelog.batch.header import MAGIC, NO_PRODUCER, NO_SEQUENCE, BatchHeader, Codec, assemble
from stablelog.batch.records import Header, encode_record

# The bytes of the records, how many records there are, the timestamp of the first one, and the greatest timestamp.
BatchState = tuple[int, int, int, int]
EMPTY: Final[BatchState] = (0, 0, 0, 0)


class BatchBuilder:
    """A batch to which records are added until `build` makes its bytes.

    A signal handler may raise an exception at any line of `add`. A record therefore belongs to the batch only when
    `state` counts it, which `add` sets last.

    Attributes:
        state: the size and number of the records, and their first and greatest timestamp. Setting it to an earlier
            value removes the records that were added since.
    """

    __slots__ = ("_body", "state")

    def __init__(self) -> None:
        self._body = bytearray()
        self.state = EMPTY

    @property
    def size(self) -> int:
        """The bytes of the records, before compression."""
        return self.state[0]

    @property
    def count(self) -> int:
        """The number of records."""
        return self.state[1]

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        timestamp_ms: int,
        size_max: int,
    ) -> int:
        """Add a record to the batch, if the records then have at most `size_max` bytes. The first record is always
        added.

        Returns:
            The size of the added record in bytes; 0 if it was not added.
        """
        size, count, base, latest = self.state
        if not count:
            base = latest = timestamp_ms
        record = encode_record(key, value, headers, count, timestamp_ms - base)
        added = len(record)
        if count and size + added > size_max:
            return 0
        body = self._body
        if len(body) != size:
            del body[size:]  # a record that is not in `state`
        body += record
        self.state = (size + added, count + 1, base, latest if latest > timestamp_ms else timestamp_ms)
        return added

    def build(self, codec: Codec) -> bytearray:
        """Return the bytes of the batch. The producer id, epoch and sequence number are not set yet; `batch.stamping`
        writes them before the batch is sent.
        """
        size, count, base, latest = self.state
        assert count, "a batch of no records"
        del self._body[size:]
        header = BatchHeader(
            0,
            0,
            -1,
            MAGIC,
            0,
            codec,
            count - 1,
            base,
            latest,
            NO_PRODUCER,
            -1,
            NO_SEQUENCE,
            count,
        )
        return bytearray(assemble(header, compress(codec, self._body)))
