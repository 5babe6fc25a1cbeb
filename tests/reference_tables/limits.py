"""The table of the limits that are constants of the code."""

from stablelog.batch import compression, records
from stablelog.broker import topic_names
from stablelog.broker.apis import config_changes, produce
from stablelog.broker.fetch import sessions
from stablelog.broker.monitoring import limited_log, metrics_server
from stablelog.broker.network import budget
from stablelog.broker.security import acl_store, client_quotas
from stablelog.broker.tiering import remote_reads
from stablelog.coordinators import patterns
from stablelog.coordinators.consumer_groups import joining
from stablelog.coordinators.consumer_groups.consumer_protocol import heartbeats
from stablelog.coordinators.transactions.joint import name_checks
from stablelog.env.objects import attempts
from stablelog.log import append
from stablelog.log.compaction import aborted_data
from stablelog.security.quotas import entities, rates
from stablelog.wire import guard, sasl
from stablelog.wire import produce as wire_produce
from stablelog.wire.extension import commits, transaction_groups
from tests.reference_tables import table

CONSTANTS = (
    ("items in one request: topics, partitions, names and so on, counted together", guard, "ITEMS_MAX"),
    ("items in one Produce request", wire_produce, "ITEMS_MAX"),
    ("bytes of a string in a request", guard, "STRING_SIZE_MAX"),
    ("bytes of a message of PLAIN or SCRAM", sasl, "MESSAGE_SIZE_MAX"),
    ("memory of all requests before a login", budget, "LOGIN_SIZE_MAX"),
    ("characters of a topic name", topic_names, "NAME_SIZE_MAX"),
    ("characters of a value of a dynamic setting", config_changes, "VALUE_SIZE_MAX"),
    ("consumer groups with settings of their own", config_changes, "GROUPS_MAX"),
    ("decompressed size of a batch", compression, "SIZE_MAX"),
    ("records that the errors of one Produce response name", produce, "RECORD_ERRORS_MAX"),
    ("records of a batch that a lookup by time decodes", records, "LOOK_COUNT_MAX"),
    ("decompressed size of such a batch", records, "LOOK_SIZE_MAX"),
    ("partitions of one fetch session", sessions, "SESSION_PARTITIONS_MAX"),
    ("partitions of all fetch sessions", sessions, "PARTITIONS_MAX"),
    ("records of one transaction in a commit-ordered partition", append, "POSITION_COUNT_MAX"),
    (
        "producers with an aborted last batch in a segment; above, its aborted data stays",
        aborted_data,
        "PRODUCERS_MAX",
    ),
    ("characters of a transactional id", transaction_groups, "TRANSACTIONAL_ID_SIZE_MAX"),
    ("children of one joint commit", name_checks, "CHILD_COUNT_MAX"),
    ("bytes of the key of a joint commit", name_checks, "KEY_SIZE_MAX"),
    ("transactions in one DescribeCommits response", commits, "COUNT_MAX"),
    ("protocols of one member of a classic group", joining, "PROTOCOL_COUNT_MAX"),
    ("bytes of these protocols together", joining, "PROTOCOLS_SIZE_MAX"),
    ("topics that one member of a consumer group names", heartbeats, "SUBSCRIPTION_COUNT_MAX"),
    ("characters of a pattern of topic names", patterns, "PATTERN_SIZE_MAX"),
    ("ACLs", acl_store, "ACL_COUNT_MAX"),
    ("entities with quotas", client_quotas, "ENTITY_COUNT_MAX"),
    ("characters of a name in a quota", entities, "NAME_SIZE_MAX"),
    ("clients whose rates are measured, for each kind of quota", rates, "SENSOR_COUNT_MAX"),
    ("characters of a line of the log about a client", limited_log, "LINE_SIZE_MAX"),
    ("connections to the metrics", metrics_server, "CONNECTION_COUNT_MAX"),
    ("ranges that are loaded from an object store at a time", remote_reads, "THREADS"),
    ("characters of a key in an object store", attempts, "KEY_SIZE_MAX"),
)


def shown(value: int) -> str:
    """A number, as a size in MiB if it is one."""
    whole, rest = divmod(value, 1 << 20)
    return f"{value:,}" if rest else f"{whole} MiB"


def tables() -> dict[str, str]:
    rows = [
        (what, shown(getattr(module, name)), f"`{module.__name__.removeprefix('stablelog.')}.{name}`")
        for what, module, name in CONSTANTS
    ]
    return {"limits": table(("what", "greatest number", "constant"), rows)}
