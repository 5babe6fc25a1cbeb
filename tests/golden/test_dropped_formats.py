"""A directory with a form that no release has written is refused by its name, and nothing in it is changed.

Only versions of the program before the first release have written these forms.
"""

import json
import struct

import pytest
from crc32c import crc32c

from stablelog.cli.inspect import inspect
from stablelog.cli.repair import repair
from stablelog.cli.verify import verify
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.coordinators.consumer_groups.records import encode_offset_key
from stablelog.coordinators.record_fields import compact_string, tagged_fields
from stablelog.coordinators.transactions.records import joint_key
from stablelog.errors import UnavailableError, UnknownFormatError
from stablelog.log.producer_state.snapshots import JSON_BEGINS
from tests.golden.generation_look import ISOLATIONS, fetched_to_end
from tests.golden.serving import BrokerAt
from tests.golden.test_newer_formats import (
    COMMIT_LOG,
    GENERATION,
    OFFSETS_LOG,
    files_in,
    in_partition,
    newest,
    record,
)
from tests.java.load import TIMEOUT_S
from tests.spark.reading import rows
from tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore")

WHAT_TO_DO = (
    "no release has written this form, and no release reads it. To keep the records, read them with a broker of the version "
    "that wrote this directory, and produce them to a broker with a new directory"
)
OVERTAKEN = (
    struct.pack(">hqi", 4, 7, -1)
    + compact_string("")
    + struct.pack(">q", 0)
    + tagged_fields([(10_000, struct.pack(">q", 5))])
)

# Each takes a directory, writes one file of it in the form, and returns its path and how a message names the form.


def catalog(data):
    """Without the id of the cluster, the established epoch and the CRC."""
    path = data / "cluster.json"
    content = json.loads(path.read_text())
    old = {"version": 1, "leader_epoch": content["leader_epoch"], "topics": content["topics"]}
    path.write_text(json.dumps(old))
    return path, "the list of topics of version 1"


def producers(directory):
    """JSON and its CRC."""
    path = newest(directory, ".producers")
    text = JSON_BEGINS + b'"segment":"","producers":[]}'
    path.write_bytes(text + b"\n%08x\n" % crc32c(text))
    return path, "a file of producers of version 1"


def start_without_crc(name):
    def write(directory):
        path = directory / name
        path.write_text(f"0\n{path.read_text().splitlines()[1]}\n")
        return path, "where the log begins, in a file of version 0"

    return write


def commit_summary(version):
    def write(directory):
        path = newest(directory, ".commitsummary")
        content = version.to_bytes(2, "big") + path.read_bytes()[2:-4]
        path.write_bytes(content + crc32c(content).to_bytes(4, "big"))
        return path, f"a commit summary of version {version}"

    return write


def joint(data):
    """It ends with the runs."""
    key, value = joint_key("", "x"), struct.pack(">hqqqqqhh", 0, 7, 42, -1, -1, 0, 0, 0)
    place, version = record(COMMIT_LOG, key, value, 0)(data)
    return place, f"a joint commit's key of version {version}"


def overtaken(data):
    place, tag = record(OFFSETS_LOG, encode_offset_key("g", "ordinary", 0), OVERTAKEN, 10_000)(data)
    return place, f"a committed offset with the tagged field {tag}"


OF_THE_BROKER = {
    "cluster.json": catalog,
    "joint commit": joint,
    "committed offset": overtaken,
    "a coordinator's producers": in_partition(f"{OFFSETS_LOG}-0", producers),
    "a coordinator's log start": in_partition(f"{COMMIT_LOG}-0", start_without_crc("log-start-offset")),
}
OF_A_PARTITION = {
    ".producers": ("ordinary", producers),
    "log-start-offset": ("trimmed", start_without_crc("log-start-offset")),
    "view-start-offset": ("ordered-trimmed", start_without_crc("view-start-offset")),
    ".commitsummary of version 1": ("ordered", commit_summary(1)),
    ".commitsummary of version 2": ("ordered", commit_summary(2)),
}


@pytest.mark.extended
@pytest.mark.parametrize("kind", OF_THE_BROKER)
def test_the_broker_does_not_start_on_it(tmp_path, kind, capsys):
    data = GENERATION.unpack("stopped", tmp_path)
    place, form = OF_THE_BROKER[kind](data)
    before = files_in(data)
    told = f"{place}: {form}; {WHAT_TO_DO}"
    with (
        pytest.raises(UnknownFormatError) as refused,
        BrokerAt(data, GENERATION.expected("stopped")["written_ms"]),
    ):
        pass
    assert str(refused.value) == told
    with pytest.raises(UnknownFormatError) as refused:
        repair(data, yes=True)
    assert str(refused.value) == told
    with pytest.raises(SystemExit):
        verify(data, as_json=False)
    assert f"{form}; no release has written this form" in capsys.readouterr().out
    assert files_in(data) == before


@pytest.mark.extended
@pytest.mark.parametrize("kind", OF_A_PARTITION)
def test_a_partition_stays_offline(tmp_path, kind, capsys):
    data = GENERATION.unpack("stopped", tmp_path)
    topic, write = OF_A_PARTITION[kind]
    directory = data / f"{topic}-0"
    path, form = write(directory)
    before = files_in(directory)
    told = GENERATION.expected("stopped")
    broker = BrokerAt(data, told["written_ms"])
    with broker, BlockingCluster(broker.bootstrap, timeout_s=TIMEOUT_S, deadline_s=0.2) as cluster:
        with pytest.raises(UnavailableError, match=f"{topic}-0"):
            start = told["topics"][topic]["partitions"][0]["start"]["all"]
            fetched_to_end(cluster, topic, 0, start, ISOLATIONS["all"])
        until(lambda: any(str(path) in line for line in broker.faults.lines), "that the file is named")
    (line,) = [line for line in broker.faults.lines if str(path) in line]
    assert line.startswith(f"{topic}-0 cannot be opened and stays offline")
    assert f"{path}: {form}; {WHAT_TO_DO}" in line
    with pytest.raises(SystemExit):
        repair(data, yes=True)
    with pytest.raises(SystemExit):
        verify(data, as_json=False)
    assert f"{form}; no release has written this form" in capsys.readouterr().out
    inspect(path, records=False, as_json=True)
    assert form in json.loads(capsys.readouterr().out)["problem"]
    assert files_in(directory) == before


def test_spark_does_not_read_where_such_a_log_begins(tmp_path):
    data = GENERATION.unpack("stopped", tmp_path)
    path, form = start_without_crc("log-start-offset")(data / "trimmed-0")
    with pytest.raises(UnknownFormatError, match=f"{path}: {form};"):
        rows({"path": str(data), "subscribe": "trimmed", "startingOffsets": "earliest"}, "value")
