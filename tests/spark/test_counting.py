"""A count is the number of rows that a read has: by summaries, by headers and by fetch, whatever compaction has removed."""

import contextlib
import random
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

import stablelog
from stablelog.log.partition import Isolation
from stablelog.spark.columns.builder import ColumnBuilder
from stablelog.spark.columns.decoder import Decoder
from stablelog.spark.option_table import BATCH
from stablelog.spark.options import read_options
from stablelog.spark.record_count import count
from stablelog.spark.segments.partition_files import PartitionFiles
from stablelog.spark.source.counting import files_count
from stablelog.spark.source.extent_reader import read
from tests.clients.drivers import TIMEOUT_S, unique
from tests.log.compaction.test_aborted_data import cleaned
from tests.log.compaction.test_policy import HOUR_MS, KeyedLog, compact_somehow, random_words
from tests.log.timeline import DIRECTORY, Log
from tests.spark.reading import make, rows, settled
from tests.waiting import until

ISOLATIONS = ("read_committed", "read_uncommitted")


def files_of(log: Log, where: Path, *, lost: tuple[str, ...] = ()) -> PartitionFiles:
    """The partition's files, copied from the simulated disk to a real one."""
    directory = where / "t-0"
    directory.mkdir(parents=True)
    for name in log.disk.list_dir(DIRECTORY):
        if not name.endswith(lost):
            (directory / name).write_bytes(log.disk.read_bytes(DIRECTORY / name))
    return PartitionFiles(directory, "t", 0)


def offsets_read(files: PartitionFiles, start: int, end: int, isolation: str) -> list[int]:
    """The offsets of the rows of a read."""
    if start == end:
        return []
    options = read_options({"path": str(files.directory.parent), "isolation": isolation}, BATCH)
    builder = ColumnBuilder(["offset"])
    decoder = Decoder("t", 0, builder, isolation=isolation)
    batches = [*read(options, None, files.span(start, end).piece(), decoder), *builder.take_batches()]
    return [offset for batch in batches for offset in batch.column(0).to_pylist()]


def counts_are_what_is_read(log: Log, files: PartitionFiles, chance: random.Random) -> None:
    first = log.partition.start_offset
    for isolation, level in zip(
        ISOLATIONS, (Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED), strict=True
    ):
        end = log.partition.visible_end(level)
        seen = offsets_read(files, first, end, isolation)
        ranges = [(first, end)] + [sorted(chance.choices(range(first, end + 1), k=2)) for _ in range(30)]
        for low, high in ranges:
            found = files_count(files, low, high, committed=isolation == "read_committed")
            assert found == sum(low <= offset < high for offset in seen), (isolation, low, high)


def test_records_that_compaction_took_from_a_segment_before_the_marker_do_not_count(tmp_path):
    log = KeyedLog().write("P1:a=1,b=1 a=2 b=2")
    log.write("P1:c=1 P1c", roll=False)
    log.compact()  # the first segment only: its records of P1 go
    log.write("d=1")
    assert log.words() == "2:a=2 3:b=2 4:c=1 5:P1c 6:d=1"
    files = files_of(log, tmp_path)
    assert files_count(files, 0, 7, committed=True) == 4
    counts_are_what_is_read(log, files, random.Random(0))


def test_records_that_retention_took_in_front_of_the_first_segment_do_not_count(tmp_path):
    log = KeyedLog().write("P1:a=1").write("P1:b=1 P1c P2:c=1 P2a").write("d=1")
    log.partition.deletion.delete_records(1)
    files = files_of(log, tmp_path)
    assert [segment.base_offset for segment in files.segments] == [1, 5, 6]
    assert files_count(files, 1, 6, committed=True) == 2
    counts_are_what_is_read(log, files, random.Random(0))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(25))
def test_any_range_of_any_compacted_history_counts_as_it_is_read(seed, tmp_path):
    chance = random.Random(seed)
    log = KeyedLog(segment_bytes=400, index_interval_bytes=100, snapshot_bytes=600)
    for step in range(8):
        log.write(random_words(chance, 15), roll=chance.random() < 0.3)
        log.now_ms += HOUR_MS // 2
        if seed % 5:  # some are never compacted
            compact_somehow(log, chance)
        if chance.random() < 0.3:
            log.reopen(clean=chance.random() < 0.5)
        if chance.random() < 0.4:
            log.partition.deletion.delete_records(
                chance.randint(log.partition.start_offset, log.stable_offset)
            )
        lost = chance.choice([(), (), (".index",), (".summary",)])
        counts_are_what_is_read(log, files_of(log, tmp_path / str(step), lost=lost), chance)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(15))
def test_any_range_of_a_log_without_aborted_data_counts_as_it_is_read(seed, tmp_path):
    chance = random.Random(seed)
    log = Log(segment_bytes=600, index_interval_bytes=100, snapshot_bytes=600, drops_aborted=seed > 0)
    words = ["-", "P1", "P1", "P2", "P2", "P3", "P1c", "P1a", "P1a", "P2c", "P2a", "P2a", "P3c", "P3a"]
    for step in range(4):
        log.write(" ".join(chance.choices(words, k=30)))
        if cleaned(log) and seed % 3 == 0:
            log.reopen(clean=chance.random() < 0.5)
        lost = chance.choice([(), (), (".index",), (".summary",)])
        counts_are_what_is_read(log, files_of(log, tmp_path / str(step), lost=lost), chance)


@pytest.fixture(scope="module")
def compacted(module_path):
    """A broker with a topic of which all was compacted but what stands behind the markers of some transactions."""
    with stablelog.serve(module_path, log_cleaner_backoff_ms=20) as broker:
        topic, bootstrap = unique("counted"), broker.bootstrap
        given = {"cleanup.policy": "compact", "segment.bytes": "4096", "min.cleanable.dirty.ratio": "0.01"}
        make(bootstrap, topic, 1, **given)
        committing, aborting, plain = (
            Producer({"bootstrap.servers": bootstrap, "log_level": 0, **more})
            for more in ({"transactional.id": unique("txn")}, {"transactional.id": unique("txn")}, {})
        )
        write(committing, topic, 30)
        write(aborting, topic, 30)
        write(plain, topic, 60)
        write(committing, topic, 3)
        write(aborting, topic, 3)
        committing.commit_transaction(TIMEOUT_S)
        aborting.abort_transaction(TIMEOUT_S)
        settled(bootstrap, topic)
        last_base = int(max((module_path / f"{topic}-0").glob("*.log")).stem)
        assert last_base > 60
        checkpoint = module_path / "cleaner-offset-checkpoint"
        until(
            lambda: checkpoint.exists() and f"{topic} 0 {last_base}\n" in checkpoint.read_text(),
            "the topic was not compacted",
        )
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        policy = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[policy])
        admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
        write(plain, topic, 60)
        yield broker, topic, last_base


def write(producer, topic, count):
    """Write values of ten keys, one in a batch; of a producer with an id in its transaction."""
    with contextlib.suppress(KafkaException):  # it has no id, or has begun one
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
    for number in range(count):
        producer.produce(topic, b"%d" % number * 20, b"key-%d" % (number % 10), partition=0)
        producer.flush(TIMEOUT_S)


@pytest.mark.extended
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_compacted_topic_counts_the_same_by_files_and_by_fetch_as_it_is_read(compacted, isolation):
    broker, topic, last_base = compacted
    given = {"bootstrap": broker.bootstrap, "subscribe": topic, "isolation": isolation}
    bases = [int(path.stem) for path in (broker.data / f"{topic}-0").glob("*.log")]
    assert max(bases) > last_base, "the markers' segment is sealed"
    for scan in ("files", "fetch"):
        asked = {**given, "scan": scan}
        assert count(asked) == len(rows(asked, "offset")) == count({**asked, "scan": "fetch"}), scan
