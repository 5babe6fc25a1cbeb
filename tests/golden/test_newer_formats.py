"""A directory to which a later release has written is refused by file name and version, and nothing in it is changed."""

import json
import re
import struct

import pytest
from crc32c import crc32c

from stablelog.batch.header import headers_in
from stablelog.batch.records import Record, encode_batch
from stablelog.cli.inspect import inspect
from stablelog.cli.repair import repair
from stablelog.cli.verify import verify
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.coordinators.consumer_groups.records import encode_group_key, encode_offset_key
from stablelog.coordinators.record_fields import string
from stablelog.coordinators.transactions.records import group_key, joint_key, transaction_key
from stablelog.data_directory.quota_file import encode_quotas
from stablelog.data_directory.registered_file import encode_json
from stablelog.data_directory.settings_file import decode_settings, encode_settings
from stablelog.errors import UnavailableError, UnknownFormatError
from tests.golden.generation import NAMES, generations
from tests.golden.generation_look import ISOLATIONS, fetched_to_end
from tests.golden.serving import BrokerAt
from tests.java.load import TIMEOUT_S
from tests.spark.reading import rows
from tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore")
GENERATION = generations()[-1]


def files_in(directory):
    """Every file and directory with its content. The lock has none."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
        if path.name != ".lock"
    }


# -- files as a later release would write them -----------------------------------------------------------------------
# Each takes a directory, changes one file in it, and returns its path with the version that it says now.


def newest(directory, suffix):
    return max(directory.glob(f"*{suffix}"))


def first_number(suffix):
    """A version in the first two bytes, which no CRC covers."""

    def write(directory):
        path = newest(directory, suffix)
        content = path.read_bytes()
        version = int.from_bytes(content[:2], "big") + 1
        path.write_bytes(version.to_bytes(2, "big") + content[2:])
        return path, version

    return write


def oldest_summary(directory):
    """Compaction writes the first segments anew, and a later release may have come no further."""
    path = min(directory.glob("*.summary"))
    content = path.read_bytes()
    path.write_bytes(b"\0\2" + content[2:])
    return path, 2


def first_line(name, mark=""):
    """A version in the first line of a text."""

    def write(directory):
        path = directory / name
        first, separator, rest = path.read_text().partition("\n")
        version = int(first.removeprefix(mark)) + 1
        path.write_text(f"{mark}{version}{separator}{rest}")
        return path, version

    return write


def json_version(name):
    def write(directory):
        path = directory / name
        content = json.loads(path.read_text())
        content["version"] += 1
        path.write_text(json.dumps(content))
        return path, content["version"]

    return write


def commit_summary(directory):
    path, version = first_number(".commitsummary")(directory)
    content = path.read_bytes()[:-4]
    path.write_bytes(content + crc32c(content).to_bytes(4, "big"))
    return path, version


def dynamic_settings(directory):
    path = directory / "broker.json"
    line = encode_settings({"log.retention.ms": "-1"}).splitlines()[0].replace(b'"version":1', b'"version":4')
    path.write_bytes(line + b"\n%08x\n" % crc32c(line))
    return path, 4


def users(directory):
    path = directory / "users.json"
    path.write_bytes(encode_json(2, {"users": "of tomorrow"}))
    return path, 2


def quotas(directory):
    path = directory / "quotas.json"
    line = encode_quotas({}).splitlines()[0].replace(b'"version":1', b'"version":2')
    path.write_bytes(line + b"\n%08x\n" % crc32c(line))
    return path, 2


def record(log, key, value, version):
    """A record behind the others of a coordinator's log."""

    def write(directory):
        path = newest(directory / f"{log}-0", ".log")
        content = path.read_bytes()
        last = [header for _, header in headers_in(content)][-1]
        batch = encode_batch(
            [Record(0, 0, key, value)], base_offset=last.next_offset, leader_epoch=last.leader_epoch
        )
        path.write_bytes(content + batch)
        return f"{path}, offset {last.next_offset}", version

    return write


def in_partition(name, write):
    return lambda directory: write(directory / name)


COMMIT_LOG, OFFSETS_LOG = "__transaction_state", "__consumer_offsets"
OF_THE_BROKER = {
    "cluster.json": json_version("cluster.json"),
    "meta.properties": first_line("meta.properties", "version="),
    "broker.json": dynamic_settings,
    "users.json": users,
    "quotas.json": quotas,
    ".kafka_cleanshutdown": json_version(".kafka_cleanshutdown"),
    "log-start-offset-checkpoint": first_line("log-start-offset-checkpoint"),
    "cleaner-offset-checkpoint": first_line("cleaner-offset-checkpoint"),
    "recovery-point-offset-checkpoint": first_line("recovery-point-offset-checkpoint"),
    "replication-offset-checkpoint": first_line("replication-offset-checkpoint"),
    "transactional id": record(COMMIT_LOG, transaction_key("x"), struct.pack(">h40x", 2), 2),
    "of a group": record(f"{COMMIT_LOG}.pay", group_key("pay"), struct.pack(">hqq", 1, 0, 0), 1),
    "joint commit": record(COMMIT_LOG, joint_key("", "x"), struct.pack(">h60x", 3), 3),
    "another kind": record(COMMIT_LOG, struct.pack(">h", 10_002) + string("x"), b"value", 10_002),
    "committed offset": record(OFFSETS_LOG, encode_offset_key("g", "t", 0), struct.pack(">h40x", 5), 5),
    "consumer group": record(OFFSETS_LOG, encode_group_key("g"), struct.pack(">h40x", 5), 5),
    "a coordinator's snapshot": in_partition(f"{OFFSETS_LOG}-0", first_number(".snapshot")),
    "a coordinator's metadata": in_partition(
        f"{COMMIT_LOG}-0", first_line("partition.metadata", "version: ")
    ),
}
OF_A_PARTITION = {
    ".summary": ("ordinary", first_number(".summary")),
    ".summary of a compacted topic": ("compacted", oldest_summary),
    ".snapshot": ("ordinary", first_number(".snapshot")),
    ".producers": ("ordinary", first_number(".producers")),
    ".txnindex": ("ordinary", first_number(".txnindex")),
    "leader-epoch-checkpoint": ("ordinary", first_line("leader-epoch-checkpoint")),
    "partition.metadata": ("ordinary", first_line("partition.metadata", "version: ")),
    "log-start-offset": ("trimmed", first_line("log-start-offset")),
    ".commitsummary": ("ordered", commit_summary),
    "view-start-offset": ("ordered-trimmed", first_line("view-start-offset")),
}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("stopped", kind) for kind in OF_THE_BROKER),
        ("killed", "cluster.json"),
        ("killed", "transactional id"),
    ],
)
def test_the_broker_does_not_start_on_it_and_verify_names_it(tmp_path, name, kind, capsys):
    """What it cannot serve without. The file that says that the last stop was clean is still there, too."""
    data = GENERATION.unpack(name, tmp_path)
    place, version = OF_THE_BROKER[kind](data)
    before = files_in(data)
    with (
        pytest.raises(UnknownFormatError) as refused,
        BrokerAt(data, GENERATION.expected(name)["written_ms"]),
    ):
        pass
    assert refused.value.place == str(place)
    assert refused.value.found == version
    message = str(refused.value)
    assert message.startswith(f"{place}: ")
    told = f" of version {version}; this release reads versions up to {refused.value.known}"
    assert told in message
    capsys.readouterr()
    with pytest.raises(SystemExit):
        verify(data, as_json=False)
    (named,) = [line for line in capsys.readouterr().out.splitlines() if told in line]
    assert named.replace(": offset", ", offset").startswith(str(place))
    assert files_in(data) == before


@pytest.mark.extended
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", OF_A_PARTITION)
def test_a_partition_stays_offline(tmp_path, name, kind, capsys):
    """It is named, others are served, and the release that wrote it finds it as it was: so does this one, once it is back."""
    data = GENERATION.unpack(name, tmp_path)
    topic, write = OF_A_PARTITION[kind]
    directory = data / f"{topic}-0"
    whole = files_in(directory)
    path, version = write(directory)
    before = files_in(directory)
    told = GENERATION.expected(name)
    seen = told["topics"][topic]["partitions"][0]
    broker = BrokerAt(data, told["written_ms"])
    said = f"{path}: .* of version {version}; this release reads versions up to {version - 1}"
    with broker, BlockingCluster(broker.bootstrap, timeout_s=TIMEOUT_S, deadline_s=0.2) as cluster:
        with pytest.raises(UnavailableError, match=f"{topic}-0"):
            fetched_to_end(cluster, topic, 0, seen["start"]["all"], ISOLATIONS["all"])
        other = told["topics"]["append-time"]["partitions"][0]
        # The broker may still be opening this partition, so the deadline is a longer one.
        with BlockingCluster(broker.bootstrap, timeout_s=TIMEOUT_S) as patient:
            served = fetched_to_end(patient, "append-time", 0, other["start"]["all"], ISOLATIONS["all"])
        assert served == other["all"]
        until(lambda: any(str(path) in line for line in broker.faults.lines), "that the file is named")
    (line,) = [line for line in broker.faults.lines if str(path) in line]
    assert line.startswith(f"{topic}-0 cannot be opened and stays offline")
    assert re.search(said, line)
    assert files_in(directory) == before
    check_tools(directory, path, version, capsys)
    path.write_bytes(whole[path.name])
    with broker, BlockingCluster(broker.bootstrap, timeout_s=TIMEOUT_S) as cluster:
        served = fetched_to_end(cluster, topic, 0, seen["start"]["all"], ISOLATIONS["all"])
        assert served == seen["all"]


def damage_log(directory):
    """Flip a byte of the last batch of a partition that holds data, which is durable."""
    path = next(path for path in sorted(directory.glob("*.log"), reverse=True) if path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[[at for at, _ in headers_in(content)][-1] + 30] ^= 1
    path.write_bytes(content)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", OF_THE_BROKER)
def test_repair_writes_nothing_to_such_a_directory(tmp_path, kind):
    data = GENERATION.unpack("stopped", tmp_path)
    place, version = OF_THE_BROKER[kind](data)
    damage_log(data / "ordinary-0")
    before = files_in(data)
    with pytest.raises(UnknownFormatError) as refused:
        repair(data, yes=True)
    assert (refused.value.place, refused.value.found) == (str(place), version)
    assert files_in(data) == before


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["transactional id", "joint commit", "another kind"])
def test_repair_refuses_a_commit_log_with_such_a_record_behind_damage(tmp_path, kind):
    data = GENERATION.unpack("stopped", tmp_path)
    damage_log(data / f"{COMMIT_LOG}-0")
    place, version = OF_THE_BROKER[kind](data)
    before = files_in(data)
    with pytest.raises(UnknownFormatError) as refused:
        repair(data, yes=True)
    assert (refused.value.place, refused.value.found) == (str(place), version)
    assert files_in(data) == before


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", OF_A_PARTITION)
def test_repair_writes_nothing_to_such_a_partition_and_repairs_the_others(tmp_path, kind, capsys):
    data = GENERATION.unpack("stopped", tmp_path)
    topic, write = OF_A_PARTITION[kind]
    directory = data / f"{topic}-0"
    path, version = write(directory)
    for name in (f"{topic}-0", "append-time-0"):
        damage_log(data / name)
    before = files_in(directory)
    with pytest.raises(SystemExit) as ended:
        repair(data, yes=True)
    assert ended.value.code == 1
    assert files_in(directory) == before
    told = capsys.readouterr().out
    assert f"{topic}-0: cannot be repaired: {path}: " in told
    assert f" of version {version}; this release reads versions up to {version - 1}" in told
    assert "append-time-0: " in told
    assert list((data / "append-time-0").glob("*.cut"))


def check_tools(directory, path, version, capsys):
    """What looks into a directory without a broker names the file, too."""
    if path.name not in ("partition.metadata", "view-start-offset"):
        with pytest.raises(SystemExit):
            verify(directory, as_json=True)
        findings = json.loads(capsys.readouterr().out)
        assert f"of version {version};" in {one["file"]: one["problem"] for one in findings}[str(path)]
    if path.suffix in (".summary", ".snapshot", ".producers"):
        inspect(path, records=False, as_json=True)
        assert f"of version {version};" in json.loads(capsys.readouterr().out)["problem"]


@pytest.mark.extended
def test_spark_reads_nothing_of_such_a_segment(tmp_path):
    """Without a broker; what a summary of a later release says of aborts and records is not known."""
    data = GENERATION.unpack("stopped", tmp_path)
    path, version = first_number(".summary")(data / "ordinary-0")
    with pytest.raises(UnknownFormatError, match=rf"{path}: .* of version {version};"):
        rows({"path": str(data), "subscribe": "ordinary", "startingOffsets": "earliest"}, "value")


@pytest.mark.extended
@pytest.mark.parametrize("name", NAMES)
def test_a_version_that_no_release_can_have_is_damage(tmp_path, name):
    """A file that can be made anew is made anew then."""
    data = GENERATION.unpack(name, tmp_path)
    for suffix in (".summary", ".snapshot", ".producers", ".commitsummary"):
        path = newest(data / "ordered-0", suffix)
        path.write_bytes(b"\x7f\xff" + path.read_bytes()[2:])
    told = GENERATION.expected(name)
    seen = told["topics"]["ordered"]["partitions"][0]
    broker = BrokerAt(data, told["written_ms"])
    with broker, BlockingCluster(broker.bootstrap, timeout_s=TIMEOUT_S) as cluster:
        for of, isolation in ISOLATIONS.items():
            assert fetched_to_end(cluster, "ordered", 0, seen["start"][of], isolation) == seen[of]
    assert not [line for line in broker.faults.lines if "offline" in line]


def test_the_settings_that_are_written_are_read():
    """The case above that has no file in the generation begins with what the code writes."""
    settings, defaults = {"log.retention.ms": "-1"}, {"message.max.bytes": "17"}
    groups = {"g": {"consumer.session.timeout.ms": "45000"}}
    assert decode_settings(encode_settings(settings)) == (settings, {}, {})
    assert decode_settings(encode_settings(settings, defaults)) == (settings, defaults, {})
    assert decode_settings(encode_settings(settings, defaults, groups)) == (settings, defaults, groups)
