"""The keys of the supported APIs, and those properties of an API that the encoding of messages and the connections
need.

The module of each API in `broker.apis` declares its API. The classes of Kafka's messages are those of the library kio.
The messages of stablelog's own APIs are in `wire.extension`; their keys are from a range that Kafka does not use.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class ApiKey(IntEnum):
    """The API key: the number by which a request identifies its API."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    BEGIN_JOINT = 10_001
    COMMIT_JOINT = 10_002
    ABORT_JOINT = 10_003
    DESCRIBE_CUT = 10_004
    DESCRIBE_COMMITS = 10_005

    @property
    def snake_name(self) -> str:
        """The name of the API in snake case, as in the names of modules and metrics: `end_txn`."""
        return self.name.lower()

    @property
    def message_name(self) -> str:
        """The name of the API in camel case, as in the names of message classes: `EndTxn`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


# For the question whether a number is the key of an API.
API_KEYS: Final[frozenset[int]] = frozenset(ApiKey)


@dataclass(frozen=True, eq=False)
class Api:
    """The versions of an API, and how its requests are served.

    Attributes:
        key: the API key.
        first_version: the first version that ApiVersions names.
        last_version: the last version that ApiVersions names, inclusive.
        served_from: the first version that the broker serves. It refuses requests of an older one, even if ApiVersions
            names that version because some clients need to see it there.
        is_long_poll: the broker may hold the response back until other clients have sent requests (a fetch waits for
            new records), at most for the timeout that the request contains.
        is_heavy: a request takes much processor time. A connection runs only one heavy request at a time. This delays
            no response, because the responses are sent in the order of the requests. Later requests of other APIs may
            run while a heavy request waits for its turn, so only an API that changes nothing may be heavy.
        is_appending: the handler itself acquires `Connection.appending`, the lock that keeps the order of a
            connection's appends, before its first await. If False, the router acquires this lock.
        is_alone: the router holds `Connection.appending` (see `is_appending`) until the handler returns, because the
            handler changes state after an await. Otherwise the router releases the lock, and then calls the handler.
        repeats_request: clients often send the same short request again; the broker decodes such a request once.
        repeats_response: the broker often sends the same short response again, and encodes it once.
        has_long_response: a short request can have a response with thousands of entries.
    """

    key: int
    first_version: int
    last_version: int
    served_from: int = 0
    is_long_poll: bool = False
    is_heavy: bool = False
    is_appending: bool = False
    is_alone: bool = False
    repeats_request: bool = False
    repeats_response: bool = False
    has_long_response: bool = False

    @property
    def served_versions(self) -> range:
        """The versions of the API whose requests the broker serves.

        They begin at the attribute `served_from`. The response to ApiVersions may also name older versions; their
        requests are refused.
        """
        return range(max(self.first_version, self.served_from), self.last_version + 1)
