import re

import pytest

from stablelog.errors import UsageError
from stablelog.spark.kafka_settings import REFUSED, WITHOUT_EFFECT
from stablelog.spark.offsets import Bound
from stablelog.spark.option_table import BATCH, OPTIONS, STREAM
from stablelog.spark.options import read_options, write_options
from tests import documented
from tests.reference_tables.spark import reads_and_writes

DOCS = documented.page("spark-options.md")
READ = {"bootstrap": "h:1", "subscribe": "x"}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_row_of_an_option_says_what_the_table_says(name):
    option = OPTIONS[name]
    row = f"| `{name}` | {option.otherwise or option.default} | {option.kind.valid} | {reads_and_writes(option.where)} | {option.meaning} |"
    assert row.replace("|  |", "| |") in DOCS


def test_no_row_is_of_an_option_that_is_gone():
    section = documented.section("Options of the source and the sink")
    rows = re.findall(r"^\| (?:`([^`]+)` \| .*|.* \| (`[^|]+`)) \|$", section, re.M)
    names = [
        name for option, options in rows for name in (option, *re.findall(r"`([^`]+)`", options)) if name
    ]
    assert names == [*OPTIONS, *WITHOUT_EFFECT, *REFUSED]


def test_spark_lowers_the_case_of_names():
    options = read_options({"KAFKA.bootstrap.servers": "h:1", "subscribe": "a, b", "includeheaders": "true"})
    assert (options.bootstrap, options.topics, options.include_headers) == ("h:1", ("a", "b"), True)
    assert options.isolation == "read_committed"


def test_a_batch_begins_at_the_beginning_and_a_stream_at_the_end():
    assert read_options(READ, BATCH).starting == Bound("earliest")
    assert read_options(READ, STREAM).starting == Bound("latest")


def test_two_names_of_one_option_may_agree():
    assert read_options({**READ, "kafka.bootstrap.servers": "h:1"}).bootstrap == "h:1"


def test_with_brokers_a_directory_is_the_mount_and_a_url_the_path():
    options = read_options({**READ, "mount": "/data", "path": "s3://bucket"})
    assert (options.mount, options.path, options.store_url) == ("/data", "s3://bucket", "s3://bucket")
    assert read_options({"path": "/data"}).mount is None


def test_options_that_change_nothing_here_are_taken():
    assert read_options({**READ, "groupidprefix": "mine"}) == read_options(READ)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"startingOffsets": '{"x": {"0": 3, "1": -2}}'}, Bound("offsets", {("x", 0): 3, ("x", 1): -2})),
        ({"startingOffsets": '{"#topics": {"x": "ab"}, "x": {"0": 3}}'}, Bound("offsets", {("x", 0): 3})),
        ({"startingTimestamp": "17"}, Bound("timestamp", timestamp_ms=17)),
        ({"startingOffsetsByTimestamp": '{"x": {"0": 17}}'}, Bound("timestamps", {("x", 0): 17})),
        ({"cut": "true", "startingCut": "17"}, Bound("cut", commit_sequence=17)),
    ],
)
def test_where_to_begin_is_said_in_five_ways(given, found):
    assert read_options({**READ, **given}).starting == found


@pytest.mark.parametrize(
    ("text", "size"), [("128m", 128 << 20), ("1G", 1 << 30), ("64kb", 64 << 10), ("1000", 1000)]
)
def test_sizes_have_units(text, size):
    assert read_options({**READ, "targetBytesPerTask": text}).target_size == size


@pytest.mark.parametrize(
    ("text", "time_ms"), [("10s", 10_000), ("15m", 900_000), ("500ms", 500), ("1h", 3_600_000)]
)
def test_durations_have_units(text, time_ms):
    given = {**READ, "minOffsetsPerTrigger": "5", "maxTriggerDelay": text}
    assert read_options(given, STREAM).trigger_delay_max_ms == time_ms


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subscrib": "x"}, "did you mean subscribe"),
        ({"subscribe": "x"}, "kafka.bootstrap.servers"),
        ({"bootstrap": "h:1"}, "option subscribe"),
        ({**READ, "kafka.bootstrap.servers": "h:2"}, "bootstrap and kafka.bootstrap.servers are the same"),
        ({**READ, "isolation": "dirty"}, "read_committed or"),
        ({**READ, "includeHeaders": "1"}, "true or false"),
        ({**READ, "assign": '{"x": [0]}'}, "subscribe and assign exclude each other"),
        ({**READ, "subscribePattern": "x.*"}, "subscribe and subscribePattern exclude each other"),
        ({"bootstrap": "h:1", "subscribePattern": "("}, r"subscribePattern='\(' is not valid"),
        ({"bootstrap": "h:1", "assign": '{"x": [0]}', "partitions": "0"}, "assign and partitions both"),
        (
            {**READ, "startingOffsets": "earliest", "startingTimestamp": "1"},
            "startingOffsets and startingTimestamp",
        ),
        (
            {**READ, "startingCut": "3"},
            "startingCut applies only to a read between commits: give cut=true, too",
        ),
        ({**READ, "cut": "true", "startingCut": "-1"}, "startingCut='-1' is not valid: a commit sequence"),
        (
            {**READ, "cut": "true", "startingCut": "1", "startingTimestamp": "1"},
            "and startingCut exclude each other",
        ),
        ({**READ, "cut": "true", "isolation": "read_uncommitted"}, "cut=true and isolation=read_uncommitted"),
        (
            {**READ, "cut": "true", "scan": "files"},
            "cut=true is possible only by fetching from the broker, not from files",
        ),
        ({"path": "/data", "cut": "true"}, "cut=true requires a broker"),
        (
            {**READ, "cut": "true", "startingOffsetsByTimestamp": '{"x": {"0": 17}}'},
            "a read at cuts has one time for all: give startingTimestamp",
        ),
        ({**READ, "includeCommits": "true", "isolation": "read_uncommitted"}, "includeCommits and isolation"),
        ({"bootstrap": "h:1", "assign": ""}, "assign names no topic"),
        ({"bootstrap": "h:1", "subscribePattern": " "}, "subscribePattern names no topic"),
        ({"path": "file:///store", "assign": ""}, "assign names no topic"),
        ({**READ, "startingOffsets": "sooner"}, "startingOffsets='sooner' is not valid: earliest, latest"),
        ({**READ, "startingOffsets": '{"x": {"0": -3}}'}, "-3 is less than -2"),
        ({**READ, "startingOffsets": '{"x": {"0": 2.5}}'}, r"2\.5 is not a whole number"),
        ({**READ, "startingOffsets": '{"x": {"0": true}}'}, "True is not a whole number"),
        ({**READ, "startingOffsets": f'{{"x": {{"0": {2**63}}}}}'}, f"is greater than {2**63 - 1}"),
        ({**READ, "startingOffsets": '{"#topics": {"x": "ab"}}'}, "no partition"),
        (
            {**READ, "startingOffsets": '{"x": {"0": 3, "00": 4}}'},
            "the partition '00' is not written as a plain number: write 0",
        ),
        (
            {**READ, "startingOffsets": '{"x": {" 0": 3}}'},
            "the partition ' 0' is not written as a plain number: write 0",
        ),
        ({**READ, "startingOffsets": '{"x": {"0": 3, "0": 4}}'}, "the key '0' is given twice"),
        ({**READ, "startingOffsets": '{"x": {"0": 3}, "x": {"1": 4}}'}, "the key 'x' is given twice"),
        ({**READ, "startingTimestamp": str(2**63)}, f"is greater than {2**63 - 1}"),
        ({**READ, "endingOffsets": "earliest"}, "is empty"),
        ({**READ, "startingOffsetsByTimestampStrategy": "latest"}, "applies to a start at a time"),
        ({**READ, "endingOffsets": '{"x": {"0": -2}}'}, "is empty"),
        ({**READ, "minPartitions": "0"}, "minPartitions='0' is not valid: 1 and more"),
        ({**READ, "targetBytesPerTask": "many"}, "targetBytesPerTask='many' is not valid: bytes"),
        ({**READ, "partitions": "3-1"}, "partitions='3-1' is not valid"),
        ({**READ, "scan": "telepathy"}, "auto or fetch or files"),
        ({"path": "data", "scan": "fetch"}, "requires a broker"),
        (
            {**READ, "path": "/data"},
            "path=/data is a directory .* give the directory as mount if it is the mounted",
        ),
        ({**READ, "mount": "data", "scan": "fetch"}, "does not read the files at mount"),
        ({**READ, "mount": "s3://bucket"}, "mount=s3://bucket is a URL, .* as path"),
        ({"mount": "/data"}, "the log to read is not named"),
        ({"path": "/data", "mount": "/data"}, "mount says where .* is mounted, and no broker is given"),
        ({**READ, "parallelism": "0"}, "parallelism='0' is not valid: 1 and more"),
        ({**READ, "topic": "x"}, "topic is an option of a write, not of a batch read or a stream's read"),
        ({**READ, "kafka.xyzxyzxyz": "1"}, "of Kafka's client settings it has kafka.bootstrap.servers"),
        ({}, "the log to read is not named: .*; a table .* is not possible, .*use CREATE TEMPORARY VIEW"),
        (
            {**READ, "option.subscribe": "x", "owner": "root"},
            "^a table .* is not possible, .*use CREATE TEMPORARY VIEW",
        ),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(given, message):
    with pytest.raises(UsageError, match=message):
        read_options(given)


def test_a_stream_has_options_of_its_own():
    given = {**READ, "maxOffsetsPerTrigger": "10"}
    assert read_options(given, STREAM).trigger_offsets_max == 10
    with pytest.raises(
        UsageError, match="maxOffsetsPerTrigger is an option of a stream's read, not of a batch"
    ):
        read_options(given, BATCH)
    with pytest.raises(UsageError, match="endingOffsets is an option of a batch read"):
        read_options({**READ, "endingOffsets": "latest"}, STREAM)
    with pytest.raises(UsageError, match="a stream requires a broker"):
        read_options({"path": "data"}, STREAM)
    with pytest.raises(UsageError, match="which is not given"):
        read_options({**READ, "maxTriggerDelay": "1m"}, STREAM)
    with pytest.raises(UsageError, match="minOffsetsPerTrigger=11 is more than maxOffsetsPerTrigger=10"):
        read_options({**given, "minOffsetsPerTrigger": "11"}, STREAM)


def test_a_write_has_options_of_its_own():
    options = write_options(
        {"bootstrap": "h:1", "topic": "x", "checkpointlocation": "c", "txnappid": "job", "txnversion": "7"}
    )
    assert (options.bootstrap, options.topic, options.app_id, options.version) == ("h:1", "x", "job", 7)
    assert (options.guarantee, options.codec, options.checkpoint) == ("exactly-once", "none", "c")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "address of the broker is missing: .*; a table .* is not possible"),
        ({"topic": "x"}, "give the option kafka.bootstrap.servers$"),
        ({"bootstrap": "h:1", "subscribe": "x"}, "subscribe is an option of a batch read or a stream's read"),
        (
            {"bootstrap": "h:1", "batchBytes": "4g"},
            "batchBytes='4g' is not valid: .*is greater than 104857600",
        ),
        ({"bootstrap": "h:1", "txnAppId": "job"}, "txnAppId and txnVersion belong together"),
        ({"bootstrap": "h:1", "txnAppId": "job", "txnVersion": "-1"}, "txnVersion='-1' is not valid"),
        ({"bootstrap": "h:1", "guarantee": "maybe"}, "exactly-once or at-least-once"),
        (
            {"bootstrap": "h:1", "guarantee": "at-least-once", "commitGroup": "g"},
            "commitGroup requires a joint commit",
        ),
        ({"bootstrap": "h:1", "sourceOffsets": '{"x": {"0": 1}}'}, "option commitGroup"),
        ({"bootstrap": "h:1", "compression": "zip"}, "none or gzip or snappy or lz4 or zstd"),
        (
            {"bootstrap": "h:1", "transactionTimeout": "soon"},
            "transactionTimeout='soon' is not valid: a duration",
        ),
        ({"bootstrap": "h:1", "transactionTimeout": "600h"}, "2160000000 is greater than 2147483647"),
    ],
)
def test_an_option_of_a_write_that_makes_no_sense_is_refused_by_name(given, message):
    with pytest.raises(UsageError, match=message):
        write_options(given)
