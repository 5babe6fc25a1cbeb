"""The states of a partition, and the error codes of an API for a partition that is opening, offline or unknown.

The declaration of each API in `broker.apis` has its codes. A client retries only the error codes that it expects in the
responses of an API. So each code was chosen such that the Java client, librdkafka and franz-go retry the request, or
their admin tools end with a clear message. Format: docs/reference/protocol.md, "Partitions that cannot be used". A test compares
that table with the declarations.
"""

from enum import Enum
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


class PartitionCodes(NamedTuple):
    """The error codes with which one API refuses requests to partitions that are not open.

    A code that is None means that the API serves a partition in that state like an open one.

    Attributes:
        opening: for a partition that is being recovered after a start.
        offline: for a partition that could not be opened, or that has failed since. Also the code for a disk error or
            for damage that one request finds in an open partition.
        unknown: for an unknown topic name or partition index.
        unknown_id: for an unknown topic id; None if the API's requests contain no topic ids.
        storage_error_since: the first version of the API whose clients know KAFKA_STORAGE_ERROR. The responses of older
            versions contain NOT_LEADER_OR_FOLLOWER instead, as in Apache Kafka.
    """

    opening: ErrorCode | None
    offline: ErrorCode | None
    unknown: ErrorCode
    unknown_id: ErrorCode | None = None
    storage_error_since: int = 0

    def for_version(self, version: int) -> "PartitionCodes":
        """Return these codes as a response of this version of the API may contain them: old clients do not know
        KAFKA_STORAGE_ERROR.
        """
        if version >= self.storage_error_since or self.offline is not ErrorCode.kafka_storage_error:
            return self
        return self._replace(offline=ErrorCode.not_leader_or_follower)

    def code_for_state(self, state: PartitionState) -> ErrorCode | None:
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
        """Return the error for a request to a partition in a state in which the API does not serve it."""
        code = self.code_for_state(state)
        assert code is not None, f"served though {state.value}"
        return RefusedError(code, why)

    def code_for_error(self, error: Exception) -> ErrorCode:
        """Return the error code for an exception about one partition. PARTITION_ERRORS lists the possible classes of
        the exception.
        """
        if isinstance(error, RefusedError):
            return ErrorCode(error.code)
        return self.offline or ErrorCode.kafka_storage_error


# Errors that concern one partition. The disk raises FileNotFoundError if a file is missing, and otherwise DiskError,
# which is an UnavailableError. For these errors a handler puts an error code into the response for that partition, and
# serves the other partitions. Any other exception is unexpected.
PARTITION_ERRORS: Final = (RefusedError, DamageError, UnavailableError, FileNotFoundError)

# The codes of most APIs that read or write a partition, and of most APIs that only name a topic or a partition.
COMMON: Final = PartitionCodes(
    opening=ErrorCode.not_leader_or_follower,
    offline=ErrorCode.kafka_storage_error,
    unknown=ErrorCode.unknown_topic_or_partition,
)
NAMES_ONLY: Final = PartitionCodes(opening=None, offline=None, unknown=ErrorCode.unknown_topic_or_partition)
