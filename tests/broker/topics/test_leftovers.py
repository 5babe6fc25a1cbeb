"""What a start removes of a data directory, and what it leaves alone, on the real disk."""

import logging

import pytest

from stablelog.batch.records import Record, encode_batch
from stablelog.env.local_disk import LocalDisk
from tests.broker.topics.files import create, topic_files

LOG = f"{0:020d}.log"
DELETED = f"t-0.{'ab' * 16}-delete"


@pytest.fixture
def data(tmp_path):
    """A data directory with a topic `t`, which has records."""
    directory = tmp_path / "data"
    directory.mkdir()
    files = started(directory)
    partition = create(files, "t")
    partition.append(encode_batch([Record(0, 0, None, b"value", ())]), now_ms=0)
    assert files.close()
    return directory


def started(directory):
    files = topic_files(LocalDisk(), directory)
    for topic in files.topics:
        files.open_partition(topic, 0)
    return files


def start(directory):
    """Start, remove what is to be removed, twice, and stop."""
    files = started(directory)
    files.leftovers.remove_deleted()
    files.leftovers.remove_deleted()
    assert files.close()


def content(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "files",
    [
        ["t-0/" + LOG],
        ["notes.txt"],
        [LOG + ".txt", "partition.metadata"],
        [LOG, "notes.txt"],
        ["²" * 20 + ".log"],
    ],
)
@pytest.mark.parametrize("name", ["t-backup-2026", "t-1", DELETED])
def test_a_directory_that_holds_anything_else_than_files_of_a_partition_stays(data, name, files, caplog):
    for file in files:
        (data / name / file).parent.mkdir(parents=True, exist_ok=True)
        (data / name / file).write_bytes(b"x" if file.endswith("txt") else b"")
    before = content(data / name)
    start(data)
    assert content(data / name) == before
    assert caplog.text.count(f"{data / name} is not removed") == 1


@pytest.mark.parametrize("name", ["archive-2025", DELETED])
@pytest.mark.parametrize("files", [["readme", "2025-01/file"], [LOG]])
def test_the_target_of_a_symbolic_link_stays(data, tmp_path, name, files, caplog):
    for file in files:
        (tmp_path / "elsewhere" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "elsewhere" / file).write_bytes(b"")
    (data / name).symlink_to(tmp_path / "elsewhere")
    start(data)
    assert (data / name).is_symlink()
    assert len(content(tmp_path / "elsewhere")) == len(files)
    assert f"{data / name} is not removed" in caplog.text


@pytest.mark.parametrize("name", [LOG, f"{7:020d}.cut", f"{7:020d}.cut.1", f"{0:020d}.log.deleted"])
def test_a_directory_that_holds_records_stays(data, name, caplog):
    (data / "new-0").mkdir()
    (data / "new-0" / name).write_bytes(b"x")
    start(data)
    assert (data / "new-0" / name).read_bytes() == b"x"
    assert f"{data / 'new-0'} is not removed" in caplog.text


def test_what_is_no_directory_stays_whatever_its_name(data):
    (data / "notes-delete").write_bytes(b"x")
    (data / DELETED).write_bytes(b"x")
    (data / "notes-1").write_bytes(b"x")
    (data / "link-2").symlink_to(data / "nowhere")
    (data / "my-delete").mkdir()
    (data / "empty-3").mkdir()
    start(data)
    assert {"notes-delete", DELETED, "notes-1", "link-2", "my-delete", "empty-3"} <= {
        path.name for path in data.iterdir()
    }


def test_what_a_crash_left_of_a_creation_or_a_deletion_is_removed_and_named(data, caplog):
    caplog.set_level(logging.INFO)
    for name in ("new-0", "t-1", DELETED):
        (data / name).mkdir()
        (data / name / LOG).write_bytes(b"x" if name == DELETED else b"")
        for file in (
            "partition.metadata",
            "leader-epoch-checkpoint.tmp",
            f"{0:020d}.index",
            "view-start-offset",
        ):
            (data / name / file).write_bytes(b"x")
    start(data)
    for name in ("new-0", "t-1", DELETED):
        assert not (data / name).exists()
        assert f"{data / name} belonged to no topic and was removed" in caplog.text
