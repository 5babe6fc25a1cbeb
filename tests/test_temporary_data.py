"""A broker of `stablelog.serve()` leaves no temporary directory, whoever is killed, and whenever.

STABLELOG_PARENT_DEATHS says at how many lines of the program's part the program is killed: 0 for all.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import stablelog
from stablelog.errors import UnavailableError
from stablelog.temporary_data import (
    hold_directory,
    make_directory,
    new_path,
    remove_abandoned,
    remove_directory,
)
from tests.scale import randomness
from tests.test_embedded import is_running
from tests.waiting import until

ROOT = Path(__file__).parents[1]
DEATHS = int(os.environ.get("STABLELOG_PARENT_DEATHS", "4"))

# A program that counts the lines that it runs of the code beside the broker, and kills itself at one of them.
LIVES = """
import os, signal, stablelog, sys
from stablelog import embedded, embedded_process, temporary_data
import stablelog.data_directory.foreign_directory

files = {one.__file__ for one in (embedded, embedded_process, temporary_data)}
last, count = int(sys.argv[1]), 0

def line(frame, event, _):
    global count
    count += 1
    if count == last:
        os.kill(os.getpid(), signal.SIGKILL)
    return line

sys.settrace(lambda frame, *_: line if frame.f_code.co_filename in files else None)
with stablelog.serve() as broker:
    if sys.argv[2] == "stops":
        broker.stop()
sys.settrace(None)
print(count)
"""
SERVING = """
import os, signal, sys, time, stablelog
with stablelog.serve() as broker:
    print(broker.pid, broker.data.parent, flush=True)
    {then}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The directory for temporary files."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


def ran(program, *words, **more):
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        **more,
    )


@contextlib.contextmanager
def serving(then="time.sleep(600)", *before):
    """A process that runs a broker, the broker's process id, and its temporary directory."""
    words = [*before, sys.executable, "-c", SERVING.format(then=then)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=ROOT) as process:
        broker_id, directory = process.stdout.readline().split()
        try:
            yield process, int(broker_id), Path(directory.decode())
        finally:
            process.kill()


def is_empty(place):
    return not any(place.iterdir())


@pytest.mark.extended
@pytest.mark.parametrize("then", ["goes on", "stops"])
def test_a_program_that_is_killed_at_any_line_leaves_nothing(tmp_path, then):
    """A broker that was stopped has no process that could remove anything. The next broker does it."""

    def lived(last):
        place = tmp_path / f"{last}"
        place.mkdir()
        return ran(LIVES, str(last), then, env={**os.environ, "TMPDIR": str(place)}), place

    done, place = lived(0)
    assert done.returncode == 0, done.stderr
    assert is_empty(place)
    lines = range(1, int(done.stdout) + 1)
    chosen = lines if DEATHS == 0 else randomness("parent", then).sample(lines, DEATHS)
    with ThreadPoolExecutor(2) as threads:
        for last, (done, place) in zip(chosen, threads.map(lived, chosen), strict=True):
            assert done.returncode == -signal.SIGKILL, (last, done.stderr)
            wait_until_empty(place, then, f"nothing is left at line {last} of {len(lines)}")


def wait_until_empty(place, then, what):
    until(lambda: (then == "stops" and remove_abandoned(place)) or is_empty(place), what)


@pytest.mark.extended
@pytest.mark.parametrize("then", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGTERM)", "os.abort()"])
def test_a_program_that_ends_without_a_word_leaves_nothing(place, then):
    with serving(then) as (process, broker_id, _):
        process.wait()
        until(lambda: is_empty(place), "the directory is removed")
        until(lambda: not is_running(broker_id), "the broker ends")


@pytest.mark.extended
def test_a_process_that_was_forked_keeps_no_directory(place):
    fork = "child = os.fork() or time.sleep(600); print(child, flush=True); time.sleep(600)"
    with serving(fork) as (process, _, directory):
        forked_id = int(process.stdout.readline())
        try:
            assert directory.exists()
            process.kill()
            until(lambda: is_empty(place), "the directory is removed")
            assert is_running(forked_id)
        finally:
            os.kill(forked_id, signal.SIGKILL)


@pytest.mark.extended
def test_the_program_removes_what_a_killed_broker_left(place):
    with stablelog.serve() as broker:
        os.kill(broker.pid, signal.SIGKILL)
        until(lambda: not broker.is_running, "the broker ends")
        remove_abandoned(place)
        broker.start()  # on the same data
    assert is_empty(place)


@pytest.mark.extended
def test_the_next_broker_removes_what_is_left_if_program_and_broker_are_killed(place):
    with serving() as (process, broker_id, directory):
        os.kill(broker_id, signal.SIGSTOP)  # it does not see the end of the program
        process.kill()
        process.wait()
        os.kill(broker_id, signal.SIGKILL)
        until(lambda: not is_running(broker_id), "the broker ends")
    assert (directory / "data" / "disk-reserve").exists()
    with stablelog.serve():
        until(lambda: not directory.exists(), "the directory is removed")
    assert is_empty(place)


@pytest.mark.extended
@pytest.mark.skipif(shutil.which("unshare") is None, reason="makes a container with unshare")
def test_the_next_broker_removes_what_is_left_by_a_container_whose_first_process_is_killed(place):
    """The kernel kills all processes of a container with its first one."""
    container = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")
    if subprocess.run([*container, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user may not make a container")
    with serving("assert os.getpid() == 1; time.sleep(600)", *container) as (process, _, directory):
        assert (directory / "data" / "disk-reserve").exists()
        process.kill()
        process.wait()
        until(lambda: remove_abandoned(place) or not directory.exists(), "the directory is removed")


@pytest.mark.extended
def test_a_broker_that_is_frozen_ends_and_its_directory_with_it(place):
    with stablelog.serve() as broker:
        os.kill(broker.pid, signal.SIGSTOP)
        broker_id = broker.pid
    assert is_empty(place)
    assert not is_running(broker_id)


@pytest.mark.extended
def test_a_directory_in_use_is_not_removed(place):
    with stablelog.serve() as running, stablelog.serve() as stopped, stablelog.serve() as frozen:
        stopped.stop()
        os.kill(frozen.pid, signal.SIGSTOP)
        before = sorted(place.iterdir())
        remove_abandoned(place)
        assert (
            sorted(place.iterdir()) == before == sorted(one.data.parent for one in (running, stopped, frozen))
        )
        assert stopped.data.joinpath("disk-reserve").exists()
    assert is_empty(place)


def test_only_a_directory_that_a_broker_made_is_removed(place):
    """A directory without data may be so new that its broker has not locked it yet."""
    abandoned, new, named = (new_path() for _ in range(3))
    for one in (abandoned, named, place / "stablelog-serve-mine"):
        (one / "data").mkdir(parents=True)
    new.mkdir()
    linked = new_path()
    linked.symlink_to(named)
    fd = hold_directory(named)
    remove_abandoned(place)
    assert sorted(place.iterdir()) == sorted([named, new, linked, place / "stablelog-serve-mine"])
    os.close(fd)
    os.chown(named, 12345, 12345) if os.getuid() == 0 else named.rename(place / "other")
    remove_abandoned(place)
    assert linked.is_symlink()
    assert len(list(place.iterdir())) == 4


def test_the_directory_is_for_this_user_only(place):
    directory = new_path()
    make_directory(directory)
    make_directory(directory)  # of the same broker
    assert directory.stat().st_mode & 0o777 == 0o700


def linked_to(target, directory):
    directory.symlink_to(target)


def open_to_others(target, directory):
    directory.mkdir()
    directory.chmod(0o755)
    (directory / "data").symlink_to(target)


def with_linked_data(target, directory):
    directory.mkdir(mode=0o700)
    (directory / "data").symlink_to(target)


def of_another_user(target, directory):
    with_linked_data(target, directory)
    os.chown(directory, 12345, 12345)


FOREIGN = [linked_to, open_to_others, with_linked_data] + [of_another_user] * (os.getuid() == 0)


@pytest.mark.parametrize("made", FOREIGN)
def test_a_directory_that_the_broker_did_not_make_is_refused(place, made):
    """Another user may have made it, to get the broker's files."""
    target = place / "target"
    target.mkdir(mode=0o700)
    broker = stablelog.serve()
    directory = broker.data.parent
    made(target, directory)
    with pytest.raises(UnavailableError, match=rf"{directory} cannot be made: .* (link|directory)"), broker:
        pass
    assert not any(target.iterdir())
    if made in (linked_to, of_another_user):
        assert directory.exists()
    assert not list(place.glob("*/.broker.log"))


def test_a_directory_of_another_user_is_not_removed(place, monkeypatch):
    directory = new_path()
    make_directory(directory)
    link = new_path()
    link.symlink_to(directory)
    remove_directory(link)
    assert link.is_symlink()
    with monkeypatch.context() as patch:
        patch.setattr("os.getuid", lambda: 12345)
        remove_directory(directory)
    assert (directory / "data").is_dir()
    remove_directory(directory)
    assert not directory.exists()


# A broker's process, from under which Python is removed.
WITHOUT_PYTHON = """
import sys, threading
from pathlib import Path
from stablelog.temporary_data import end_and_remove, make_directory

directory = Path(sys.argv[1])
{then}
sys.executable = str(directory / "gone")
sys.path.clear()
sys.meta_path.clear()
ending = threading.Thread(target=end_and_remove, args=[directory])
ending.start()
ending.join()
"""


@pytest.mark.parametrize("then", ["make_directory(directory)", "directory.mkdir()"])
def test_a_process_ends_also_if_python_is_not_installed_any_more(place, then):
    directory = new_path()
    words = [sys.executable, "-c", WITHOUT_PYTHON.format(then=then), directory]
    assert subprocess.run(words, check=False).returncode == 1
    assert directory.exists() == (then == "directory.mkdir()")


@pytest.mark.extended
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="reads the arguments in /proc")
def test_no_other_user_can_read_the_path_before_the_directory_exists(place):
    with stablelog.serve() as broker:
        arguments = Path(f"/proc/{broker.pid}/cmdline").read_bytes()
        environment = Path(f"/proc/{broker.pid}/environ").read_bytes()
        assert b"run_process" in arguments
        for seen in (arguments, environment):
            assert broker.data.parent.name.encode() not in seen


def test_a_directory_that_cannot_be_made_is_told(place):
    broker = stablelog.serve()
    place.rmdir()
    with (
        pytest.raises(
            UnavailableError, match=rf"did not start. (.|\n)*{place}.* cannot be made: No such file"
        ),
        broker,
    ):
        pass
