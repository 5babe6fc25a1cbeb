"""Every kind of file that a partition has can be shown."""

import pytest

from stablelog.commit_order.first_sequence import FirstSequence, encode_first_sequences
from stablelog.commit_order.index_format import ENTRY
from stablelog.env.local_disk import LocalDisk
from stablelog.errors import DamageError
from stablelog.log.files.names import (
    FIRST_SEQUENCE_FILE,
    RESTORED_FILE,
    SEGMENT_SUFFIXES,
    SINGLE_FILES,
    is_partition_file,
)
from stablelog.log.files.restored import Restored
from stablelog.ops.inspect import files_of, inspect_file
from stablelog.tier.local_state import LocalState
from stablelog.tier.manifest import Manifest, encode_manifest
from stablelog.tier.manifest_parts import divide_into_parts
from tests.golden.generation import generations
from tests.tier.test_manifest import MANIFEST, NOW_MS


@pytest.fixture(scope="module")
def ordered(module_path):
    """The directory of a partition in commit order, with the files of a remote tier."""
    directory = generations()[-1].unpack("stopped", module_path) / "ordered-0"
    state = LocalState(LocalDisk(), directory)
    state.write_manifest(encode_manifest(MANIFEST, NOW_MS))
    state.write_start(250)
    LocalDisk().write_atomic(
        directory / FIRST_SEQUENCE_FILE,
        encode_first_sequences([FirstSequence(100, 7), FirstSequence(200, 9)]),
    )
    LocalDisk().write_atomic(directory / RESTORED_FILE, Restored(((5, 9),), 0, -1, 1, 0).encode())
    return directory


@pytest.mark.extended
def test_all_files_of_a_partition_are_shown(ordered):
    disk = LocalDisk(read_only=True)
    names = {path.name for path in ordered.iterdir() if is_partition_file(path.name)}
    assert {path.name for path in files_of(disk, ordered)} == names
    shown = {name: inspect_file(disk, ordered / name, records=False) for name in names}
    assert {name: table.problem for name, table in shown.items() if table.problem} == {}
    suffixes = {name[name.index(".") :] for name in names if name[0].isdigit()}
    assert suffixes >= set(SEGMENT_SUFFIXES), "each kind is among them"
    assert names >= set(SINGLE_FILES)


@pytest.mark.extended
def test_the_remote_segments_are_the_rows_of_a_manifest(ordered):
    table = inspect_file(LocalDisk(read_only=True), ordered / "remote-manifest", records=False)
    assert [row[:4] for row in table.rows] == [
        (0, 100, 1000, "COPY_FINISHED"),
        (100, 200, 1000, "COPY_FINISHED"),
        (200, 300, 1000, "COPY_FINISHED"),
    ]


def test_a_manifest_with_parts_is_shown_by_part(tmp_path):
    manifest, parts = divide_into_parts(MANIFEST, Manifest("c"), NOW_MS, part_count=1)
    state = LocalState(LocalDisk(), tmp_path)
    state.write_manifest(
        encode_manifest(manifest, NOW_MS), manifest.parts, {part.part_id: content for part, content in parts}
    )
    disk = LocalDisk(read_only=True)
    assert [row[0] for row in inspect_file(disk, tmp_path / "remote-manifest", records=False).rows] == [
        0,
        100,
        200,
    ]
    files = [path for path in files_of(disk, tmp_path) if path.name != "remote-manifest"]
    shown = [inspect_file(disk, path, records=False) for path in files]
    assert sorted(row[:4] for table in shown for row in table.rows) == [
        (0, 100, 1000, "COPY_FINISHED"),
        (100, 200, 1000, "COPY_FINISHED"),
    ]


def test_entries_of_the_commit_index_are_rows_with_the_names_of_their_fields(ordered):
    disk = LocalDisk(read_only=True)
    path = sorted(ordered.glob("*.commitindex"))[0]
    table = inspect_file(disk, path, records=False)
    assert table.columns[:3] == ("start", "record count", "latest ms")
    assert len(table.rows) == path.stat().st_size // ENTRY.size > 0
    extents = inspect_file(disk, path.with_suffix(".commitextents"), records=False)
    assert len(extents.rows) == table.rows[-1][6] + table.rows[-1][7], "those of the last entry are the last"


def test_a_torn_row_is_named_behind_the_whole_ones(ordered, tmp_path):
    path = sorted(ordered.glob("*.commitindex"))[0]
    torn = tmp_path / path.name
    torn.write_bytes(path.read_bytes()[:-1])
    table = inspect_file(LocalDisk(), torn, records=False)
    assert len(table.rows) == path.stat().st_size // ENTRY.size - 1
    assert (
        table.problem
        == f"the entry at byte {len(table.rows) * ENTRY.size} is incomplete: it has {ENTRY.size - 1} of {ENTRY.size} bytes"
    )


@pytest.mark.parametrize("name", ["x.commitindex", "cluster.json", f"{0:020d}.cut"])
def test_a_file_that_cannot_be_shown_is_refused_with_the_kinds_that_can(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(
        DamageError, match=r"is of no kind that can be shown. Name a partition's directory"
    ) as refused:
        inspect_file(LocalDisk(), tmp_path / name, records=False)
    for kind in (*SEGMENT_SUFFIXES, *SINGLE_FILES):
        assert kind in str(refused.value)


def test_a_damaged_start_is_a_problem_and_no_traceback(tmp_path):
    (tmp_path / "log-start-offset").write_text("x")
    table = inspect_file(LocalDisk(), tmp_path / "log-start-offset", records=False)
    assert "is damaged" in table.problem
