"""A data directory that a broker has open is read through the broker."""

import errno
import fcntl
import os

import pytest

import stablelog
from stablelog.env import lock as lock_module
from stablelog.errors import UnavailableError, UsageError
from stablelog.spark import count
from stablelog.spark.segments.data_directory import check_is_closed
from tests.clients.drivers import Confluent, unique
from tests.spark.reading import make, rows, tasks


def test_a_directory_is_refused_while_its_broker_runs_and_read_when_it_has_stopped(tmp_path):
    data, topic = tmp_path / "data", unique("running")
    with stablelog.serve(data) as broker:
        make(broker.bootstrap, topic, 1)
        Confluent(broker.bootstrap).produce(topic, [b"a", b"b"])
        given = {"path": str(data), "subscribe": topic}
        for ask in (tasks, count):
            with pytest.raises(
                UsageError, match=f"{data} is in use by a running broker, .*kafka.bootstrap.servers"
            ):
                ask(given)
        assert (
            count({"bootstrap": broker.bootstrap, "subscribe": topic, "mount": str(data), "scan": "files"})
            == 2
        )
        broker.kill()
        assert rows(given, "value") == [(b"a",), (b"b",)]
        broker.start()
        with pytest.raises(UsageError, match="is in use by a running broker"):
            tasks(given)
    assert rows(given, "value") == [(b"a",), (b"b",)]


@pytest.mark.parametrize("lock", [fcntl.flock, fcntl.lockf])
def test_the_lock_of_either_broker_is_noticed_and_not_kept(tmp_path, lock):
    path = tmp_path / ".lock"
    path.touch()
    check_is_closed(tmp_path)
    # A lock of `lockf` belongs to its process: another one has to hold it.
    held, release = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        with path.open("r+b") as file:
            lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(held[1], b".")
            os.read(release[0], 1)
        os._exit(0)
    try:
        assert os.read(held[0], 1)
        with pytest.raises(UsageError, match="is in use by a running broker"):
            check_is_closed(tmp_path)
    finally:
        os.write(release[1], b".")
        os.waitpid(child, 0)
    check_is_closed(tmp_path)
    with path.open("r+b") as file:
        lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_broker_that_starts_while_somebody_looks_at_its_lock_starts(tmp_path, monkeypatch):
    class Looked:
        """The module `fcntl`, where the lock is held by a reader for so many looks."""

        def __init__(self, count):
            self._count = count

        def __getattr__(self, name):
            return getattr(fcntl, name)

        def flock(self, descriptor, how):
            self._count -= 1
            if self._count >= 0:
                raise BlockingIOError(errno.EWOULDBLOCK, "held")
            fcntl.flock(descriptor, how)

    def locked(count):
        monkeypatch.setattr(lock_module, "fcntl", Looked(count))
        lock_module.DirectoryLock(tmp_path).release()

    locked(lock_module.TRIES - 1)
    with pytest.raises(UnavailableError, match="another broker is running"):
        locked(lock_module.TRIES)
