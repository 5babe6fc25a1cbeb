"""What is written into the directories of a generation, by real clients."""

import contextlib
import threading
from datetime import timedelta

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v4.request import (  # the last version in which a client says when an offset expires
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

import stablelog
from stablelog.batch.header import Codec
from stablelog.batch.records import Record, encode_batch
from stablelog.client.blocking import joint
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.errors import StablelogError
from tests.clients.drivers import TIMEOUT_S, Aiokafka, KafkaPython
from tests.clients.test_quotas import limit
from tests.golden.generation_look import identity_of
from tests.golden.generation_writers import LONG_MS, NOW_MS, Aio, Confluent, Ours, value
from tests.java.load import CODECS, commit_offsets, create_topic, producer, settings
from tests.waiting import until

LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
PASSWORD = b"of the users"
SMALL = {"segment.bytes": "2500", "index.interval.bytes": "300", "retention.ms": "-1"}
ORDERED = {**SMALL, "stablelog.order": "commit"}
COMPACTED = {
    "segment.bytes": "2000",
    "index.interval.bytes": "300",
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
}
TOPICS = {  # with how many partitions
    "ordinary": (2, SMALL),
    "append-time": (1, {**SMALL, "message.timestamp.type": "LogAppendTime"}),
    "compacted": (1, {**COMPACTED, "delete.retention.ms": "0"}),
    "compacted-late": (1, {**COMPACTED, "cleanup.policy": "compact,delete", "retention.ms": "-1"}),
    "trimmed": (1, SMALL),
    "again": (2, SMALL),
    "empty": (1, {}),
    "ordered": (2, ORDERED),
    "ordered-too": (1, ORDERED),
    "ordered-trimmed": (1, ORDERED),
    "long": (1, {**ORDERED, "segment.bytes": "1000000"}),
    "pay-ledger": (2, {**ORDERED, "stablelog.group": "pay"}),
    "pay-notes": (1, {**SMALL, "stablelog.group": "pay"}),
    "stock-ledger": (
        1,
        {**ORDERED, "stablelog.group": "stock", "message.timestamp.type": "LogAppendTime"},
    ),
    "busy": (2, SMALL),
    "busy-ordered": (1, ORDERED),
}
BUSY = ("busy", "busy-ordered")
AFTER_KILL_S = 5  # for so long a writer goes on asking a broker that is gone
LONG_COUNT = 2_100  # batches of a transaction that the commit index places only when it is read


# -- the load ------------------------------------------------------------------------------------------------------


class Load:
    """Writes everything. What it holds open must live until the broker has ended.

    Args:
        bootstrap: of the broker.
        data: its data directory, in which one sees how far compaction has come.
    """

    def __init__(self, bootstrap, data):
        self.bootstrap = bootstrap
        self.data = data
        self.held = []
        self._first_number = 0  # of the transactions of this half
        self.admin = AdminClient(settings(bootstrap))

    def _hold(self, writer):
        self.held.append(writer)
        return writer

    def first_half(self):
        """All that a restart lies behind."""
        for name, (count, configs) in TOPICS.items():
            create_topic(self.bootstrap, name, configs, count)
        self.admin.create_partitions([NewPartitions("empty", 3)])["empty"].result(TIMEOUT_S)
        resource = ConfigResource(ResourceType.TOPIC, "ordinary")
        resource.add_incremental_config(
            ConfigEntry("max.message.bytes", "500000", incremental_operation=AlterConfigOpType.SET)
        )
        self.admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
        broker = ConfigResource(ResourceType.BROKER, "1")
        broker.add_incremental_config(
            ConfigEntry("log.retention.bytes", "-1", incremental_operation=AlterConfigOpType.SET)
        )
        self.admin.incremental_alter_configs([broker])[broker].result(TIMEOUT_S)
        self._security()
        self._plain()
        for round_number in range(3):
            self._compacted(round_number)
        self._transactions()
        self._again()
        self._delete_records()

    def second_half(self):
        """What comes after the restart, with no compaction any more."""
        self._first_number = 50
        self._more_security()
        self._transactions()
        self._long()
        self._joints()
        self._groups()
        self._left_open()
        self._more_offsets()

    def _security(self):
        """ACLs of every kind of pattern, users with both mechanisms, and quotas."""
        acls = [
            AclBinding(kind, name, pattern, principal, host, operation, permission)
            for kind, name, pattern, principal, host, operation, permission in (
                (ResourceType.TOPIC, "ordinary", LITERAL, "User:alice", "*", AclOperation.READ, ALLOW),
                (ResourceType.TOPIC, "pay-", PREFIXED, "User:bob ü", "*", AclOperation.ALL, ALLOW),
                (ResourceType.GROUP, "*", LITERAL, "User:*", "192.0.2.1", AclOperation.READ, DENY),
                (
                    ResourceType.TRANSACTIONAL_ID,
                    "gone",
                    LITERAL,
                    "User:alice",
                    "*",
                    AclOperation.WRITE,
                    ALLOW,
                ),
            )
        ]
        for created in self.admin.create_acls(acls).values():
            created.result(TIMEOUT_S)
        # A request may change only one mechanism of a user.
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, 4096)
            self._alter_users(
                [UserScramCredentialUpsertion(name, info, PASSWORD) for name in ("alice", "bob ü", "gone")]
            )
        limit(self.bootstrap, (("user", "alice"),), producer_byte_rate=1_000_000)
        limit(self.bootstrap, (("user", None), ("client-id", "c")), request_percentage=12.5)
        limit(self.bootstrap, (("ip", "192.0.2.1"),), connection_creation_rate=7)
        limit(self.bootstrap, (("user", "gone"),), consumer_byte_rate=5)

    def _more_security(self):
        """What is removed after the restart."""
        gone = AclBindingFilter(
            ResourceType.TRANSACTIONAL_ID,
            "gone",
            LITERAL,
            None,
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for removed in self.admin.delete_acls([gone]).values():
            assert len(removed.result(TIMEOUT_S)) == 1
        self._alter_users([UserScramCredentialDeletion("gone", ScramMechanism.SCRAM_SHA_256)])
        limit(self.bootstrap, (("user", "gone"),), consumer_byte_rate=None)

    def _alter_users(self, changes):
        for altered in self.admin.alter_user_scram_credentials(changes).values():
            altered.result(TIMEOUT_S)

    def _plain(self):
        """Outside transactions: every codec, idempotent or not, headers, null keys and values."""
        for topic in ("ordinary", "append-time", "ordered", "again", "trimmed", "ordered-trimmed"):
            for codec in CODECS:
                by = producer(
                    self.bootstrap, **{"compression.type": codec, "enable.idempotence": codec != "gzip"}
                )
                for place in range(4):
                    headers = [("codec", codec.encode()), ("null", None), ("empty", b"")][: place % 4]
                    content = value("plain", codec, 0, place) + b" " + b"x" * 60
                    by.produce(topic, content, partition=0, headers=headers)
                by.flush(TIMEOUT_S)
                by.produce(topic, None, b"key without a value", partition=0, timestamp=NOW_MS)
                by.produce(topic, value("plain", codec, 1, 0), b"", partition=0)
                assert by.flush(TIMEOUT_S) == 0
        for driver, word in ((Aiokafka, "aiokafka"), (KafkaPython, "kafka-python")):
            by = driver(self.bootstrap)
            by.produce("ordinary", [value("plain", word, 0, place) for place in range(3)], compression="gzip")

    def _compacted(self, round_number):
        """Keys that come back, tombstones, aborts, a producer that never writes again; then passes of compaction."""
        for topic in ("compacted", "compacted-late"):
            by = Confluent(self.bootstrap, f"{topic}-writer")
            by.number = 100 * round_number
            silent = Confluent(
                self.bootstrap, f"{topic}-silent-{round_number}", **{"compression.type": "lz4"}
            )
            silent.begin("abort").write(topic, keys=[b"k0", b"k1"]).end()
            plain = producer(self.bootstrap, **{"compression.type": "zstd"})
            for number in range(10):
                keys = [b"k%d" % (place * 7 + number % 3) for place in range(5)]
                by.begin("abort" if number % 4 == 1 else "commit").write(topic, count=5, keys=keys).end()
                for place in range(2):
                    content = value("plain", "writer", 100 * round_number + number, place)
                    content = None if (number + place) % 5 == 0 else content
                    plain.produce(topic, content, b"p%d" % (place + number % 4), partition=0)
                assert plain.flush(TIMEOUT_S) == 0
            until(lambda topic=topic: self._is_compacted(topic), f"{topic} is not compacted")

    def _is_compacted(self, topic):
        checkpoint = self.data / "cleaner-offset-checkpoint"
        rows = checkpoint.read_text().splitlines() if checkpoint.exists() else []
        growing = max(int(path.stem) for path in (self.data / f"{topic}-0").glob("*.log"))
        return f"{topic} 0 {growing}" in rows

    def _transactions(self):
        """Transactions that overlap, by producers of both dialects, over several partitions and topics."""
        at = self.bootstrap
        for group, targets in (
            ("", [("ordinary", 0), ("ordinary", 1), ("ordered", 0), ("ordered", 1), ("ordered-too", 0)]),
            ("pay/", [("pay-ledger", 0), ("pay-ledger", 1), ("pay-notes", 0)]),
            ("stock/", [("stock-ledger", 0)]),
        ):
            plain = producer(at)
            writers = [
                Confluent(at, f"{group}confluent", **{"compression.type": "snappy"}),
                Aio(at, f"{group}aiokafka"),
                Ours(at, f"{group}ours", codec=Codec.GZIP),
            ]
            for number in range(4):
                fates = ["abort" if (number + place) % 3 == 0 else "commit" for place in range(len(writers))]
                for writer, fate in zip(writers, fates, strict=True):
                    writer.number = self._first_number + number
                    writer.begin(fate)
                for place, (topic, partition) in enumerate(targets):
                    for turn, writer in enumerate(writers):
                        if (turn + place + number) % 4:
                            writer.write(topic, partition, 1 + (turn + number) % 3)
                    plain.produce(
                        topic, value("plain", f"{group}between", number, place), partition=partition
                    )
                    assert plain.flush(TIMEOUT_S) == 0
                for writer in writers[number % 3 :] + writers[: number % 3]:
                    writer.end()
            for writer in writers:
                writer.close()
        self._native(("ordered", "ordered-too"), "")
        self._native(("pay-ledger", "pay-notes"), "pay")
        for topic in ("append-time", "trimmed", "ordered-trimmed"):
            by = Confluent(at, f"{topic}-writer")
            by.number = self._first_number
            for number in range(6):
                by.begin("abort" if number % 3 == 2 else "commit").write(topic, count=4).end()

    def _native(self, topics, group):
        """Transactions of the native client: joint commits of one."""
        with stablelog.connect(self.bootstrap) as client:
            for number in range(self._first_number, self._first_number + 2):
                with client.transaction(group=group, timeout=600) as txn:
                    for place, topic in enumerate(topics):
                        content = value("commit", f"{group}:native", number, place)
                        txn.write(topic, content, key=b"key", partition=0, headers={"place": str(place)})

    def _again(self):
        """A topic that is deleted with all that is in it, and one that is made again under its name."""
        consumer = Consumer(settings(self.bootstrap, **{"group.id": "of-deleted"}))
        consumer.commit(offsets=[TopicPartition("again", 0, 3)], asynchronous=False)
        consumer.close()
        create_topic(self.bootstrap, "gone", SMALL)
        by = Confluent(self.bootstrap, "again-writer")
        by.begin("commit").write("gone").write("again", 1).end()
        open_there = Confluent(self.bootstrap, "again-open")
        open_there.begin("abort").write("again", 1)
        for future in self.admin.delete_topics(["again", "gone"]).values():
            future.result(TIMEOUT_S)
        create_topic(self.bootstrap, "again", {**ORDERED, "segment.bytes": "1200"}, 1)
        open_there.end()
        by.begin("commit").write("again", count=5).end()

    def _delete_records(self):
        for topic in ("trimmed", "ordered-trimmed"):
            at = TopicPartition(topic, 0, 25)
            self.admin.delete_records([at])[at].result(TIMEOUT_S)

    def _long(self):
        """So many batches in one transaction that the commit index treats it as a long one."""
        by = Ours(self.bootstrap, "long-writer")
        by.begin("commit")
        for place in range(LONG_COUNT):
            content = value("commit", "long-writer", 1, place).ljust(480, b".")
            by.by.append("long", 0, bytearray(encode_batch([Record(0, NOW_MS, None, content)])))
        by.by.flush()
        by.end()
        by.close()

    def _joints(self):
        """Joint commits that are decided, and children of a version that is not."""
        at = self.bootstrap
        with BlockingCluster(at, timeout_s=TIMEOUT_S) as cluster:
            for version in range(2):
                joint.begin(cluster, "query", version, "lost", order=joint.next_order(cluster))
                lost = Confluent(at, joint.child_id("query", version, "lost", 0, 0))
                lost.begin("abort").write("ordinary").write("ordered")
                joint.begin(cluster, "query", version, "won", order=joint.next_order(cluster))
                children = [self._child("commit", version, "won", part) for part in range(2)]
                joint.commit(
                    cluster,
                    "query",
                    version,
                    [identity_of(self.bootstrap, child.who) for child in children],
                    group_offsets={
                        ("of-query", "ordinary", 0): (10 + version, "by joint commit"),
                        ("of-query", "ordered", 1): 20 + version,
                    },
                    run="won",
                    digest=f"digest of {version}",
                )
            by = Ours(at, joint.child_id("bills", 7, "", 0, 0, group="pay"))
            by.begin("commit").write("pay-ledger", 1).write("pay-notes")
            joint.commit(cluster, "bills", 7, [identity_of(at, by.who)], retention_ms=LONG_MS, group="pay")
            joint.begin(cluster, "query", 2, "first", order=joint.next_order(cluster))
            joint.begin(cluster, "query", 2, "second", order=joint.next_order(cluster))
            for part in range(2):
                self._child("child", 2, "second", part)

    def _child(self, fate, version, run, part):
        kind = (Confluent, Ours)[part]
        child = self._hold(kind(self.bootstrap, joint.child_id("query", version, run, part, 0)))
        return child.begin(fate).write("ordinary", part).write("ordered", 1).write("ordered-too", count=1)

    def _groups(self):
        """Offsets: of a member, in transactions that commit and abort, with metadata, of several partitions."""
        commit_offsets(self.bootstrap, "append-time")  # of the group "readers"
        consumer = Consumer(settings(self.bootstrap, **{"group.id": "several"}))
        at = [
            TopicPartition("ordinary", 0, 39, "metadata é"),
            TopicPartition("ordinary", 1, 78),
            TopicPartition("ordered", 0, 117, ""),
        ]
        consumer.commit(offsets=at, asynchronous=False)
        consumer.close()
        self._expiring_offset()
        member = Consumer(
            settings(
                self.bootstrap,
                **{
                    "group.id": "member",
                    "group.instance.id": "static",
                    "session.timeout.ms": 1_800_000,
                    "max.poll.interval.ms": 1_800_000,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                },
            )
        )
        member.subscribe(["ordinary", "append-time"])
        assert member.poll(TIMEOUT_S) is not None
        member.commit(offsets=[TopicPartition("ordinary", 1, 4)], asynchronous=False)
        self._hold(member)
        newer = Consumer(
            settings(
                self.bootstrap,
                **{
                    "group.id": "newer",
                    "group.protocol": "consumer",
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                },
            )
        )
        newer.subscribe(["ordinary", "again"])
        assert newer.poll(TIMEOUT_S) is not None
        newer.commit(offsets=[TopicPartition("again", 0, 2, "of a newer group")], asynchronous=False)
        self._hold(newer)

    def _expiring_offset(self):
        """An offset whose expiry the client has chosen, as old clients do."""
        with BlockingCluster(self.bootstrap, timeout_s=TIMEOUT_S) as cluster:
            connection = cluster.any_connection()
            partition = OffsetCommitRequestPartition(
                partition_index=1, committed_offset=6, committed_metadata=None
            )
            topic = OffsetCommitRequestTopic(name="ordinary", partitions=(partition,))
            request = OffsetCommitRequest(
                group_id="expiring",
                generation_id_or_member_epoch=-1,
                member_id="",
                retention_time=timedelta(days=7_000),
                topics=(topic,),
            )
            answer = connection.request_unchanged(request)
            assert answer.topics[0].partitions[0].error_code is ErrorCode.none, answer

    def _more_offsets(self):
        """So many that the log is trimmed while offsets wait for their transaction; and one that comes after such a one."""
        consumer = Consumer(settings(self.bootstrap, **{"group.id": "several"}))
        consumer.commit(offsets=[TopicPartition("ordered", 0, 200)], asynchronous=False)
        consumer.close()
        consumer = Consumer(settings(self.bootstrap, **{"group.id": "often"}))
        log = self.data / "__consumer_offsets-0"
        before = max(log.glob("*.log"))  # what open transactions wait for is not deleted with the checkpoint
        for number in range(400):
            at = [TopicPartition("ordinary", 0, number, "x" * 100)]
            consumer.commit(offsets=at, asynchronous=False)
            if max(log.glob("*.log")) != before:
                break
        assert max(log.glob("*.log")) != before, "the offsets log is not trimmed"
        consumer.close()

    def _left_open(self):
        """Open and prepared transactions, with offsets that wait for them."""
        at = self.bootstrap
        by = self._hold(Confluent(at, "ordinary-open"))
        by.begin("open").write("ordinary", 0, 3).write("ordered", 0, 2)
        by.offsets("undecided", {("ordinary", 0): 9})
        by.offsets("several", {("ordinary", 0): 77, ("ordered", 0): 78})
        self._hold(Ours(at, "ours-open")).begin("open").write("ordered", 1).write("ordered-too")
        self._hold(Confluent(at, "pay/open")).begin("open").write("pay-ledger", 0).write("pay-notes")
        for who, topics in (
            ("prepared", ("ordinary", "ordered")),
            ("prepared-too", ("append-time", "ordered-too")),
            ("stock/prepared", ("stock-ledger",)),
        ):
            prepared = self._hold(Ours(at, who, two_phase=True)).begin("prepared")
            for topic in topics:
                prepared.write(topic)
        plain = producer(at)
        for topic in ("ordinary", "ordered", "pay-notes", "append-time"):
            plain.produce(topic, value("plain", "behind", 0, 0), partition=0)
        assert plain.flush(TIMEOUT_S) == 0
        Confluent(at, "behind").begin("commit").write("ordinary", 0).write("ordered", 0).end()
        Confluent(at, "behind-too").begin("abort").write("ordinary", 0).write("ordered", 0).end()


# -- under a kill ----------------------------------------------------------------------------------------------


class BusyWriters:
    """Writers that commit one transaction after the other over all busy partitions, until the broker is gone.

    Attributes:
        acknowledged: the transactions whose commit was answered, as "<who> <number>".
    """

    def __init__(self, bootstrap, start):
        self.acknowledged = []
        self._threads = []
        for name, kind in (("confluent", Confluent), ("ours", Ours), ("confluent-too", Confluent)):
            writer = kind(bootstrap, f"busy-{name}", patience_s=AFTER_KILL_S)
            writer.number = start
            self._threads.append(threading.Thread(target=self._run, args=(writer,), daemon=True))
        for thread in self._threads:
            thread.start()

    def join(self):
        """Wait until they have noticed."""
        for thread in self._threads:
            thread.join()

    def _run(self, writer):
        with contextlib.suppress(KafkaException, StablelogError, AssertionError):  # the broker is gone
            while True:
                writer.begin("busy")
                for topic, partition in (("busy", 0), ("busy-ordered", 0), ("busy", 1)):
                    writer.write(topic, partition, 1)
                writer.end()
                self.acknowledged.append(f"{writer.who} {writer.number}")
