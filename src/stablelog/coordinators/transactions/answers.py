"""Decisions and answers of the transaction coordinator.

A decision consists of records for the commit log (the log of the coordinator), marker orders (each says which marker is
to be written to which partitions) and the answer to a request. The broker carries out a decision in three steps. It
appends the records to the commit log. When they and all earlier records are durable, it writes the markers to the
partitions. Then it sends the answer.
"""

from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from stablelog.coordinators.record_fields import Record
from stablelog.coordinators.transactions.marker_orders import MarkerOrder
from stablelog.coordinators.transactions.transaction import NO_EPOCH, NO_PRODUCER_ID

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Decision(Generic[Answer]):
    """A decision of the transaction coordinator. The broker first appends the records, then writes the markers, and
    then sends the answer.

    Attributes:
        records: records for the commit log, appended as one batch, so a crash keeps or loses all of them.
        markers: markers for the partitions, written when the records are durable.
        answer: the answer to the request, sent when the records and all earlier ones are durable and the markers are
            written.
    """

    answer: Answer
    records: list[Record] = field(default_factory=list)
    markers: list[MarkerOrder] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft of a decision: the records and markers of a decision that the coordinator is still making. The steps that
    make the decision add to both lists.

    Attributes:
        now_ms: broker time, which never goes back, in ms.
        records: records for the commit log.
        markers: markers for the partitions.
    """

    now_ms: int
    records: list[Record] = field(default_factory=list)
    markers: list[MarkerOrder] = field(default_factory=list)

    def decision(self, answer: Answer) -> Decision[Answer]:
        """Return the finished decision: the records and markers of this draft, and this answer to the request."""
        return Decision(answer, self.records, self.markers)


class InitAnswer(NamedTuple):
    """The answer to InitProducerId.

    Attributes:
        error: the error code.
        producer_id: the producer's id; -1 after an error.
        producer_epoch: the producer's epoch; -1 after an error.
        ongoing_producer_id: the producer id of the open transaction that the producer keeps (KIP-939); -1 if it keeps
            none.
        ongoing_producer_epoch: the producer epoch of that transaction; -1 if it keeps none.
    """

    error: ErrorCode = ErrorCode.none
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    ongoing_producer_id: int = NO_PRODUCER_ID
    ongoing_producer_epoch: int = NO_EPOCH


class EndAnswer(NamedTuple):
    """The answer to EndTxn.

    Attributes:
        error: the error code.
        producer_id: with transaction version 2, the producer id of the producer's next requests; with version 1, -1.
        producer_epoch: with transaction version 2, the producer epoch of these requests; with version 1, -1.
    """

    error: ErrorCode = ErrorCode.none
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class Listed(NamedTuple):
    """A transactional id in the answer to ListTransactions.

    Attributes:
        transactional_id: the transactional id.
        producer_id: its producer id.
        state: Kafka's name of its state, such as "Ongoing".
    """

    transactional_id: str
    producer_id: int
    state: str
