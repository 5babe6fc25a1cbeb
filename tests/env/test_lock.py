"""The lock of a data directory: who holds it is noticed, and to look at it keeps no broker from it."""

import errno
import fcntl
import os

import pytest

from stablelog.env import lock as lock_module
from stablelog.env.lock import is_locked
from stablelog.errors import UnavailableError


@pytest.mark.parametrize("lock", [fcntl.flock, fcntl.lockf])
def test_the_lock_of_either_broker_is_noticed_and_not_kept(tmp_path, lock):
    path = tmp_path / ".lock"
    path.touch()
    assert not is_locked(tmp_path)
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
        assert is_locked(tmp_path)
    finally:
        os.write(release[1], b".")
        os.waitpid(child, 0)
    assert not is_locked(tmp_path)
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
