"""`partition.metadata`: the topic that a partition's directory belongs to."""

import errno
import uuid

import pytest

from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.files.partition_metadata import (
    METADATA_FILE,
    decode_partition_metadata,
    encode_partition_metadata,
    read_partition_metadata,
    topic_id_if_known,
    write_partition_metadata,
)
from stablelog.testing.sim_disk import SimDisk
from tests.log.timeline import DIRECTORY

PATH = DIRECTORY / METADATA_FILE
TOPIC_ID = uuid.UUID("f8dd2e41-9ca5-4dcc-a0c1-0f6ab9e2d3fb")


@pytest.fixture
def disk():
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    return disk


def test_the_file_is_kafkas():
    """As `kafka-storage.sh` and the broker of Apache Kafka write it: URL-safe base64 without padding."""
    assert encode_partition_metadata(uuid.UUID(int=0)) == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA"
    assert (
        encode_partition_metadata(uuid.UUID(int=2**128 - 1))
        == b"version: 0\ntopic_id: _____________________w"
    )


def test_a_topic_id_is_read_as_it_was_written(disk):
    assert read_partition_metadata(disk, DIRECTORY) is None
    write_partition_metadata(disk, DIRECTORY, TOPIC_ID)
    assert read_partition_metadata(disk, DIRECTORY) == TOPIC_ID
    assert topic_id_if_known(disk, DIRECTORY) == TOPIC_ID


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version: 0\n",
        b"topic_id: AAAAAAAAAAAAAAAAAAAAAA",
        b"version: x\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        b"version: 0\ntopic_id: AAAA",
        b"\xff\xfe",
        b"version 0\ntopic_id AAAA",
    ],
)
def test_another_content_is_refused_by_its_path(disk, content):
    with pytest.raises(DamageError, match=rf"^{PATH} contains no valid topic id: .*\. Restore the file$"):
        decode_partition_metadata(content, PATH)
    disk.write_atomic(PATH, content)
    assert topic_id_if_known(disk, DIRECTORY) is None


def test_a_later_version_is_refused_by_its_path(disk):
    content = encode_partition_metadata(TOPIC_ID).replace(b"0", b"1", 1)
    with pytest.raises(UnknownFormatError, match=rf"^{PATH}: the partition's metadata of version 1"):
        decode_partition_metadata(content, PATH)
    disk.write_atomic(PATH, content)
    assert topic_id_if_known(disk, DIRECTORY) is None


def test_a_file_that_cannot_be_read_leaves_the_id_unknown_where_that_is_enough(disk):
    write_partition_metadata(disk, DIRECTORY, TOPIC_ID)
    disk.fault = lambda _called, _path: errno.EIO
    assert topic_id_if_known(disk, DIRECTORY) is None
