"""The object of indexes: what is written is read, every damaged byte is refused, and so are the indexes of another segment."""

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as some

from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.indexes.summary import Summary
from stablelog.tier.index_object import (
    FOOTER,
    VERSION,
    CommitFiles,
    IndexKind,
    directory_crc,
    encode_indexes,
    index_range,
    indexes_of,
    proven_indexes,
)

FILES = {IndexKind.OFFSETS: b"offsets", IndexKind.TIMES: b"", IndexKind.LEADER_EPOCHS: b"0\n0\n"}


def test_the_object_of_indexes_is_read_as_it_was_written_and_damage_is_refused():
    content = encode_indexes(FILES)
    assert {kind: bytes(file) for kind, file in indexes_of(content, "x").items()} == FILES
    assert indexes_of(b"", "x") == {}
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 0x40
        with pytest.raises((DamageError, UnknownFormatError), match=r"^x"):
            indexes_of(bytes(damaged), "x")
    for size in range(1, len(content)):
        with pytest.raises((DamageError, UnknownFormatError)):
            indexes_of(content[:size], "x")


@given(some.dictionaries(some.sampled_from(IndexKind), some.binary(max_size=20), min_size=1))
def test_any_files_are_read_by_their_kind(files):
    assert {kind: bytes(file) for kind, file in indexes_of(encode_indexes(files), "x").items()} == files


def test_an_object_of_a_later_release_is_refused_by_its_key():
    content = encode_indexes(FILES)[: -FOOTER.size]
    with pytest.raises(UnknownFormatError, match=rf"^x: an object of indexes of version {VERSION + 1}"):
        indexes_of(content + FOOTER.pack(VERSION + 1, len(FILES), 0), "x")


def test_an_object_that_is_too_short_is_refused_with_its_size():
    with pytest.raises(
        DamageError,
        match=r"^the object x is damaged: it has 3 bytes, but an object of indexes has at least 8",
    ):
        indexes_of(b"abc", "x")


@pytest.mark.parametrize("count", [2, 4, 1000])
def test_a_footer_with_another_count_of_files_is_refused(count):
    content = encode_indexes(FILES)
    with pytest.raises(
        DamageError, match=r"^x: the directory at the end of the object of indexes is damaged"
    ):
        indexes_of(content[: -FOOTER.size] + FOOTER.pack(VERSION, count, 0), "x")


INDEXES = {IndexKind.OFFSETS: b"offset", IndexKind.TIMES: b"times", IndexKind.TRANSACTIONS: b"aborts"}
COMMIT_INDEXES = {IndexKind.COMMIT_ENTRIES: b"entries", IndexKind.COMMIT_EXTENTS: b"extent"}


def summary(files):
    sizes = {f"{name}_size": len(files[kind]) for name, kind in NAMES}
    crcs = {f"{name}_crc": crc32c(files[kind]) for name, kind in NAMES}
    return Summary(0, 10, **sizes, **crcs)


NAMES = (("index", IndexKind.OFFSETS), ("timeindex", IndexKind.TIMES), ("txnindex", IndexKind.TRANSACTIONS))


def commit(files):
    entries, extents = (files[kind] for kind in (IndexKind.COMMIT_ENTRIES, IndexKind.COMMIT_EXTENTS))
    return CommitFiles(0, -1, -1, len(entries), crc32c(entries), len(extents), crc32c(extents))


def test_the_manifest_tells_the_range_of_each_index_whose_size_it_has():
    files = INDEXES | COMMIT_INDEXES
    content = encode_indexes({**files, IndexKind.PRODUCERS: b"producers"})
    for kind, file in files.items():
        found = index_range(summary(files), commit(files), kind)
        assert found == (content.index(file), len(file), crc32c(file))


def test_the_indexes_that_the_manifest_describes_are_returned_with_the_other_files():
    files = {**INDEXES, **COMMIT_INDEXES, IndexKind.PRODUCERS: b"producers"}
    found = proven_indexes(
        encode_indexes(files), "x", summary(files), commit(files), directory_crc(encode_indexes(files))
    )
    assert {kind: bytes(file) for kind, file in found.items()} == files


@pytest.mark.parametrize("kind", [*INDEXES, *COMMIT_INDEXES])
def test_an_index_of_another_segment_is_refused_by_its_kind(kind):
    described = INDEXES | COMMIT_INDEXES
    other = {**described, kind: described[kind][::-1]}
    with pytest.raises(
        DamageError,
        match=f"^the object x is damaged: its {kind.name} index does not have the CRC that the manifest",
    ):
        proven_indexes(encode_indexes(other), "x", summary(described), commit(described), None)


def test_another_file_whose_crc_only_the_directory_has_is_refused():
    mine, other = ({**INDEXES, IndexKind.SNAPSHOT: content} for content in (b"mine", b"your"))
    with pytest.raises(
        DamageError, match=r"^the object x is not the object of indexes that the manifest describes"
    ):
        proven_indexes(encode_indexes(other), "x", summary(mine), None, directory_crc(encode_indexes(mine)))


def test_without_a_summary_the_files_count_as_they_are():
    found = proven_indexes(encode_indexes(INDEXES), "x", None, None, None)
    assert {kind: bytes(file) for kind, file in found.items()} == INDEXES


def test_an_object_that_does_not_exist_is_refused():
    with pytest.raises(DamageError, match=r"^x: the object is empty"):
        proven_indexes(b"", "x", summary(INDEXES), None, None)
