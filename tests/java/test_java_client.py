"""Apache Kafka's Java client, unmodified, in the second dialect of transactions. `tests/clients` has it too, beside the others."""

import json
from pathlib import Path

import pytest

from tests.clients.drivers import Confluent, unique
from tests.java.client import RefusedError, encoded
from tests.java.load import Reader, create_topic, producer, send, write_everything
from tests.waiting import until

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.java, pytest.mark.filterwarnings("ignore")]

TOOLS = "org.apache.kafka.tools"
READER = {"enable.auto.commit": False, "auto.offset.reset": "earliest", "heartbeat.interval.ms": 100}


@pytest.fixture
def topic(java):
    name = unique("java")
    java.ask("create_topic", topic=name, partitions=1)
    return name


def poll_until(java, members, condition):
    """Poll each member in turn until what they have is as wanted; the records that came on the way."""
    records, has = [], {}

    def polled():
        for name in members:
            try:
                found = java.ask("poll", name=name, ms=50, commit=True)
            except RefusedError as refused:
                # A commit during a rebalance, before the member has its new epoch: Kafka's programs poll again.
                if "stale member epoch" not in str(refused):
                    raise
                return False
            records.extend(found["records"])
            has[name] = sorted(map(tuple, found["assigned"]))
        return condition(has)

    until(polled, lambda: f"still {has}")
    return records


def test_topics_are_made_changed_described_and_deleted(java):
    name = unique("admin")
    java.ask(
        "create_topic", topic=name, partitions=2, configs={"retention.ms": 5000, "cleanup.policy": "delete"}
    )
    assert name in java.ask("list_topics")
    topic_id, partitions, leader = java.ask("describe_topic", topic=name)
    assert (len(topic_id), partitions) == (22, 2)
    cluster_id, brokers, controller = java.ask("describe_cluster")
    assert (len(cluster_id), brokers, controller) == (22, 1, leader)
    java.ask("create_partitions", topic=name, partitions=3)
    assert java.ask("describe_topic", topic=name)[1] == 3
    assert java.ask("describe_config", topic=name)["retention.ms"] == "5000"
    java.ask("alter_config", topic=name, configs={"retention.ms": 7000})
    assert java.ask("describe_config", topic=name)["retention.ms"] == "7000"
    with pytest.raises(RefusedError, match="InvalidConfigurationException"):
        java.ask("alter_config", topic=name, configs={"retention.ms": "soon"})
    with pytest.raises(RefusedError, match="TopicExistsException"):
        java.ask("create_topic", topic=name, partitions=1)
    java.ask("delete_topic", topic=name)
    assert name not in java.ask("list_topics")


def test_every_codec_and_key_goes_through(java, topic):
    for compression in ("none", "gzip", "snappy", "lz4", "zstd"):
        java.produce(topic, [compression.encode() * 50, b"", None], compression=compression)
    assert [value for _, value in java.read(topic)] == [
        value for word in (b"none", b"gzip", b"snappy", b"lz4", b"zstd") for value in (word * 50, b"", None)
    ]


def test_the_second_dialect_is_spoken_and_the_epoch_rises_with_each_transaction(java, topic):
    assert java.ask("describe_features")["transaction.version"] == 2
    name = unique("epochs")
    epochs = []
    with java.transactions(name) as run:
        for number in range(4):
            run(topic, [b"%d" % number], commit=number % 2 == 0)
            epochs.append(java.ask("describe_transaction", id=name)["producer_epoch"])
    assert epochs == list(range(epochs[0], epochs[0] + 4))
    assert java.ask("describe_transaction", id=name)["state"] in ("CompleteAbort", "CompleteCommit")


def test_the_dialects_take_turns_under_one_transactional_id(java, topic, broker):
    name = unique("turns")
    clients = [java, Confluent(broker.bootstrap), java, Confluent(broker.bootstrap)]
    for number, client in enumerate(clients):
        with client.transactions(name) as run:
            run(topic, [b"aborted-%d" % number], commit=False)
            run(topic, [b"%d" % number], commit=True)
    assert [value for _, value in java.read(topic)] == [b"0", b"1", b"2", b"3"]


def test_it_reads_what_librdkafka_reads_from_every_offset(java, broker):
    """Scenario 49: overlapping transactions, all codecs, several segments and an open transaction."""
    topic = unique("everywhere")
    create_topic(broker.bootstrap, topic, {"segment.bytes": "3000", "index.interval.bytes": "300"})
    held = write_everything(broker.bootstrap, topic)
    for committed in (True, False):
        reader = Reader(broker.bootstrap, committed=committed)
        wanted = [(seen.offset, seen.value) for seen in reader.read(topic, 0)]
        starts = range(reader.bounds(topic)[1] + 1)
        reader.close()
        for start, found in zip(starts, java.read_from(topic, starts, committed=committed), strict=True):
            assert found == [row for row in wanted if row[0] >= start], start
    del held


def test_a_group_consumes_transforms_and_produces_each_record_once(java, topic):
    """Offsets go into the transaction by the consumer's own generation; what was aborted is consumed again."""
    source, group = unique("source"), unique("group")
    java.ask("create_topic", topic=source, partitions=1)
    java.produce(source, [b"%d" % number for number in range(20)])
    transformer = java.producer(unique("transformer"))
    for attempt in range(3):
        reader = unique("reader")
        settings = {**READER, "group.id": group, "isolation.level": "read_committed", "max.poll.records": 5}
        java.ask("consumer", settings, name=reader, topics=[source])
        for number in range(3):
            polled = {"records": []}
            while not polled["records"] and java.committed(group, source) != 20:
                polled = java.ask("poll", name=reader, ms=200)
            if not polled["records"]:
                break
            java.ask("begin", name=transformer)
            values = [java_value(row) + b"!" for row in polled["records"]]
            java.send(transformer, topic, values, partition=0)
            position = polled["records"][-1][0] + 1
            java.ask("offsets", name=transformer, consumer=reader, offsets=[[source, 0, position]])
            if attempt == 0 and number == 1:
                java.ask("abort", name=transformer)
                break  # a new consumer begins where the last commit left off
            java.ask("commit", name=transformer)
        java.ask("leave", name=reader)
    assert java.committed(group, source) == 20
    assert [value for _, value in java.read(topic)] == [b"%d!" % number for number in range(20)]
    java.ask("close", name=transformer)


def java_value(row):
    from tests.java.client import decoded

    return decoded(row[3])


def test_two_members_share_and_one_takes_over(java):
    topic, group = unique("shared"), unique("group")
    java.ask("create_topic", topic=topic, partitions=4)
    name = java.open({})
    everything = [(topic, number) for number in range(4)]
    for _, number in everything:
        java.send(name, topic, [b"%d" % number], partition=number)
    first, second = unique("member"), unique("member")
    for member in (first, second):
        java.ask("consumer", {**READER, "group.id": group}, name=member, topics=[topic])
    records = poll_until(
        java,
        (first, second),
        lambda has: sorted(has[first] + has[second]) == everything and len(has[first]) == len(has[second]),
    )
    assert java.ask("describe_group", group=group)[:2] == ["Stable", 2]
    java.ask("leave", name=first)
    records += poll_until(java, (second,), lambda has: has[second] == everything)
    for _, number in everything:
        java.send(name, topic, [b"again"], partition=number)
    while len(records) < 8:
        records += java.ask("poll", name=second, ms=200, commit=True)["records"]
    assert sorted((java_value(row), row[5]) for row in records) == sorted(
        [(b"%d" % number, number) for number in range(4)] + [(b"again", number) for number in range(4)]
    )
    java.ask("leave", name=second)
    assert group in java.ask("list_groups")
    java.ask("delete_group", group=group)
    assert group not in java.ask("list_groups")


def test_the_consumer_protocol_assigns_commits_and_copies(java):
    """`group.protocol=consumer`: two members share, transactions take their offsets, and one member takes over."""
    topic, target, group = unique("shared"), unique("copy"), unique("group")
    assert java.ask("describe_features")["group.version"] == 1
    java.ask("create_topic", topic=topic, partitions=4)
    java.ask("create_topic", topic=target, partitions=1)
    settings = {name: value for name, value in READER.items() if name != "heartbeat.interval.ms"}
    settings |= {"group.id": group, "group.protocol": "consumer"}
    everything = [(topic, number) for number in range(4)]
    first, second = unique("member"), unique("member")
    for member in (first, second):
        java.ask("consumer", settings, name=member, topics=[topic])
    poll_until(
        java,
        (first, second),
        lambda has: sorted(has[first] + has[second]) == everything and len(has[first]) == len(has[second]),
    )
    assert java.ask("describe_group", group=group) == ["Stable", 2, "uniform"]
    java.ask("leave", name=first)
    poll_until(java, (second,), lambda has: has[second] == everything)
    sender, transformer = java.open({}), java.producer(unique("transformer"))
    java.send(sender, topic, [b"1"], partition=2)
    records = []
    until(
        lambda: records.extend(java.ask("poll", name=second, ms=100)["records"]) or records, "nothing is read"
    )
    java.ask("begin", name=transformer)
    java.send(transformer, target, [b"1!"], partition=0)
    java.ask("offsets", name=transformer, consumer=second, offsets=[[topic, 2, 1]])
    java.ask("commit", name=transformer)
    assert [value for _, value in java.read(target)] == [b"1!"]
    java.ask("leave", name=second)
    third = unique("member")
    java.ask("consumer", settings, name=third, topics=[topic])
    again = poll_until(java, (third,), lambda has: has[third] == everything)
    assert again == []
    java.ask("leave", name=third)
    java.ask("delete_group", group=group)
    java.ask("close", name=transformer)


def test_an_open_transaction_is_found_and_ended_by_hand(java, topic):
    """Scenario 48: listed, described and aborted by the Admin client, and readers go on."""
    name = unique("hanging")
    producer_name = java.producer(name, **{"transaction.timeout.ms": 60_000})
    java.ask("begin", name=producer_name)
    java.send(producer_name, topic, [b"hanging"], partition=0)
    java.produce(topic, [b"behind it"])
    assert java.read(topic) == []
    assert {row[0]: row[2] for row in java.ask("list_transactions")}[name] == "Ongoing"
    described = java.ask("describe_transaction", id=name)
    assert (described["state"], described["timeout_ms"]) == ("Ongoing", 60_000)
    assert described["partitions"] == [[topic, 0]]
    (at,) = [row for row in java.ask("describe_producers", at=[topic, 0]) if row["open_since"] is not None]
    assert (at["producer_id"], at["open_since"], at["last_sequence"]) == (described["producer_id"], 0, 0)
    assert java.ask("list_offsets", at=[topic, 0], spec="latest", committed=True) == 0
    assert java.ask("list_offsets", at=[topic, 0], spec="latest", committed=False) == 2
    marker = {"producer_id": at["producer_id"], "coordinator_epoch": max(at["coordinator_epoch"], 0)}
    with pytest.raises(RefusedError, match="InvalidProducerEpoch"):
        java.ask("abort_transaction", at=[topic, 0], producer_epoch=at["producer_epoch"] - 1, **marker)
    java.ask("abort_transaction", at=[topic, 0], producer_epoch=at["producer_epoch"], **marker)
    assert [
        row for row in java.ask("describe_producers", at=[topic, 0]) if row["open_since"] is not None
    ] == []
    assert [value for _, value in java.read(topic)] == [b"behind it"]
    hanging = java.tool(f"{TOOLS}.TransactionsCommand", "find-hanging", "--broker-id", "1")
    assert len(hanging) == 1, "a header, and no row"
    java.ask("close", name=producer_name)


def test_a_producer_is_fenced_by_the_admin_client(java, topic):
    fenced = unique("fenced")
    name = java.producer(fenced)
    java.ask("begin", name=name)
    java.send(name, topic, [b"never"], partition=0)
    java.ask("fence_producers", id=fenced)
    with pytest.raises(RefusedError, match=r"Fenced|Epoch"):
        java.ask("commit", name=name)
    java.ask("close", name=name)
    assert java.read(topic) == []
    assert java.ask("describe_transaction", id=fenced)["state"] in ("CompleteAbort", "PrepareAbort", "Empty")


def test_records_are_deleted_and_offsets_looked_up(java, topic, broker):
    send(producer(broker.bootstrap), topic, [b"%d" % number for number in range(10)])
    assert java.ask("delete_records", at=[topic, 0, 4]) == 4
    assert java.ask("list_offsets", at=[topic, 0], spec="earliest", committed=False) == 4
    assert java.ask("list_offsets", at=[topic, 0], spec="max_timestamp", committed=False) >= 4
    assert java.ask("list_offsets", at=[topic, 0], spec="0", committed=True) == 4
    assert [value for _, value in java.read(topic, start=4)] == [b"%d" % number for number in range(4, 10)]
    with pytest.raises(RefusedError, match="OffsetOutOfRange"):
        java.read(topic, start=2)


def test_kafkas_own_commands_work(java, tmp_path):
    """kafka-topics, kafka-configs, kafka-get-offsets, kafka-consumer-groups, kafka-transactions, kafka-delete-records, kafka-log-dirs."""
    topic, group, name = unique("tools"), unique("group"), unique("tools")
    about = ("--topic", topic)
    assert java.tool(f"{TOOLS}.TopicCommand", "--create", *about, "--partitions", "2") == [
        f"Created topic {topic}."
    ]
    described = java.tool(f"{TOOLS}.TopicCommand", "--describe", *about)
    assert "PartitionCount: 2" in described[0]
    assert len(described) == 3
    changed = ("--entity-type", "topics", "--entity-name", topic)
    java.tool("kafka.admin.ConfigCommand", "--alter", *changed, "--add-config", "retention.ms=9000")
    assert "retention.ms=9000" in "".join(java.tool("kafka.admin.ConfigCommand", "--describe", *changed))

    with java.transactions(name) as run:
        run(topic, [b"1", b"2"], commit=True)
        listed = java.tool(f"{TOOLS}.TransactionsCommand", "list")
        assert any(line.split()[0] == name for line in listed)
        described = java.tool(f"{TOOLS}.TransactionsCommand", "describe", "--transactional-id", name)
        assert "Complete" in described[1]
        producers = java.tool(
            f"{TOOLS}.TransactionsCommand", "describe-producers", *about, "--partition", "0"
        )
        assert len(producers) == 2
    assert java.end(topic) == 3  # waits for the marker, which the command does not
    assert sorted(java.tool(f"{TOOLS}.GetOffsetShell", *about)) == [f"{topic}:0:3", f"{topic}:1:0"]

    groups = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    of_group = ("--group", group)
    java.tool(groups, "--reset-offsets", *of_group, *about, "--to-latest", "--execute")
    rows = [line.split() for line in java.tool(groups, "--describe", *of_group)]
    assert sorted(row[2:6] for row in rows if row[:2] == [group, topic]) == [
        ["0", "3", "3", "0"],
        ["1", "0", "0", "0"],
    ]
    assert group in java.tool(groups, "--list")
    java.tool(groups, "--delete-offsets", *of_group, *about)
    java.tool(groups, "--delete", *of_group)
    assert group not in java.tool(groups, "--list")

    wanted = tmp_path / "delete.json"
    wanted.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 2}]})
    )
    deleted = java.tool(f"{TOOLS}.DeleteRecordsCommand", "--offset-json-file", str(wanted))
    assert deleted[-1].split() == ["partition:", f"{topic}-0", "low_watermark:", "2"]
    sizes = json.loads(java.tool(f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", topic)[-1])
    (directory,) = sizes["brokers"][0]["logDirs"]
    assert {row["partition"] for row in directory["partitions"]} == {f"{topic}-0", f"{topic}-1"}
    java.tool(f"{TOOLS}.TopicCommand", "--delete", *about)
    assert topic not in java.tool(f"{TOOLS}.TopicCommand", "--list")


def test_a_producer_is_told_which_records_of_a_batch_are_not_valid(java):
    """KIP-467. The other records of the batch were not written, because the batch is refused as a whole."""
    topic = unique("record-errors")
    java.ask("create_topic", topic=topic, partitions=1, configs={"cleanup.policy": "compact"})
    name = java.open({"enable.idempotence": False, "linger.ms": 1000})
    good, also_good, lacking = encoded(b"a"), encoded(b"b"), None
    first, second, third = java.ask("send_each", name=name, topic=topic, keys=[good, lacking, also_good])
    assert second.startswith("InvalidRecordException: the record has no key")
    for other in (first, third):
        assert "Failed to append record because it was part of a batch" in other
    assert java.ask("send_each", name=name, topic=topic, keys=[good, also_good]) == [None, None]
    java.ask("close", name=name)
