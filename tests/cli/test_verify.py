"""A directory is verified while its broker runs, which may delete what is looked at."""

import errno
import shutil
import uuid

import pytest

from stablelog.cli import verify
from stablelog.data_directory.catalog import ListedTopic, encode_catalog
from stablelog.env.local_disk import LocalDisk
from stablelog.errors import DiskError
from stablelog.log.opening import open_partition
from stablelog.log.partition import LogConfig
from stablelog.log.verify import FileFinding, verify_directory
from tests.broker.desk import batch

LOG = f"{0:020d}.log"


@pytest.fixture
def data(tmp_path):
    """Two partitions."""
    for name in ("a-0", "b-0"):
        log = open_partition(
            LocalDisk(), tmp_path / name, LogConfig(), topic=name[0], partition=0, clean=True, now_ms=1
        )
        log.append(batch(b"x"), now_ms=1)
        log.close(clean=True)
    topics = [ListedTopic(name, uuid.UUID(int=at), 1, {}) for at, name in enumerate("ab")]
    (tmp_path / "cluster.json").write_bytes(encode_catalog("x", 0, 0, topics))
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=1\n")
    return tmp_path


def verified(data, capsys):
    verify.verify(data)
    return capsys.readouterr().out


def test_what_is_of_a_deleted_topic_is_not_looked_at(data, capsys):
    (data / "c-0.0123-delete").mkdir()
    (data / "c-0.0123-delete" / LOG).write_bytes(b"half of it is removed")
    assert "2 partitions, 0 findings" in verified(data, capsys)


@pytest.mark.parametrize("how", [shutil.rmtree, lambda path: path.rename(path.with_name("gone-delete"))])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_partition_that_is_deleted_meanwhile_is_passed_over(data, capsys, monkeypatch, how, before):
    def meanwhile(disk, directory, **more):
        if before and directory.name == "a-0":
            how(directory)
        found = list(verify_directory(disk, directory, **more))
        if directory.name == "a-0" and not before:
            how(directory)
            found = [FileFinding(directory / LOG, "a half of it is gone")]
        return found

    monkeypatch.setattr(verify, "verify_directory", meanwhile)
    assert "0 findings" in verified(data, capsys)


def test_a_partition_of_which_a_file_goes_meanwhile_is_looked_at_again(data, capsys, monkeypatch):
    gone = []

    def meanwhile(disk, directory, **more):
        if len(gone) < 2:
            gone.append(directory)
            raise FileNotFoundError(directory / LOG)
        return verify_directory(disk, directory, **more)

    monkeypatch.setattr(verify, "verify_directory", meanwhile)
    (data / "b-0" / LOG).write_bytes(bytes(100))
    with pytest.raises(SystemExit):
        verified(data, capsys)
    assert len(gone) == 2
    assert str(data / "b-0" / LOG) in capsys.readouterr().out


def test_a_file_that_is_never_there_is_no_reason_to_go_on_for_ever(data, monkeypatch):
    def missing(disk, directory, **_):
        raise FileNotFoundError(directory)

    monkeypatch.setattr(verify, "verify_directory", missing)
    with pytest.raises(FileNotFoundError):
        verify.verify(data)


class BarredDisk(LocalDisk):
    """A disk on which one directory cannot be looked into, as one without the right to."""

    barred = "a-0"

    def _check(self, path):
        if self.barred in (path.name, path.parent.name):
            raise DiskError(f"reading {path} failed", errno.EACCES)

    def open(self, path, **more):
        self._check(path)
        return super().open(path, **more)

    def read_bytes(self, path):
        self._check(path)
        return super().read_bytes(path)

    def list_dir(self, path):
        self._check(path)
        return super().list_dir(path)


@pytest.mark.parametrize("barred", ["a-0", "partition.metadata", "log-start-offset", LOG])
def test_verify_goes_on_behind_a_file_that_cannot_be_read(data, capsys, monkeypatch, barred):
    (data / "b-0" / LOG).write_bytes(bytes(100))
    monkeypatch.setattr(BarredDisk, "barred", barred)
    monkeypatch.setattr(verify, "LocalDisk", BarredDisk)
    with pytest.raises(SystemExit) as ended:
        verified(data, capsys)
    assert ended.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"{data / 'a-0'}: cannot be verified") and barred in line for line in lines), (
        lines
    )
    if barred == "a-0":
        assert any(line.startswith(str(data / "b-0" / LOG)) for line in lines), lines
