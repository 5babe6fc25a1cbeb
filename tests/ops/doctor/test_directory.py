"""What is gathered about a data directory, also while a broker uses it and if a user may not read it."""

import contextlib
import errno
import os
import tempfile
import uuid
from pathlib import Path

import pytest

import stablelog
from stablelog.broker.directory.dynamic_settings import DynamicSettings
from stablelog.data_directory.catalog import ListedTopic, encode_catalog
from stablelog.data_directory.registered_file import SETTINGS, USERS
from stablelog.env.local_disk import LocalDisk
from stablelog.env.lock import LOCK_FILE, DirectoryLock
from stablelog.ops.doctor.directory import directory_facts, directory_volume
from stablelog.ops.doctor.facts import HIDDEN
from stablelog.ops.doctor.machine import user_name
from tests.client.test_time import standing_still

SECRET = "alice-secret"
NOBODY = 65534


@pytest.fixture
def data(tmp_path):
    """A directory with a topic of one partition, whose files are missing."""
    configs = {"retention.ms": "1000"}
    topics = [ListedTopic(name, uuid.UUID(int=at), 1, configs) for at, name in enumerate("ab")]
    for topic in topics:
        (tmp_path / f"{topic.name}-0").mkdir()
    (tmp_path / "cluster.json").write_bytes(encode_catalog("x", 0, None, topics))
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=1\n")
    return tmp_path


def shown(facts):
    return {(one.setting, one.value, one.source) for one in facts.settings}


def test_a_whole_directory_has_no_fault(data):
    facts = directory_facts(data)
    assert (facts.failure, facts.refusal, facts.faults) == ("", "", ())
    assert (facts.topics, facts.partitions) == (2, 2)
    assert not facts.is_stopped_cleanly
    assert facts.recorded_ms is None


def test_an_empty_directory_has_no_fault(tmp_path):
    facts = directory_facts(tmp_path)
    assert (facts.refusal, facts.faults, facts.topics) == ("", (), None)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("missing", errno.ENOENT),
        ("file", errno.ENOTDIR),
        ("file/data", errno.ENOTDIR),
        ("loop", errno.ELOOP),
        ("x" * 300, errno.ENAMETOOLONG),
    ],
)
def test_a_path_that_is_no_directory(tmp_path, name, code):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    assert directory_facts(tmp_path / name).failure == os.strerror(code)


def test_a_directory_of_another_program_is_refused_and_not_read(tmp_path):
    (tmp_path / "letter.txt").touch()
    facts = directory_facts(tmp_path)
    assert "is not a data directory" in facts.refusal
    assert facts.faults == ()


def test_an_incomplete_restore_is_refused(data):
    (data / "restoring").touch()
    assert "is an incomplete restore" in directory_facts(data).refusal


def test_a_damaged_file_is_a_fault_and_the_rest_is_gathered(data):
    (data / "acls.json").write_text("{}\n")
    (data / "broker-time").write_text("0\n5\n7\n")
    facts = directory_facts(data)
    assert [fault.path.name for fault in facts.faults] == ["acls.json"]
    assert facts.recorded_ms == 7


def test_without_a_whole_list_of_topics_their_number_is_unknown(data):
    (data / "cluster.json").write_text('{"version": 2, "topics": {}}')
    facts = directory_facts(data)
    assert (facts.topics, facts.partitions) == (None, None)
    assert [fault.path.name for fault in facts.faults] == ["cluster.json"]


def test_settings_of_topics_and_groups_are_counted_and_not_named(data):
    groups = {"orders": {"consumer.session.timeout.ms": "45000"}}
    DynamicSettings(LocalDisk(), data).store({"log.retention.ms": "1"}, {"log.retention.ms": "2"}, groups)
    facts = directory_facts(data)
    assert shown(facts) == {
        ("log.retention.ms", "1", "dynamic broker"),
        ("log.retention.ms", "2", "dynamic default"),
        ("retention.ms", "1000", "2 topics"),
        ("consumer.session.timeout.ms", "45000", "1 group"),
    }
    assert "orders" not in repr(facts)


@pytest.mark.parametrize("name", ["ssl.key.password", "a.setting.of.a.later.release"])
def test_a_secret_and_an_unknown_setting_are_hidden(data, name):
    DynamicSettings(LocalDisk(), data).store({name: SECRET})
    facts = directory_facts(data)
    assert (name, HIDDEN, "dynamic broker") in shown(facts)
    assert SECRET not in repr(facts)


def test_the_lock_and_its_holder(data):
    assert directory_facts(data).lock == "missing"
    lock = DirectoryLock(data)
    facts = directory_facts(data)
    assert facts.lock == "held"
    if Path("/proc/locks").exists():
        assert facts.holder.process_id == os.getpid()
        assert not facts.holder.is_stopped
    lock.release()
    assert directory_facts(data).lock == "free"
    assert directory_facts(data).holder is None


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the holder of a lock is known on Linux only")
def test_a_stopped_broker_is_the_holder_of_its_lock(tmp_path):
    with stablelog.serve(tmp_path / "data") as broker:
        with standing_still(broker):
            stopped = directory_facts(broker.data)
        running = directory_facts(broker.data)
        assert stopped.holder.process_id == running.holder.process_id == broker.pid
    assert (stopped.holder.is_stopped, running.holder.is_stopped) == (True, False)


def test_a_file_with_secrets_that_others_may_read(data):
    (data / USERS.name).touch(mode=0o600)
    assert directory_facts(data).rights.exposed == ()
    (data / USERS.name).chmod(0o640)
    assert directory_facts(data).rights.exposed == (data / USERS.name,)
    (data / SETTINGS.name).touch(mode=0o644)
    assert directory_facts(data).rights.exposed == (data / USERS.name,)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_files_of_another_user(data):
    os.chown(data / "b-0", NOBODY, -1)
    os.chown(data / "a-0", NOBODY, -1)
    (data / "lost+found").mkdir()  # It is on every file system of this kind, and belongs to root.
    os.chown(data / "lost+found", NOBODY, -1)
    rights = directory_facts(data).rights
    assert (rights.foreign, rights.first_foreign) == (2, data / "a-0")
    assert rights.foreign_owner != rights.owner


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_the_volume_of_a_container_belongs_to_root_and_its_files_to_the_user_of_the_broker(data):
    for path in data.rglob("*"):
        os.chown(path, NOBODY, -1)
    rights = directory_facts(data).rights
    assert (rights.foreign, rights.owner) == (0, user_name(NOBODY))
    os.chown(data / "a-0", 1, -1)
    rights = directory_facts(data).rights
    assert (rights.foreign, rights.first_foreign, rights.owner) == (1, data / "a-0", user_name(NOBODY))
    os.chown(data / "a-0", 0, -1)  # as by a command that root ran
    assert directory_facts(data).rights.owner == user_name(0)


@contextlib.contextmanager
def another_user():
    """The process is that of a user without rights. Root may do everything, whatever the modes of files are."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_user_who_may_not_read_gets_this_as_a_fact():
    with tempfile.TemporaryDirectory() as name:  # unlike that of pytest, others may enter it
        directory = Path(name)
        (directory / "cluster.json").touch(mode=0o000)
        (directory / "t-0").mkdir(mode=0o000)
        (directory / "meta.properties").touch()
        (directory / "meta.properties").chmod(0o666)
        directory.chmod(0o777)
        with another_user():
            facts = directory_facts(directory)
        assert facts.rights.is_usable
        assert (facts.rights.unusable, facts.rights.first_unusable) == (2, directory / "cluster.json")
        for mode in (0o000, 0o444, 0o666):  # the last two: names can be listed, and nothing else
            directory.chmod(mode)
            with another_user():
                facts = directory_facts(directory)
                space = directory_volume(directory)
                inside = directory_facts(directory / "data")
            assert not facts.rights.is_usable
            assert facts.faults == ()
            assert space.free > 0
            assert inside.failure == os.strerror(errno.EACCES)
        directory.chmod(0o755)


def test_the_volume_of_a_directory_has_its_reserve(data):
    new = directory_volume(data)
    assert new.reserve is None
    (data / LOCK_FILE).touch()
    used = directory_volume(data)
    (data / "disk-reserve").write_bytes(bytes(1 << 20))
    short = directory_volume(data)
    assert short.reserve == 1 << 20
    # A directory that no broker has used gets a whole reserve. One without a reserve is of a broker without one.
    assert used.reserve_missing < short.reserve_missing
    assert new.reserve_missing == short.reserve_missing + (1 << 20)
