"""The error codes for a partition that is opening, offline or unknown, by API.

A client retries only the error codes that it expects in the responses of an API. So each code in the table CODES is one
that the Java client, librdkafka and franz-go retry, or one after which their admin tools end with a clear message.
Format: docs/protocol.md, "Partitions that cannot be used". A test compares that table with this one.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.errors import DamageError, RefusedError, UnavailableError


class PartitionState(Enum):
    """The states of a partition: open, or a reason why it serves no requests."""

    OPEN = "open"
    # The partition is being recovered after a start; it will open without any action of an operator.
    OPENING = "opening"
    # The partition could not be opened, or has failed since; it needs a repair or a restart of the broker.
    OFFLINE = "offline"
    UNKNOWN = "unknown"  # No topic has this name, or the topic has fewer partitions.
    UNKNOWN_ID = "unknown topic id"  # No topic has this id.


class Codes(NamedTuple):
    """The error codes of one API for partitions that are not open.

    A code that is None means: the API serves a partition in that state like an open one.

    Attributes:
        opening: for a partition that is being recovered after a start.
        offline: for a partition whose opening failed, or that failed at run time. Also the code for a disk error or
            for damage that one request meets in an open partition.
        unknown: for an unknown topic name or partition index.
        unknown_id: for an unknown topic id; None if the API's requests contain no topic ids.
        storage_error_since: the first version whose clients know KAFKA_STORAGE_ERROR. In older versions the
            response contains NOT_LEADER_OR_FOLLOWER in its place, as in Apache Kafka.
    """

    opening: ErrorCode | None
    offline: ErrorCode | None
    unknown: ErrorCode
    unknown_id: ErrorCode | None = None
    storage_error_since: int = 0

    def for_version(self, version: int) -> "Codes":
        """Return the error codes for a response of this version of the API."""
        if version >= self.storage_error_since or self.offline is not ErrorCode.kafka_storage_error:
            return self
        return self._replace(offline=ErrorCode.not_leader_or_follower)

    def of(self, state: PartitionState) -> ErrorCode | None:
        """Return the error code for a partition in this state; None if the API serves such a partition."""
        codes = {
            PartitionState.OPEN: None,
            PartitionState.OPENING: self.opening,
            PartitionState.OFFLINE: self.offline,
            PartitionState.UNKNOWN: self.unknown,
            PartitionState.UNKNOWN_ID: self.unknown_id,
        }
        return codes[state]

    def refusal(self, state: PartitionState, why: str) -> RefusedError:
        """Make the error for a partition in a state in which the API does not serve it."""
        code = self.of(state)
        assert code is not None, f"served though {state.value}"
        return RefusedError(code, why)

    def of_error(self, error: Exception) -> ErrorCode:
        """Return the error code for an exception that concerns one partition (one of PARTITION_ERRORS)."""
        if isinstance(error, RefusedError):
            return ErrorCode(error.code)
        return self.offline or ErrorCode.kafka_storage_error


# Errors that concern one partition. The disk raises FileNotFoundError if a file is missing, and otherwise DiskError,
# which is an UnavailableError. For these errors a handler puts an error code into the response for that partition, and
# serves the other partitions. Any other exception is unexpected.
PARTITION_ERRORS: Final = (RefusedError, DamageError, UnavailableError, FileNotFoundError)

_STORAGE: Final = ErrorCode.kafka_storage_error
_UNKNOWN: Final = ErrorCode.unknown_topic_or_partition
_UNKNOWN_ID: Final = ErrorCode.unknown_topic_id

COMMON: Final = Codes(opening=ErrorCode.not_leader_or_follower, offline=_STORAGE, unknown=_UNKNOWN)
_NAMES_ONLY: Final = Codes(opening=None, offline=None, unknown=_UNKNOWN)

# The table is in the order of the API keys. An API that is missing here has no partition or topic in its requests.
CODES: Final[Mapping[str, Codes]] = MappingProxyType(
    {
        "Produce": COMMON._replace(storage_error_since=4),
        "Fetch": COMMON._replace(unknown_id=_UNKNOWN_ID, storage_error_since=6),
        "ListOffsets": COMMON,
        # The response has this code and leader -1, as in Apache Kafka for a partition without a live replica: producers
        # choose other partitions.
        "Metadata": Codes(
            opening=ErrorCode.leader_not_available,
            offline=ErrorCode.leader_not_available,
            unknown=_UNKNOWN,
            unknown_id=_UNKNOWN_ID,
        ),
        "OffsetCommit": _NAMES_ONLY,
        "DeleteTopics": _NAMES_ONLY._replace(unknown_id=_UNKNOWN_ID),
        "DeleteRecords": COMMON,
        "OffsetForLeaderEpoch": COMMON,
        # An offline partition is not added to a transaction: the transaction could not get its marker there, and its
        # transactional id could then begin no other transaction.
        "AddPartitionsToTxn": _NAMES_ONLY._replace(offline=_STORAGE),
        "AddPartitionsToTxn, verifyOnly": _NAMES_ONLY,
        "WriteTxnMarkers": COMMON,
        "TxnOffsetCommit": _NAMES_ONLY,
        # Apache Kafka refuses to move an offline replica, too.
        "AlterReplicaLogDirs": _NAMES_ONLY._replace(offline=_STORAGE),
        "CreatePartitions": _NAMES_ONLY,
        # An open partition needs no election.
        "ElectLeaders": Codes(
            opening=ErrorCode.preferred_leader_not_available,
            offline=ErrorCode.preferred_leader_not_available,
            unknown=_UNKNOWN,
        ),
        "ElectLeaders, unclean": Codes(
            opening=ErrorCode.eligible_leaders_not_available,
            offline=ErrorCode.eligible_leaders_not_available,
            unknown=_UNKNOWN,
        ),
        "AlterPartitionReassignments": _NAMES_ONLY,
        "OffsetDelete": _NAMES_ONLY,
        "DescribeProducers": COMMON,
        "DescribeTopicPartitions": Codes(
            opening=ErrorCode.leader_not_available,
            offline=ErrorCode.leader_not_available,
            unknown=_UNKNOWN,
        ),
        "CommitJoint": _NAMES_ONLY,
        "DescribeCut": COMMON,
        "DescribeCommits": COMMON,
    }
)
