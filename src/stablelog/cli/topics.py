"""`stablelog topics`: create, list, describe, alter and delete topics."""

from collections.abc import Sequence

from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from stablelog.cli.admin import admin_client, ask, cluster, end_offsets, known_topic
from stablelog.cli.output import counted, done, fail, print_json, print_table, show
from stablelog.cli.partition_watch import unavailable_partitions
from stablelog.cli.serve import pair
from stablelog.cli.transactions import open_in_topic
from stablelog.client.connection import Connection


def create(bootstrap: str, name: str, partitions: int, configs: Sequence[str], *, as_json: bool) -> None:
    """Create a topic."""
    topic = NewTopic(
        name, partitions, 1 if partitions > 0 else -1, config=dict(pair(config) for config in configs)
    )
    admin = admin_client(bootstrap)
    ask(bootstrap, lambda: admin.create_topics([topic])[name], f"creating {name}")
    count = len(known_topic(bootstrap, name).partitions)
    done(f"created {name} with {counted(count, 'partition')}", as_json=as_json, topic=name, partitions=count)


def list_topics(bootstrap: str, *, internal: bool, as_json: bool) -> None:
    """List the topics."""
    topics = cluster(bootstrap).topics.values()
    rows = [(t.topic, len(t.partitions)) for t in topics if internal or not t.topic.startswith("__")]
    show("topics", ("topic", "partitions"), sorted(rows), as_json=as_json)


def describe(bootstrap: str, name: str, *, as_json: bool) -> None:
    """Show a topic's settings and partitions."""
    partitions = [(name, index) for index in sorted(known_topic(bootstrap, name).partitions)]
    unavailable = unavailable_partitions(bootstrap, [name])
    served = [target for target in partitions if target not in unavailable]
    marks = end_offsets(bootstrap, served, "read_uncommitted")
    stable = end_offsets(bootstrap, served, "read_committed")
    with Connection(bootstrap) as client:
        open_txns = open_in_topic(client, name, [index for _, index in served])
    oldest = {index: next(iter(open_txns.get(index, ())), None) for _, index in partitions}
    rows: list[tuple[object, ...]] = []
    for target in partitions:
        if target in unavailable:
            rows.append((target[1], None, None, None, None, None, unavailable[target]))
            continue
        txn = oldest[target[1]]
        start, high_watermark = marks[target]
        waits = stable[target][1]
        held_by = (
            ""
            if txn is None
            else f"{txn.transactional_id or f'producer {txn.producer_id}'} since offset {txn.start_offset}"
        )
        rows.append((target[1], start, waits, high_watermark, high_watermark - waits, held_by, None))
    configs = _configs(bootstrap, name)
    columns = ("partition", "start", "last stable", "high watermark", "held back", "held by", "unavailable")
    if as_json:
        keys = [column.replace(" ", "_") for column in columns]
        print_json(
            {
                "topic": name,
                "configs": configs,
                "partitions": [dict(zip(keys, row, strict=True)) for row in rows],
            }
        )
        return
    print_table(f"topic {name}", columns, rows)
    print_table("settings of its own", ("setting", "value"), sorted(configs.items()))


def _configs(bootstrap: str, name: str) -> dict[str, str]:
    """Return the settings that were set for the topic itself, without the broker's defaults."""
    resource = ConfigResource(ResourceType.TOPIC, name)
    admin = admin_client(bootstrap)
    entries = ask(bootstrap, lambda: admin.describe_configs([resource])[resource], f"settings of {name}")
    return {entry.name: entry.value for entry in entries.values() if entry.source == 1}


def alter(
    bootstrap: str, name: str, configs: Sequence[str], partitions: int | None, *, as_json: bool
) -> None:
    """Change settings and the number of partitions."""
    if not configs and partitions is None:
        fail(f"say what of {name} to change: --config name=value or --partitions")
    known_topic(bootstrap, name)
    admin = admin_client(bootstrap)
    if configs:
        resource = ConfigResource(ResourceType.TOPIC, name)
        for config in configs:
            key, value = pair(config)
            operation = AlterConfigOpType.SET if value else AlterConfigOpType.DELETE
            resource.add_incremental_config(ConfigEntry(key, value or None, incremental_operation=operation))
        ask(bootstrap, lambda: admin.incremental_alter_configs([resource])[resource], f"settings of {name}")
    if partitions is not None:
        ask(
            bootstrap,
            lambda: admin.create_partitions([NewPartitions(name, partitions)])[name],
            f"partitions of {name}",
        )
    done(f"altered {name}", as_json=as_json, topic=name)


def delete(bootstrap: str, name: str, *, as_json: bool) -> None:
    """Delete a topic."""
    known_topic(bootstrap, name)
    admin = admin_client(bootstrap)
    ask(bootstrap, lambda: admin.delete_topics([name])[name], f"deleting {name}")
    done(f"deleted {name}", as_json=as_json, topic=name)
