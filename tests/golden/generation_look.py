"""What clients are told of a data directory by the broker that runs on it: everything that a later release has to tell, too.

Answers are plain lists and dicts, as they stand in JSON.
"""

import functools
import hashlib
import json

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from kio.schema.describe_client_quotas.v1.request import DescribeClientQuotasRequest
from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
from kio.schema.errors import ErrorCode
from kio.schema.list_transactions.v1.request import ListTransactionsRequest

from stablelog.batch.header import headers_in
from stablelog.batch.markers import MarkerType, read_marker
from stablelog.batch.records import decode_records
from stablelog.client.blocking import joint
from stablelog.client.blocking.cluster import EARLIEST, LATEST, BlockingCluster
from stablelog.client.blocking.commits import describe_commits
from stablelog.client.blocking.connection import SocketConnection, run
from stablelog.client.blocking.cuts import describe_cut
from stablelog.client.core.admin.transactions import describe_at_coordinator
from tests.clients.drivers import EVERY_ACL
from tests.clients.reading import read_to_end
from tests.java.load import TIMEOUT_S, settings

ROWS_KEPT_MAX = 1_000  # of a partition; of more only a digest is kept
SHOWN_SIZE_MAX = 100  # of a longer value only a digest is kept
ISOLATIONS = {"committed": "read_committed", "all": "read_uncommitted"}
FETCH_SIZE = 4 << 20
NO_END = 2**63 - 1


def shortened(rows):
    """So many records in a few words: only their digest is kept."""
    return {"count": len(rows), "digest": hashlib.sha256(json.dumps(rows).encode()).hexdigest()}


def shown(content):
    """Bytes as they stand in JSON."""
    if content is None:
        return None
    if len(content) > SHOWN_SIZE_MAX:
        return f"{content[:40].decode('latin-1')}… {hashlib.sha256(content).hexdigest()[:16]}"
    return content.decode("latin-1")


def row(offset, timestamp_ms, key, value, headers):
    """A record as it stands in JSON."""
    return [offset, timestamp_ms, shown(key), shown(value), [[name, shown(held)] for name, held in headers]]


@functools.lru_cache(maxsize=100_000)
def _rows_of(batch):
    return tuple(row(*record) for record in decode_records(batch))


def rows_in(content, aborted, start):
    """The records of a fetch's answer from an offset on, as a reader filters them, and where the answer ends.

    Args:
        content: whole batches, the last maybe cut off.
        aborted: (producer id, first offset) of the aborted transactions among them.
        start: the offset that was asked for.
    """
    found, end = [], start
    pending = sorted(aborted, key=lambda txn: txn[1], reverse=True)
    leaving_out = set()
    for at, header in headers_in(content):
        if at + header.size > len(content):
            break
        end = max(end, header.next_offset)
        while pending and pending[-1][1] <= header.last_offset:
            leaving_out.add(pending.pop()[0])
        batch = bytes(content[at : at + header.size])
        if header.is_control:
            marker = read_marker(batch)
            if marker is not None and marker.type is MarkerType.ABORT:
                leaving_out.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in leaving_out):
            found += [one for one in _rows_of(batch) if one[0] >= start]
    return found, end


def fetched(cluster, topic, partition, start, isolation, size_max=FETCH_SIZE):
    """What one fetch brings: (records, where it ends)."""
    while True:
        # Right after a start nothing is read from a segment before it is proven, which takes a moment.
        answer = cluster.fetch(topic, partition, start, size_max, isolation, wait_ms=0)
        committed = isolation == ISOLATIONS["committed"]
        if answer.records or start >= (answer.last_stable_offset if committed else answer.high_watermark):
            return rows_in(answer.records, answer.aborted, start)


def fetched_to_end(cluster, topic, partition, start, isolation, end=NO_END):
    """What fetch after fetch brings, until one brings nothing, or what lies before `end` has come."""
    found = []
    while start < end:
        rows, reached = fetched(cluster, topic, partition, start, isolation)
        found += rows
        if reached == start:
            break
        start = reached
    return found


def consumed(bootstrap, topic, partition, start, isolation):
    """What librdkafka's consumer gets from an offset on."""
    consumer = Consumer(
        settings(
            bootstrap,
            **{
                "group.id": "looks",
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "fetch.wait.max.ms": 5,
            },
        )
    )
    found = [
        row(one.offset(), one.timestamp()[1], one.key(), one.value(), one.headers() or ())
        for one in read_to_end(consumer, topic, partition, start=start)
    ]
    consumer.close()
    return found


# -- everything ----------------------------------------------------------------------------------------------------


def look(bootstrap, written_ms):
    """Everything that clients are told.

    Args:
        bootstrap: of the broker.
        written_ms: when the directory was written: what a start has written since has a time of its own.
    """
    with BlockingCluster(bootstrap, timeout_s=TIMEOUT_S, deadline_s=2 * TIMEOUT_S) as cluster:
        topics = {name: topic for name, topic in cluster.metadata().items() if not topic.is_internal}
        configs = topic_configs(bootstrap, topics)
        ordered = [name for name in sorted(topics) if configs[name].get("stablelog.order") == "commit"]
        return {
            "topics": {
                name: {
                    "id": str(topics[name].topic_id),
                    "configs": configs[name],
                    "partitions": [
                        look_at_partition(
                            bootstrap, cluster, name, index, written_ms if name in ordered else None
                        )
                        for index in sorted(topics[name].partitions)
                    ],
                }
                for name in sorted(topics)
            },
            "broker": own_configs(
                bootstrap, [ConfigResource(ResourceType.BROKER, "1")], ConfigSource.DYNAMIC_BROKER_CONFIG
            ),
            "groups": group_offsets(bootstrap),
            "transactions": transactions(bootstrap),
            "joint": joint_versions(cluster),
            **security(bootstrap, cluster),
            "cuts": cuts(cluster, {name: configs[name].get("stablelog.group", "") for name in ordered}),
        }


def security(bootstrap, cluster):
    """The ACLs, the users with their mechanisms and iterations, and the quotas."""
    admin = AdminClient(settings(bootstrap))
    users = admin.describe_user_scram_credentials().result(TIMEOUT_S)
    asked = DescribeClientQuotasRequest(components=(), strict=False)
    quotas = cluster.any_connection().request(asked)
    assert quotas.error_code is ErrorCode.none, quotas
    return {
        "acls": sorted(
            [
                one.restype.name,
                one.name,
                one.resource_pattern_type.name,
                one.principal,
                one.host,
                one.operation.name,
                one.permission_type.name,
            ]
            for one in admin.describe_acls(EVERY_ACL).result(TIMEOUT_S)
        ),
        "users": {
            name: sorted([one.mechanism.name, one.iterations] for one in found.scram_credential_infos)
            for name, found in sorted(users.items())
        },
        "quotas": sorted(
            (
                [
                    [[part.entity_type, part.entity_name] for part in entry.entity],
                    [[value.key, value.value] for value in entry.values],
                ]
                for entry in quotas.entries
            ),
            key=str,
        ),
    }


def topic_configs(bootstrap, names):
    """The settings that topics have of their own."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    return own_configs(bootstrap, resources, ConfigSource.DYNAMIC_TOPIC_CONFIG)


def own_configs(bootstrap, resources, source):
    """The settings of topics or brokers that come from such a source, by name."""
    admin = AdminClient(settings(bootstrap))  # lives until all is answered
    answers = admin.describe_configs(resources)
    return {
        resource.name: {
            name: entry.value
            for name, entry in sorted(future.result(TIMEOUT_S).items())
            if entry.source == source.value
        }
        for resource, future in answers.items()
    }


def look_at_partition(bootstrap, cluster, topic, index, written_ms):
    """The bounds of a partition, what readers of both isolations get of it, and who has written."""
    seen = bounds(cluster, topic, index)
    for name, isolation in ISOLATIONS.items():
        start = seen["start"][name]
        rows = consumed(bootstrap, topic, index, start, isolation)
        assert rows == fetched_to_end(cluster, topic, index, start, isolation), (topic, name)
        seen[name] = rows if len(rows) <= ROWS_KEPT_MAX else shortened(rows)
    seen["producers"] = producers(cluster, topic, index)
    if written_ms is not None:
        listed = describe_commits(cluster, topic, index, with_outside=True)
        seen["commits"] = [
            [one.start_offset, one.end_offset, one.commit_sequence, min(one.time_ms, written_ms)]
            for one in listed.commits
        ]
    return seen


def bounds(cluster, topic, index):
    """Where a partition begins and ends for readers of each isolation."""
    at = (topic, index)
    return {
        bound: {
            name: cluster.list_offsets({at: spec}, level)[at].offset for name, level in ISOLATIONS.items()
        }
        for bound, spec in (("start", EARLIEST), ("end", LATEST))
    }


def producers(cluster, topic, index):
    """Producer id, epoch, last sequence, coordinator epoch, first offset of the open transaction: of each producer."""

    def ask():
        connection = cluster.connection_to(cluster.leader(topic, index))
        wanted = TopicRequest(name=topic, partition_indexes=(index,))
        return connection.request(DescribeProducersRequest(topics=(wanted,)))

    found = cluster.retrying("describing producers", ask).topics[0].partitions[0]
    assert found.error_code is ErrorCode.none, found
    return sorted(
        [
            one.producer_id,
            one.producer_epoch,
            one.last_sequence,
            one.coordinator_epoch,
            one.current_txn_start_offset,
        ]
        for one in found.active_producers
    )


def group_offsets(bootstrap):
    """What each consumer group has committed: offset and metadata, by partition."""
    admin = AdminClient(settings(bootstrap))
    listed = admin.list_consumer_groups().result(TIMEOUT_S)
    assert not listed.errors
    names = sorted({group.group_id for group in listed.valid} | {"undecided", "of-query"})
    found = {}
    for name in names:
        asked = [ConsumerGroupTopicPartitions(name)]
        answer = admin.list_consumer_group_offsets(asked)[name].result(TIMEOUT_S)
        offsets = {
            f"{at.topic}-{at.partition}": [at.offset, at.metadata or ""] for at in answer.topic_partitions
        }
        if offsets:
            found[name] = dict(sorted(offsets.items()))
    return found


def transactions(bootstrap):
    """What the coordinators say of each transactional id."""
    with SocketConnection(bootstrap, timeout_s=TIMEOUT_S) as connection:
        return {name: described(connection, name) for name in sorted(transaction_states(connection))}


def transaction_states(connection):
    """The state of each transactional id."""
    listed = connection.request(ListTransactionsRequest(state_filters=(), producer_id_filters=()))
    return {one.transactional_id: one.transaction_state for one in listed.transaction_states}


def described(connection, transactional_id):
    """The state of one id."""
    found = run(describe_at_coordinator(connection, transactional_id))
    return {
        "state": found.state,
        "producer": [found.producer_id, found.producer_epoch],
        "timeout_ms": found.timeout_ms,
        "partitions": sorted(f"{topic}-{index}" for topic, index in found.partitions),
    }


def identity_of(bootstrap, transactional_id):
    """What the producer that has an id now shows: transactional id, producer id, epoch."""
    with SocketConnection(bootstrap, timeout_s=TIMEOUT_S) as connection:
        return transactional_id, *described(connection, transactional_id)["producer"]


def joint_versions(cluster):
    """What is remembered of the joint commits' keys: last version, its commit sequence, run and digest."""
    found = {}
    for group, key, version in (("", "query", 1), ("", "query", 2), ("pay", "bills", 7)):
        begun = joint.begin(cluster, key, version, group=group)
        found[f"{group}/{key}/{version}"] = [
            begun.committed,
            begun.commit_sequence,
            begun.last_version,
            begun.run,
            begun.digest,
        ]
    return found


def cuts(cluster, group_of_topic):
    """The cuts of each transaction group through all its commit-ordered topics, from the first one that is whole."""
    found = {}
    for group in sorted(set(group_of_topic.values())):
        topics = [topic for topic, its_group in group_of_topic.items() if its_group == group]
        latest = describe_cut(cluster, topics, group=group)
        found[group] = {
            "topics": topics,
            "resolved": latest.commit_sequence,
            "decided": latest.last_commit_sequence,
            "whole_after": latest.whole_after(),
            "offsets": [
                [sequence, *offsets_of(describe_cut(cluster, topics, sequence, group=group))]
                for sequence in range(latest.whole_after(), latest.commit_sequence + 1)
            ],
        }
    return found


def offsets_of(cut):
    """The offsets of a cut, in the order of its partitions."""
    return [cut.offsets[at] for at in sorted(cut.offsets)]
