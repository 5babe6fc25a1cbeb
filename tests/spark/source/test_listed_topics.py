"""The order of a topic is that of the list of topics, also before the topic has a commit."""

import uuid

import pytest

from stablelog.data_directory.catalog import CATALOG_FILE, ListedTopic, encode_catalog
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.spark.source.listed_topics import ListedTopics

COMMIT_INDEX = f"{0:020d}.commitindex"


def write_list(data, **orders):
    topics = [
        ListedTopic(name, uuid.uuid4(), 1, {} if order is None else {"stablelog.order": order})
        for name, order in orders.items()
    ]
    beside = data / "list.tmp"
    beside.write_bytes(encode_catalog("cluster", 0, 0, topics))
    beside.rename(data / CATALOG_FILE)


@pytest.fixture
def partitions(tmp_path):
    """Makes the directories of partitions, each with the files that are named."""

    def made(**files):
        for topic, names in files.items():
            (tmp_path / f"{topic}-0").mkdir()
            for name in names:
                (tmp_path / f"{topic}-0" / name).touch()
        return {topic: tmp_path / f"{topic}-0" for topic in files}

    return made


def test_the_list_of_topics_decides(tmp_path, partitions):
    at = partitions(plain=[], ordered=[], odd=[COMMIT_INDEX])
    write_list(tmp_path, plain=None, ordered="commit", odd="offset")
    topics = ListedTopics()
    assert {topic for topic, path in at.items() if topics.is_commit_ordered(path)} == {"ordered"}


def test_without_a_list_the_files_of_a_commit_index_decide(tmp_path, partitions):
    at = partitions(plain=[], ordered=[COMMIT_INDEX])
    topics = ListedTopics()
    assert {topic for topic, path in at.items() if topics.is_commit_ordered(path)} == {"ordered"}
    write_list(tmp_path, other="commit")
    assert {topic for topic, path in at.items() if topics.is_commit_ordered(path)} == {"ordered"}


def test_a_list_that_was_replaced_is_read_again(tmp_path, partitions):
    at, topics = partitions(t=[]), ListedTopics()
    write_list(tmp_path, t=None)
    assert not topics.is_commit_ordered(at["t"])
    write_list(tmp_path, t="commit")
    assert topics.is_commit_ordered(at["t"])


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        (b"{", DamageError, "is not a list of topics"),
        (b'{"version":99}', UnknownFormatError, "of version 99"),
    ],
)
def test_a_list_that_cannot_be_understood_is_refused_by_name(tmp_path, partitions, content, error, said):
    at = partitions(t=[])
    (tmp_path / CATALOG_FILE).write_bytes(content)
    with pytest.raises(error, match=f"{tmp_path / CATALOG_FILE}.*{said}"):
        ListedTopics().is_commit_ordered(at["t"])


def test_a_list_that_cannot_be_read_leaves_it_to_the_files(tmp_path, partitions):
    at = partitions(plain=[], ordered=[COMMIT_INDEX])
    (tmp_path / CATALOG_FILE).mkdir()
    topics = ListedTopics()
    assert {topic for topic, path in at.items() if topics.is_commit_ordered(path)} == {"ordered"}
