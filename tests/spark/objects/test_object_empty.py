"""A store without objects: a read with brokers gets everything from them, and a read without brokers is told what to do."""

import logging
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from stablelog.errors import NothingStoredError, UsageError
from stablelog.spark import count
from stablelog.spark.objects.opening import opened_store
from stablelog.spark.option_table import BATCH
from stablelog.spark.options import read_options
from stablelog.spark.source.ranges import Range
from stablelog.spark.source.tiered_log import TieredLog
from tests.spark.objects.stored import in_s3
from tests.spark.reading import rows, tasks

pytestmark = pytest.mark.xdist_group("objects")
TOLD = "no segment was copied to it yet, or the URL is wrong.* or set kafka.bootstrap.servers too"


@pytest.fixture(params=["no directory", "empty directory", "directories only", "S3"])
def empty(request, stored, tmp_path):
    """The options of a read of a store without objects, and a function that copies the objects of the broker to it."""
    opened_store.cache_clear()
    directory = tmp_path / "store"
    if request.param == "S3":
        with in_s3(stored.url) as (server, options):
            # The bucket has objects under another prefix.
            content = dict(server.objects)
            server.objects.clear()
            server.objects["other/1"] = b""
            yield options, lambda: server.objects.update(content)
        return
    if request.param != "no directory":
        directory.mkdir()
    if request.param == "directories only":
        (directory / "kafka-tiered-storage").mkdir()  # LocalTieredStorage makes it when a broker starts.
    source = Path(urlsplit(stored.url).path)
    yield {"path": directory.as_uri()}, lambda: shutil.copytree(source, directory, dirs_exist_ok=True)


def with_brokers(stored, options, topic):
    return {**options, "subscribe": topic, "kafka.bootstrap.servers": stored.broker.bootstrap}


@pytest.mark.extended
@pytest.mark.parametrize("topic", ["plain", "ordered"])
def test_the_brokers_serve_everything_and_a_warning_names_the_store(stored, empty, topic, caplog):
    given = with_brokers(stored, empty[0], topic)
    consumed = stored.consumed(topic)
    with caplog.at_level(logging.WARNING):
        assert rows(given, "offset", "value") == consumed
        assert count(given) == len(consumed)
    assert stored.manifest(topic).end_offset > 0, "the disk of the broker lacks what the store would have"
    told = [line for line in caplog.messages if "the brokers serve all records" in line]
    assert told
    assert all(given["path"].removeprefix("file://") in line for line in told)
    assert not [line for line in told if "kafka.bootstrap.servers" in line]


def test_a_read_whose_store_gets_its_first_objects_reads_them(stored, empty):
    options, fill = empty
    log = TieredLog(read_options(with_brokers(stored, options, "plain"), BATCH))
    try:
        ((place, topic_id),) = log.partitions().items()
        wanted = Range(place, 0, stored.manifest("plain").end_offset)

        def first_span():
            return next(iter(log.spans([wanted], {"plain": topic_id}))).piece()

        assert first_span().stored is None
        fill()
        assert first_span().stored is not None
    finally:
        log.end_read()
        log.close()


def test_without_brokers_the_message_says_what_to_do_and_its_advice_works(stored, empty):
    options, fill = empty
    with pytest.raises(NothingStoredError, match=TOLD):
        tasks({**options, "subscribe": "plain"})
    if options["path"].startswith("file:"):
        directory = Path(urlsplit(options["path"]).path)
        assert not [path for path in directory.rglob("*") if path.is_file()], "a read writes nothing"
    assert len(rows(with_brokers(stored, options, "plain"), "offset")) == len(stored.consumed("plain"))
    fill()
    assert rows({**options, "subscribe": "plain"}, "offset")


def test_a_path_that_is_a_file_is_refused_with_brokers_too(stored, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(UsageError, match="is no directory") as failed:
        tasks(with_brokers(stored, {"path": file.as_uri()}, "plain"))
    assert type(failed.value) is UsageError


def test_a_directory_of_something_else_is_refused_with_brokers_too(stored):
    with pytest.raises(UsageError, match="holds no tiered storage of stablelog") as failed:
        tasks(with_brokers(stored, {"path": stored.broker.data.as_uri()}, "plain"))
    assert type(failed.value) is UsageError
