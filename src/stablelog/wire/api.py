"""The table of the APIs that stablelog supports: the versions of each API, and how its requests are served.

An API needs an entry in this table, and a module in `broker.apis` with the name of its key in lower case and a function
`handle`. The router, ApiVersions, the client and docs/protocol.md use this table. The classes of Kafka's messages are
those of the library kio. The messages of stablelog's own APIs are in `wire.extension`; their keys are from a range that
Kafka does not use.
"""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple


class ApiKey(IntEnum):
    """The API key: the number by which a request names its API."""

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


class Api(NamedTuple):
    """The versions of an API, and how its requests are served.

    Attributes:
        first_version: the first version that ApiVersions names.
        last_version: the last version that ApiVersions names, inclusive.
        served_from: the broker refuses requests of an older version, although ApiVersions names that version.
        extension: the module of `wire.extension` that has the messages; None if they are Kafka's.
        is_long_poll: the response may wait for the requests of other clients, until a timeout in the request.
        is_heavy: a request takes much processor time. A connection runs only one heavy request at a time. This delays
            no response, because the responses are sent in the order of the requests. Only for APIs that change
            nothing: a request that waits for its turn would be overtaken by later requests.
        is_appending: the handler itself acquires `Connection.appending`, the lock that keeps the order of a
            connection's appends, before its first await. If False, the router acquires this lock.
        is_alone: the router holds `Connection.appending` until the handler returns, because the handler changes state
            after an await. Otherwise the router releases the lock, and then calls the handler.
        repeats_request: clients often send the same short request again; the broker decodes such a request once.
        repeats_response: the broker often sends the same short response again, and encodes it once.
        has_long_response: a short request can have a response with thousands of entries.
    """

    first_version: int
    last_version: int
    served_from: int = 0
    extension: str | None = None
    is_long_poll: bool = False
    is_heavy: bool = False
    is_appending: bool = False
    is_alone: bool = False
    repeats_request: bool = False
    repeats_response: bool = False
    has_long_response: bool = False

    @property
    def served_versions(self) -> range:
        """The versions of the API whose requests the broker serves: from `served_from` on, which may exclude older ones
        that ApiVersions names.
        """
        return range(max(self.first_version, self.served_from), self.last_version + 1)


APIS: Final[Mapping[int, Api]] = MappingProxyType(
    {
        # ApiVersions names Produce from version 0, as Kafka does: without version 0, librdkafka before 2.11.1 would not
        # compress. Requests below version 3 are refused: only record batches of version 2 are accepted, and these need
        # version 3.
        ApiKey.PRODUCE: Api(0, 12, served_from=3, is_appending=True),
        ApiKey.FETCH: Api(4, 17, is_long_poll=True, is_heavy=True),
        ApiKey.LIST_OFFSETS: Api(1, 11, is_heavy=True),
        ApiKey.METADATA: Api(0, 13, is_heavy=True, has_long_response=True),
        ApiKey.OFFSET_COMMIT: Api(2, 9, is_appending=True),
        ApiKey.OFFSET_FETCH: Api(1, 9, is_heavy=True, has_long_response=True),
        ApiKey.FIND_COORDINATOR: Api(0, 5),
        ApiKey.JOIN_GROUP: Api(0, 9, is_long_poll=True, has_long_response=True),
        ApiKey.HEARTBEAT: Api(0, 4, repeats_request=True, repeats_response=True),
        ApiKey.LEAVE_GROUP: Api(0, 5, is_appending=True),
        ApiKey.SYNC_GROUP: Api(0, 5, is_long_poll=True),
        ApiKey.DESCRIBE_GROUPS: Api(0, 6, is_heavy=True, has_long_response=True),
        ApiKey.LIST_GROUPS: Api(0, 5, is_heavy=True, has_long_response=True),
        ApiKey.SASL_HANDSHAKE: Api(0, 1),
        ApiKey.API_VERSIONS: Api(0, 4),
        ApiKey.CREATE_TOPICS: Api(2, 7, is_alone=True),
        ApiKey.DELETE_TOPICS: Api(1, 6, is_alone=True),
        ApiKey.DELETE_RECORDS: Api(0, 2, is_alone=True),
        ApiKey.INIT_PRODUCER_ID: Api(0, 6, is_alone=True),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: Api(2, 4),
        ApiKey.ADD_PARTITIONS_TO_TXN: Api(
            0, 5, is_appending=True, repeats_request=True, repeats_response=True
        ),
        ApiKey.ADD_OFFSETS_TO_TXN: Api(0, 4, repeats_request=True, repeats_response=True),
        ApiKey.END_TXN: Api(0, 5, is_appending=True, repeats_request=True, repeats_response=True),
        ApiKey.WRITE_TXN_MARKERS: Api(1, 2, is_appending=True),
        ApiKey.TXN_OFFSET_COMMIT: Api(0, 5, is_appending=True, repeats_response=True),
        ApiKey.DESCRIBE_ACLS: Api(1, 3),
        ApiKey.CREATE_ACLS: Api(1, 3, is_alone=True),
        ApiKey.DELETE_ACLS: Api(1, 3, is_alone=True),
        ApiKey.DESCRIBE_CONFIGS: Api(1, 4, is_heavy=True, has_long_response=True),
        ApiKey.ALTER_CONFIGS: Api(0, 2, is_appending=True),
        ApiKey.ALTER_REPLICA_LOG_DIRS: Api(1, 2, is_heavy=True),
        ApiKey.DESCRIBE_LOG_DIRS: Api(1, 4, is_heavy=True, has_long_response=True),
        ApiKey.SASL_AUTHENTICATE: Api(0, 2),
        ApiKey.CREATE_PARTITIONS: Api(0, 3, is_alone=True),
        ApiKey.DELETE_GROUPS: Api(0, 2, is_appending=True),
        ApiKey.ELECT_LEADERS: Api(0, 2, is_heavy=True, has_long_response=True),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: Api(0, 1, is_appending=True),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: Api(0, 1, is_heavy=True),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: Api(0, 0),
        ApiKey.OFFSET_DELETE: Api(0, 0, is_appending=True),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: Api(0, 1, is_heavy=True, has_long_response=True),
        ApiKey.ALTER_CLIENT_QUOTAS: Api(0, 1, is_alone=True),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Api(0, 0, is_heavy=True),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Api(0, 0, is_appending=True),
        ApiKey.UPDATE_FEATURES: Api(0, 2, is_heavy=True),
        ApiKey.DESCRIBE_CLUSTER: Api(0, 2, is_heavy=True),
        ApiKey.DESCRIBE_PRODUCERS: Api(0, 0, is_heavy=True, has_long_response=True),
        ApiKey.DESCRIBE_TRANSACTIONS: Api(0, 0, is_heavy=True, has_long_response=True),
        ApiKey.LIST_TRANSACTIONS: Api(0, 2, is_heavy=True, has_long_response=True),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: Api(0, 1, is_appending=True),
        ApiKey.CONSUMER_GROUP_DESCRIBE: Api(0, 1, is_heavy=True, has_long_response=True),
        ApiKey.LIST_CONFIG_RESOURCES: Api(0, 1, is_heavy=True, has_long_response=True),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: Api(0, 0, is_heavy=True, has_long_response=True),
        ApiKey.BEGIN_JOINT: Api(0, 0, extension="joint", is_appending=True),
        ApiKey.COMMIT_JOINT: Api(0, 0, extension="joint", is_appending=True),
        ApiKey.ABORT_JOINT: Api(0, 0, extension="joint", is_appending=True),
        ApiKey.DESCRIBE_CUT: Api(0, 0, extension="cut", has_long_response=True),
        ApiKey.DESCRIBE_COMMITS: Api(0, 0, extension="commits", is_long_poll=True, has_long_response=True),
    }
)
