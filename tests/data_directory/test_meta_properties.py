"""`meta.properties`: which cluster and which node a directory belongs to."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.data_directory.catalog import Catalog
from stablelog.data_directory.meta_properties import (
    META_FILE,
    Meta,
    decode_meta,
    encode_meta,
    node_id_in,
    node_id_of,
    parse_natural,
    read_meta,
)
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.testing.sim_disk import SimDisk
from tests.scale import examples

DATA = Path("/data")
WHOLE = b"version=1\ncluster.id=abc\nnode.id=5\n"


def disk_with(content=None):
    disk = SimDisk()
    disk.make_dir(DATA)
    if content is not None:
        disk.write_atomic(DATA / META_FILE, content)
    return disk


def read(content, listed=None):
    catalog = None if listed is None else Catalog(listed, 1, 1, [])
    return read_meta(disk_with(content), DATA, catalog)


def test_a_file_that_was_written_is_read_without_a_fault():
    content = encode_meta("abc", 5, ("stablelog.acls=acls.json",))
    assert content == WHOLE + b"stablelog.acls=acls.json\n"
    assert read(content) == Meta("abc", 5, None)
    assert read(content, listed="abc") == Meta("abc", 5, None)


def test_comments_spaces_and_lines_without_an_equals_sign_are_passed_over():
    assert decode_meta(b"#Mon Jan\n version = 1 \nnonsense\na=b=c\n\xff=x\n") == {
        "version": "1",
        "a": "b=c",
        "\N{REPLACEMENT CHARACTER}": "x",
    }


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "is gone"),
        (b"", "does not name the cluster"),
        (b"version=1\ncluster.id=\nnode.id=5\n", "does not name the cluster"),
        (b"version=1\ncluster.id=abc\n", "does not name the node"),
        (b"cluster.id=abc\nnode.id=5\n", "does not say its version"),
        (b"version=x\ncluster.id=abc\nnode.id=5\n", "says version=x"),
        (b"version=0\ncluster.id=abc\nnode.id=5\n", "says version=0"),
        (b"version=9999\ncluster.id=abc\nnode.id=5\n", "says version=9999"),
    ],
)
def test_a_defect_after_which_the_broker_writes_the_file_again_is_told(content, fault):
    assert read(content).fault == fault


def test_a_directory_of_kafka_with_zookeeper_has_no_defect():
    assert read(b"version=0\ncluster.id=abc\nbroker.id=5\n") == Meta("abc", 5, None)


def test_another_cluster_than_the_list_of_topics_names_is_refused_with_both():
    with pytest.raises(
        DamageError,
        match=r"^/data/meta\.properties says cluster\.id=abc, but cluster\.json says xyz.*Restore the file that is wrong",
    ):
        read(WHOLE, listed="xyz")


@pytest.mark.parametrize("listed", ["", None])
def test_a_list_of_topics_without_a_cluster_contradicts_nothing(listed):
    assert read(WHOLE, listed=listed).cluster_id == "abc"


@pytest.mark.parametrize("key", [b"node.id", b"broker.id"])
def test_a_node_id_that_is_no_number_is_refused_with_what_the_file_says(key):
    content = b"version=1\ncluster.id=abc\n" + key + b"=-5\n"
    with pytest.raises(DamageError, match=r"says node\.id=-5, which is not a number\. Restore the file"):
        read(content)


def test_a_file_of_a_later_release_is_refused_by_path_and_version():
    with pytest.raises(
        UnknownFormatError, match=r"^/data/meta\.properties: the directory's properties of version 2; "
    ):
        read(b"version=2\n")


@pytest.mark.parametrize(
    ("content", "node_id"),
    [
        (WHOLE, 5),
        (b"broker.id=7\n", 7),
        (b"node.id=5\nbroker.id=7\n", 5),
        (b"", None),
        (None, None),
        (b"node.id=x\n", None),
    ],
)
def test_the_node_is_found_without_the_rest_of_the_file(content, node_id):
    assert node_id_of(disk_with(content), DATA) == node_id
    if content is not None:
        assert node_id_in(decode_meta(content)) == node_id


@settings(max_examples=examples(25))
@given(st.integers(0, 2**31 - 1))
def test_a_number_is_read(number):
    assert parse_natural(str(number)) == number


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1.0", "x", "\u0663", "²", "12345678901"])
def test_a_text_that_is_no_number_of_at_most_ten_digits_is_none(text):
    assert parse_natural(text) is None
