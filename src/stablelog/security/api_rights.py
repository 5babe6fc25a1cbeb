"""The rights that each API needs: the operation on the resource, and what a client without the right gets.

The handlers in `broker.apis` ask for these rights, docs/security.md lists them, and the tests hold both to this table.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from stablelog.wire.acls import Operation, ResourceType
from stablelog.wire.api import ApiKey


class Right(NamedTuple):
    """A right that an API asks for.

    Attributes:
        of: the resource: which one of the request.
        without: what a client without the right gets. Empty: the error code for resources of the type.
    """

    operation: Operation
    kind: ResourceType
    of: str
    without: str = ""


LEFT_OUT: Final = "left out"

_TOPICS: Final = "each topic"
_NAMED: Final = "each named topic"
_GROUP: Final = "the group"
_TXN_ID: Final = "the transactional id"
_CLUSTER: Final = "the cluster"


def _topic(operation: Operation, of: str = _TOPICS, without: str = "") -> Right:
    return Right(operation, ResourceType.TOPIC, of, without)


def _group(operation: Operation, of: str = _GROUP, without: str = "") -> Right:
    return Right(operation, ResourceType.GROUP, of, without)


def _txn_id(operation: Operation, of: str = _TXN_ID, without: str = "") -> Right:
    return Right(operation, ResourceType.TRANSACTIONAL_ID, of, without)


def _cluster(operation: Operation, of: str = _CLUSTER, without: str = "") -> Right:
    return Right(operation, ResourceType.CLUSTER, of, without)


_ALTER_CONFIGS: Final = (
    _topic(Operation.ALTER_CONFIGS, "a topic whose settings change"),
    _group(Operation.ALTER_CONFIGS, "a group whose settings change"),
    _cluster(Operation.ALTER_CONFIGS, "the cluster, for settings of brokers"),
)
_JOINT: Final = _txn_id(Operation.WRITE, "`[<group>/]joint:<key>:` and each named child")

RIGHTS: Final[Mapping[ApiKey, tuple[Right, ...]]] = MappingProxyType(
    {
        ApiKey.PRODUCE: (_topic(Operation.WRITE), _txn_id(Operation.WRITE)),
        ApiKey.FETCH: (_topic(Operation.READ),),
        ApiKey.LIST_OFFSETS: (_topic(Operation.DESCRIBE),),
        ApiKey.METADATA: (
            _topic(Operation.DESCRIBE, _NAMED, "the error code; by id UNKNOWN_TOPIC_ID"),
            _topic(Operation.DESCRIBE, "each topic, if all are asked for", LEFT_OUT),
            _cluster(Operation.CREATE, "the cluster, to create a missing topic", "the next right is needed"),
            _topic(Operation.CREATE, "a missing topic that is to be created"),
        ),
        ApiKey.OFFSET_COMMIT: (_group(Operation.READ), _topic(Operation.READ)),
        ApiKey.OFFSET_FETCH: (
            _group(Operation.DESCRIBE, "each group"),
            _topic(Operation.DESCRIBE, _NAMED),
            _topic(Operation.DESCRIBE, "each topic, if all are asked for", LEFT_OUT),
        ),
        ApiKey.FIND_COORDINATOR: (
            _group(Operation.DESCRIBE, "each group"),
            _txn_id(Operation.DESCRIBE, "each transactional id"),
        ),
        ApiKey.JOIN_GROUP: (_group(Operation.READ),),
        ApiKey.HEARTBEAT: (_group(Operation.READ),),
        ApiKey.LEAVE_GROUP: (_group(Operation.READ),),
        ApiKey.SYNC_GROUP: (_group(Operation.READ),),
        ApiKey.DESCRIBE_GROUPS: (_group(Operation.DESCRIBE, "each group"),),
        ApiKey.LIST_GROUPS: (
            _cluster(Operation.DESCRIBE, _CLUSTER, "the next right is needed"),
            _group(Operation.DESCRIBE, "each group", LEFT_OUT),
        ),
        ApiKey.SASL_HANDSHAKE: (),
        ApiKey.API_VERSIONS: (),
        ApiKey.CREATE_TOPICS: (
            _cluster(Operation.CREATE, _CLUSTER, "the next right is needed"),
            _topic(Operation.CREATE),
            _topic(Operation.DESCRIBE_CONFIGS, _TOPICS, "the response lacks the settings"),
        ),
        ApiKey.DELETE_TOPICS: (
            _topic(Operation.DELETE),
            _topic(Operation.DESCRIBE, "each topic named by id", "the error lacks the name"),
        ),
        ApiKey.DELETE_RECORDS: (_topic(Operation.DELETE),),
        ApiKey.INIT_PRODUCER_ID: (
            _txn_id(Operation.WRITE),
            _txn_id(Operation.TWO_PHASE_COMMIT, "the transactional id, with `enable2Pc`"),
            _topic(Operation.WRITE, "any topic, without a transactional id", "the next right is needed"),
            _cluster(Operation.IDEMPOTENT_WRITE, "the cluster, without a transactional id"),
        ),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: (_topic(Operation.DESCRIBE),),
        ApiKey.ADD_PARTITIONS_TO_TXN: (
            _txn_id(Operation.WRITE, "the transactional id, before v4"),
            _topic(Operation.WRITE, "each topic, before v4"),
            _cluster(Operation.CLUSTER_ACTION, "the cluster, from v4 on"),
        ),
        ApiKey.ADD_OFFSETS_TO_TXN: (_txn_id(Operation.WRITE), _group(Operation.READ)),
        ApiKey.END_TXN: (_txn_id(Operation.WRITE),),
        ApiKey.WRITE_TXN_MARKERS: (
            _cluster(Operation.ALTER, _CLUSTER, "the next right is needed"),
            _cluster(Operation.CLUSTER_ACTION),
        ),
        ApiKey.TXN_OFFSET_COMMIT: (
            _txn_id(Operation.WRITE),
            _group(Operation.READ),
            _topic(Operation.READ),
        ),
        ApiKey.SASL_AUTHENTICATE: (),
        ApiKey.DESCRIBE_ACLS: (_cluster(Operation.DESCRIBE),),
        ApiKey.CREATE_ACLS: (_cluster(Operation.ALTER),),
        ApiKey.DELETE_ACLS: (_cluster(Operation.ALTER),),
        ApiKey.DESCRIBE_CONFIGS: (
            _topic(Operation.DESCRIBE_CONFIGS),
            _group(Operation.DESCRIBE_CONFIGS, "each group"),
            _cluster(Operation.DESCRIBE_CONFIGS, "the cluster, for settings of brokers"),
        ),
        ApiKey.ALTER_CONFIGS: _ALTER_CONFIGS,
        ApiKey.ALTER_REPLICA_LOG_DIRS: (_cluster(Operation.ALTER),),
        ApiKey.DESCRIBE_LOG_DIRS: (_cluster(Operation.DESCRIBE),),
        ApiKey.CREATE_PARTITIONS: (_topic(Operation.ALTER),),
        ApiKey.DELETE_GROUPS: (_group(Operation.DELETE, "each group"),),
        ApiKey.ELECT_LEADERS: (_cluster(Operation.ALTER),),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: _ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: (_cluster(Operation.ALTER),),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: (_cluster(Operation.DESCRIBE),),
        ApiKey.OFFSET_DELETE: (_group(Operation.DELETE), _topic(Operation.READ)),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: (_cluster(Operation.DESCRIBE_CONFIGS),),
        ApiKey.ALTER_CLIENT_QUOTAS: (_cluster(Operation.ALTER_CONFIGS),),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (_cluster(Operation.DESCRIBE),),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (_cluster(Operation.ALTER),),
        ApiKey.UPDATE_FEATURES: (_cluster(Operation.ALTER),),
        ApiKey.DESCRIBE_CLUSTER: (
            _cluster(Operation.DESCRIBE, _CLUSTER, "the response names no authorized operation"),
        ),
        ApiKey.DESCRIBE_PRODUCERS: (_topic(Operation.READ),),
        ApiKey.DESCRIBE_TRANSACTIONS: (
            _txn_id(Operation.DESCRIBE, "each transactional id"),
            _topic(Operation.DESCRIBE, "each topic of a transaction", LEFT_OUT),
        ),
        ApiKey.LIST_TRANSACTIONS: (_txn_id(Operation.DESCRIBE, "each transactional id", LEFT_OUT),),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: (
            _group(Operation.READ),
            _topic(Operation.DESCRIBE, "each topic that the member subscribes to"),
            _topic(Operation.DESCRIBE, "each topic that matches its regular expression", LEFT_OUT),
        ),
        ApiKey.CONSUMER_GROUP_DESCRIBE: (
            _group(Operation.DESCRIBE, "each group"),
            _topic(Operation.DESCRIBE, "each topic of the group", "an error for the group"),
        ),
        ApiKey.LIST_CONFIG_RESOURCES: (_cluster(Operation.DESCRIBE_CONFIGS),),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
            _topic(Operation.DESCRIBE, _NAMED),
            _topic(Operation.DESCRIBE, "each topic, if all are asked for", LEFT_OUT),
        ),
        ApiKey.BEGIN_JOINT: (
            _JOINT,
            _txn_id(Operation.DESCRIBE, "`[<group>/]joint:<key>:`, without a run"),
        ),
        ApiKey.COMMIT_JOINT: (
            _JOINT,
            _group(Operation.READ, "each group whose offsets are committed"),
            _topic(Operation.READ, "each topic whose offsets are committed"),
        ),
        ApiKey.ABORT_JOINT: (_JOINT,),
        ApiKey.DESCRIBE_CUT: (
            _topic(Operation.DESCRIBE),
            _cluster(Operation.DESCRIBE, "the cluster, without topics"),
            _txn_id(Operation.DESCRIBE, "each transaction that the cut waits for", LEFT_OUT),
        ),
        ApiKey.DESCRIBE_COMMITS: (_topic(Operation.READ, "the topic"),),
    }
)
