"""The requests of the test of rights, each with the rights that it needs."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from stablelog.wire.acls import Operation, ResourceType
from stablelog.wire.api import ApiKey
from tests.broker.desk import batch

S = timedelta(seconds=30)
TOPIC, GROUP, CLUSTER, TXN = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
)


class Names(NamedTuple):
    """The resources of a request. `here` is there, `gone` is not."""

    which: str
    producer: tuple[int, int] = (0, 0)

    @property
    def topic(self) -> str:
        return f"topic-{self.which}"

    @property
    def group(self) -> str:
        return f"group-{self.which}"

    @property
    def txn(self) -> str:
        return f"txn-{self.which}"

    @property
    def joint(self) -> str:
        return f"joint:key-{self.which}:"


Need = tuple[Operation, ResourceType, str]


class Case(NamedTuple):
    """A request and the rights that it needs.

    Attributes:
        needs: operation, type of the resource, and the field of `Names` with its name (empty for the cluster).
        is_filter: without the rights, the response leaves the resources out instead of an error.
    """

    api: ApiKey
    version: int
    values: Callable[[Names], dict[str, Any]]
    needs: tuple[Need, ...]
    is_filter: bool = False


T = "topic"
ON_CLUSTER = ((DESCRIBE, CLUSTER, ""),)
ALTERS_CLUSTER = ((ALTER, CLUSTER, ""),)


def one(name: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": name, **fields}]


def member(n: Names) -> dict[str, Any]:
    return {"group_id": n.group, "generation_id": 1, "member_id": "m", "group_instance_id": None}


def txn(n: Names) -> dict[str, Any]:
    return {"transactional_id": n.txn, "producer_id": n.producer[0], "producer_epoch": n.producer[1]}


def committed(n: Names) -> list[dict[str, Any]]:
    return one(
        n.topic,
        partitions=[
            {
                "partition_index": 0,
                "committed_offset": 1,
                "committed_leader_epoch": -1,
                "committed_metadata": "",
            }
        ],
    )


def produced(n: Names, transactional_id: str | None, records: bytes) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout": S,
        "topic_data": one(n.topic, partition_data=[{"index": 0, "records": records}]),
    }


def config(kind: int, name: str, setting: str, value: str) -> dict[str, Any]:
    change = {"name": setting, "config_operation": 0, "value": value}
    return {
        "validate_only": False,
        "resources": [{"resource_type": kind, "resource_name": name, "configs": [change]}],
    }


def described_config(kind: int, name: str) -> dict[str, Any]:
    return {
        "resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": None}],
        "include_synonyms": False,
        "include_documentation": False,
    }


def rule_filter(principal: str) -> dict[str, Any]:
    return {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": principal,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }


NEW_RULE = {
    "resource_type": 2,
    "resource_name": "x",
    "resource_pattern_type": 3,
    "principal": "User:x",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
SUBSCRIBED = {
    "member_id": "m",
    "member_epoch": 0,
    "instance_id": None,
    "rack_id": None,
    "rebalance_timeout": S,
    "server_assignor": None,
    "topic_partitions": (),
}
JOINT = {"group": "", "version": 1, "run": "r"}


def joint(n: Names) -> dict[str, Any]:
    return {**JOINT, "key": f"key-{n.which}"}


CASES = [
    Case(ApiKey.PRODUCE, 12, lambda n: produced(n, None, batch(b"v")), ((WRITE, TOPIC, T),)),
    Case(
        ApiKey.PRODUCE,
        12,
        lambda n: produced(n, n.txn, batch(b"v", producer=n.producer, sequence=0)),
        ((WRITE, TOPIC, T), (WRITE, TXN, "txn")),
    ),
    Case(
        ApiKey.FETCH,
        12,
        lambda n: {
            "max_wait": timedelta(0),
            "min_bytes": 0,
            "max_bytes": 1000,
            "isolation_level": 0,
            "session_epoch": -1,
            "session_id": 0,
            "rack_id": "",
            "forgotten_topics_data": (),
            "topics": [
                {
                    "topic": n.topic,
                    "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 9}],
                }
            ],
        },
        ((READ, TOPIC, T),),
    ),
    Case(
        ApiKey.LIST_OFFSETS,
        11,
        lambda n: {
            "replica_id": -1,
            "isolation_level": 0,
            "timeout": S,
            "topics": one(n.topic, partitions=[{"partition_index": 0, "timestamp": -1}]),
        },
        ((DESCRIBE, TOPIC, T),),
    ),
    Case(
        ApiKey.METADATA,
        13,
        lambda n: {
            "topics": one(n.topic, topic_id=None),
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
        },
        ((DESCRIBE, TOPIC, T),),
    ),
    Case(
        ApiKey.METADATA,
        13,
        lambda n: {
            "topics": one("new-" + n.topic, topic_id=None),
            "allow_auto_topic_creation": True,
            "include_topic_authorized_operations": False,
        },
        ((CREATE, TOPIC, "new_topic"), (DESCRIBE, TOPIC, "new_topic")),
    ),
    Case(
        ApiKey.METADATA,
        13,
        lambda n: {
            "topics": one("new-" + n.topic, topic_id=None),
            "allow_auto_topic_creation": True,
            "include_topic_authorized_operations": False,
        },
        ((CREATE, CLUSTER, ""), (DESCRIBE, TOPIC, "new_topic")),
    ),
    Case(
        ApiKey.METADATA,
        13,
        lambda _n: {
            "topics": None,
            "allow_auto_topic_creation": True,
            "include_topic_authorized_operations": True,
        },
        ((DESCRIBE, TOPIC, T),),
        is_filter=True,
    ),
    Case(
        ApiKey.OFFSET_COMMIT,
        9,
        lambda n: {
            "group_id": n.group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": committed(n),
        },
        ((READ, GROUP, "group"), (READ, TOPIC, T)),
    ),
    Case(
        ApiKey.OFFSET_FETCH,
        9,
        lambda n: {
            "groups": [
                {
                    "group_id": n.group,
                    "member_id": None,
                    "member_epoch": -1,
                    "topics": one(n.topic, partition_indexes=(0,)),
                }
            ],
            "require_stable": False,
        },
        ((DESCRIBE, GROUP, "group"), (DESCRIBE, TOPIC, T)),
    ),
    Case(
        ApiKey.FIND_COORDINATOR,
        5,
        lambda n: {"key_type": 0, "coordinator_keys": (n.group,)},
        ((DESCRIBE, GROUP, "group"),),
    ),
    Case(
        ApiKey.FIND_COORDINATOR,
        5,
        lambda n: {"key_type": 1, "coordinator_keys": (n.txn,)},
        ((DESCRIBE, TXN, "txn"),),
    ),
    Case(
        ApiKey.JOIN_GROUP,
        9,
        lambda n: {
            "group_id": n.group,
            "session_timeout": S,
            "rebalance_timeout": S,
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": one("range", metadata=b""),
            "reason": None,
        },
        ((READ, GROUP, "group"),),
    ),
    Case(ApiKey.HEARTBEAT, 4, member, ((READ, GROUP, "group"),)),
    Case(
        ApiKey.LEAVE_GROUP,
        5,
        lambda n: {
            "group_id": n.group,
            "members": [{"member_id": "m", "group_instance_id": None, "reason": None}],
        },
        ((READ, GROUP, "group"),),
    ),
    Case(
        ApiKey.SYNC_GROUP,
        5,
        lambda n: {**member(n), "protocol_type": "consumer", "protocol_name": "range", "assignments": ()},
        ((READ, GROUP, "group"),),
    ),
    Case(
        ApiKey.DESCRIBE_GROUPS,
        6,
        lambda n: {"groups": (n.group,), "include_authorized_operations": True},
        ((DESCRIBE, GROUP, "group"),),
    ),
    Case(
        ApiKey.LIST_GROUPS,
        5,
        lambda _n: {"states_filter": (), "types_filter": ()},
        ((DESCRIBE, GROUP, "group"),),
        is_filter=True,
    ),
    Case(
        ApiKey.CREATE_TOPICS,
        7,
        lambda n: {
            "topics": one(
                "new-" + n.topic, num_partitions=1, replication_factor=1, assignments=(), configs=()
            ),
            "timeout": S,
            "validate_only": False,
        },
        ((CREATE, TOPIC, "new_topic"), (Operation.DESCRIBE_CONFIGS, TOPIC, "new_topic")),
    ),
    Case(
        ApiKey.CREATE_TOPICS,
        7,
        lambda n: {
            "topics": one(
                "new-" + n.topic, num_partitions=1, replication_factor=1, assignments=(), configs=()
            ),
            "timeout": S,
            "validate_only": False,
        },
        ((CREATE, CLUSTER, ""), (Operation.DESCRIBE_CONFIGS, TOPIC, "new_topic")),
    ),
    Case(
        ApiKey.DELETE_TOPICS,
        6,
        lambda n: {"topics": one(n.topic, topic_id=None), "timeout": S},
        ((DELETE, TOPIC, T),),
    ),
    Case(
        ApiKey.DELETE_RECORDS,
        2,
        lambda n: {"topics": one(n.topic, partitions=[{"partition_index": 0, "offset": 1}]), "timeout": S},
        ((DELETE, TOPIC, T),),
    ),
    Case(
        ApiKey.INIT_PRODUCER_ID,
        6,
        lambda n: {
            "transactional_id": n.txn,
            "transaction_timeout": S,
            "producer_id": -1,
            "producer_epoch": -1,
            "enable2_pc": True,
            "keep_prepared_txn": False,
        },
        ((WRITE, TXN, "txn"), (Operation.TWO_PHASE_COMMIT, TXN, "txn")),
    ),
    *(
        Case(
            ApiKey.INIT_PRODUCER_ID,
            6,
            lambda _n: {
                "transactional_id": None,
                "transaction_timeout": S,
                "producer_id": -1,
                "producer_epoch": -1,
                "enable2_pc": False,
                "keep_prepared_txn": False,
            },
            (need,),
        )
        for need in ((Operation.IDEMPOTENT_WRITE, CLUSTER, ""), (WRITE, TOPIC, T))
    ),
    Case(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        4,
        lambda n: {
            "replica_id": -1,
            "topics": [
                {
                    "topic": n.topic,
                    "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}],
                }
            ],
        },
        ((DESCRIBE, TOPIC, T),),
    ),
    Case(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        lambda n: {
            "v3_and_below_transactional_id": n.txn,
            "v3_and_below_producer_id": n.producer[0],
            "v3_and_below_producer_epoch": n.producer[1],
            "v3_and_below_topics": one(n.topic, partitions=(0,)),
        },
        ((WRITE, TXN, "txn"), (WRITE, TOPIC, T)),
    ),
    Case(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        5,
        lambda n: {
            "transactions": [{**txn(n), "verify_only": True, "topics": one(n.topic, partitions=(0,))}]
        },
        ((Operation.CLUSTER_ACTION, CLUSTER, ""),),
    ),
    Case(
        ApiKey.ADD_OFFSETS_TO_TXN,
        4,
        lambda n: {**txn(n), "group_id": n.group},
        ((WRITE, TXN, "txn"), (READ, GROUP, "group")),
    ),
    Case(ApiKey.END_TXN, 4, lambda n: {**txn(n), "committed": True}, ((WRITE, TXN, "txn"),)),
    *(
        Case(
            ApiKey.WRITE_TXN_MARKERS,
            2,
            lambda n: {
                "markers": [
                    {
                        "producer_id": 77,
                        "producer_epoch": 0,
                        "transaction_result": False,
                        "coordinator_epoch": 0,
                        "transaction_version": 0,
                        "topics": one(n.topic, partition_indexes=(0,)),
                    }
                ]
            },
            (need,),
        )
        for need in ((Operation.CLUSTER_ACTION, CLUSTER, ""), (ALTER, CLUSTER, ""))
    ),
    Case(
        ApiKey.TXN_OFFSET_COMMIT,
        5,
        lambda n: {
            **txn(n),
            "group_id": n.group,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": committed(n),
        },
        ((WRITE, TXN, "txn"), (READ, GROUP, "group"), (READ, TOPIC, T)),
    ),
    Case(ApiKey.DESCRIBE_ACLS, 3, lambda _n: rule_filter("User:zoe"), ON_CLUSTER),
    Case(ApiKey.CREATE_ACLS, 3, lambda _n: {"creations": [NEW_RULE]}, ALTERS_CLUSTER),
    Case(ApiKey.DELETE_ACLS, 3, lambda _n: {"filters": [rule_filter("User:zoe")]}, ALTERS_CLUSTER),
    Case(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        lambda n: described_config(2, n.topic),
        ((Operation.DESCRIBE_CONFIGS, TOPIC, T),),
    ),
    Case(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        lambda n: described_config(32, n.group),
        ((Operation.DESCRIBE_CONFIGS, GROUP, "group"),),
    ),
    Case(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        lambda _n: described_config(4, "0"),
        ((Operation.DESCRIBE_CONFIGS, CLUSTER, ""),),
    ),
    *(
        Case(api, version, values, (need,))
        for api, version in ((ApiKey.ALTER_CONFIGS, 2), (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1))
        for values, need in (
            (lambda n: config(2, n.topic, "retention.ms", "1000"), (Operation.ALTER_CONFIGS, TOPIC, T)),
            (lambda n: config(32, n.group, "x", "1"), (Operation.ALTER_CONFIGS, GROUP, "group")),
            (lambda _n: config(4, "", "log.retention.ms", "5000"), (Operation.ALTER_CONFIGS, CLUSTER, "")),
        )
    ),
    Case(
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        2,
        lambda n: {"dirs": [{"path": "/data", "topics": one(n.topic, partitions=(0,))}]},
        ALTERS_CLUSTER,
    ),
    Case(
        ApiKey.DESCRIBE_LOG_DIRS,
        4,
        lambda n: {"topics": [{"topic": n.topic, "partitions": (0,)}]},
        ON_CLUSTER,
    ),
    Case(ApiKey.DESCRIBE_LOG_DIRS, 4, lambda _n: {"topics": None}, ON_CLUSTER),
    Case(
        ApiKey.CREATE_PARTITIONS,
        3,
        lambda n: {"topics": one(n.topic, count=3, assignments=None), "timeout": S, "validate_only": False},
        ((ALTER, TOPIC, T),),
    ),
    Case(ApiKey.DELETE_GROUPS, 2, lambda n: {"groups_names": (n.group,)}, ((DELETE, GROUP, "group"),)),
    Case(
        ApiKey.ELECT_LEADERS,
        2,
        lambda n: {
            "election_type": 0,
            "topic_partitions": [{"topic": n.topic, "partitions": (0,)}],
            "timeout": S,
        },
        ALTERS_CLUSTER,
    ),
    Case(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        1,
        lambda n: {
            "timeout": S,
            "allow_replication_factor_change": True,
            "topics": one(n.topic, partitions=[{"partition_index": 0, "replicas": (0,)}]),
        },
        ALTERS_CLUSTER,
    ),
    Case(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        0,
        lambda n: {"timeout": S, "topics": one(n.topic, partition_indexes=(0,))},
        ON_CLUSTER,
    ),
    Case(
        ApiKey.OFFSET_DELETE,
        0,
        lambda n: {"group_id": n.group, "topics": one(n.topic, partitions=[{"partition_index": 0}])},
        ((DELETE, GROUP, "group"), (READ, TOPIC, T)),
    ),
    Case(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        1,
        lambda _n: {"components": (), "strict": False},
        ((Operation.DESCRIBE_CONFIGS, CLUSTER, ""),),
    ),
    Case(
        ApiKey.ALTER_CLIENT_QUOTAS,
        1,
        lambda _n: {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": "zoe"}],
                    "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}],
                }
            ],
            "validate_only": False,
        },
        ((Operation.ALTER_CONFIGS, CLUSTER, ""),),
    ),
    Case(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, lambda _n: {"users": None}, ON_CLUSTER),
    Case(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        lambda _n: {
            "deletions": (),
            "upsertions": one(
                "zoe", mechanism=1, iterations=4096, salt=b"0123456789abcdef", salted_password=bytes(32)
            ),
        },
        ALTERS_CLUSTER,
    ),
    Case(
        ApiKey.UPDATE_FEATURES,
        1,
        lambda _n: {
            "timeout": S,
            "feature_updates": [{"feature": "group.version", "max_version_level": 1, "upgrade_type": 1}],
            "validate_only": False,
        },
        ALTERS_CLUSTER,
    ),
    Case(
        ApiKey.DESCRIBE_PRODUCERS,
        0,
        lambda n: {"topics": one(n.topic, partition_indexes=(0,))},
        ((READ, TOPIC, T),),
    ),
    Case(
        ApiKey.DESCRIBE_TRANSACTIONS,
        0,
        lambda n: {"transactional_ids": (n.txn,)},
        ((DESCRIBE, TXN, "txn"),),
    ),
    Case(
        ApiKey.LIST_TRANSACTIONS,
        2,
        lambda _n: {
            "state_filters": (),
            "producer_id_filters": (),
            "duration_filter": -1,
            "transactional_id_pattern": None,
        },
        ((DESCRIBE, TXN, "txn"),),
        is_filter=True,
    ),
    Case(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        1,
        lambda n: {
            **SUBSCRIBED,
            "group_id": "new-" + n.group,
            "subscribed_topic_names": (n.topic,),
            "subscribed_topic_regex": None,
        },
        ((READ, GROUP, "new_group"), (DESCRIBE, TOPIC, T)),
    ),
    Case(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        1,
        lambda n: {"group_ids": ("consumers-" + n.group,), "include_authorized_operations": True},
        ((DESCRIBE, GROUP, "consumers"), (DESCRIBE, TOPIC, T)),
    ),
    Case(
        ApiKey.LIST_CONFIG_RESOURCES,
        1,
        lambda _n: {"resource_types": ()},
        ((Operation.DESCRIBE_CONFIGS, CLUSTER, ""),),
    ),
    Case(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        lambda n: {"topics": one(n.topic), "response_partition_limit": 10, "cursor": None},
        ((DESCRIBE, TOPIC, T),),
    ),
    Case(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        lambda _n: {"topics": (), "response_partition_limit": 10, "cursor": None},
        ((DESCRIBE, TOPIC, T),),
        is_filter=True,
    ),
    Case(ApiKey.BEGIN_JOINT, 0, joint, ((WRITE, TXN, "joint"),)),
    Case(ApiKey.BEGIN_JOINT, 0, lambda n: {**joint(n), "run": None}, ((DESCRIBE, TXN, "joint"),)),
    Case(
        ApiKey.COMMIT_JOINT,
        0,
        lambda n: {
            **joint(n),
            "children": (),
            "group_offsets": [
                {"group_id": n.group, "topic": n.topic, "partition_index": 0, "committed_offset": 1}
            ],
        },
        ((WRITE, TXN, "joint"), (READ, GROUP, "group"), (READ, TOPIC, T)),
    ),
    Case(
        ApiKey.COMMIT_JOINT,
        0,
        lambda n: {**joint(n), "children": [txn(n)], "group_offsets": ()},
        ((WRITE, TXN, "joint"), (WRITE, TXN, "txn")),
    ),
    Case(
        ApiKey.ABORT_JOINT,
        0,
        lambda n: {**joint(n), "children": [txn(n)]},
        ((WRITE, TXN, "joint"), (WRITE, TXN, "txn")),
    ),
    Case(
        ApiKey.DESCRIBE_CUT,
        0,
        lambda n: {"topics": (n.topic,), "group": None, "commit_sequence": -1},
        ((DESCRIBE, TOPIC, T),),
    ),
    Case(
        ApiKey.DESCRIBE_CUT,
        0,
        lambda _n: {"topics": (), "group": None, "commit_sequence": -1},
        ON_CLUSTER,
    ),
    Case(
        ApiKey.DESCRIBE_COMMITS,
        0,
        lambda n: {"topic": n.topic, "partition_index": 0, "offset": 0, "count_max": 1},
        ((READ, TOPIC, T),),
    ),
]
# APIs that tell every client something: which versions the broker has, and where it is.
OPEN_APIS = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.DESCRIBE_CLUSTER}
NOT_IN_CASES = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.DESCRIBE_CLUSTER}
