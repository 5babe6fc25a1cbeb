"""Commands of the command line, each in a process of its own that is forked from one that has imported them.

The start of Python and the imports of a command take about half a second of one core. `run` forks a process that has done
both, so that a command costs some milliseconds more than its work. Tests of what a start does (its imports, its signals, a
terminal) start a process with COMMAND instead.
"""

import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]

# The command without hypothesis, as users have it: kio imports an installed one, which takes a fifth of the start.
COMMAND = """
import sys
sys.modules["hypothesis"] = None
from stablelog.cli.main import run
run()
"""
# `serve` returns in each forked process. What `run` raises ends that process as it ends one that was not forked.
SERVER = """
import sys
sys.modules["hypothesis"] = None
from stablelog.cli.main import run
from tests.commands import serve
serve(sys.argv[1])
run()
"""
LENGTH_BYTES = 8
FDS = (0, 1, 2)


def run(*words, bootstrap=None, given=None, timeout_s=300):
    """Run a command with a wide terminal until it ends.

    Args:
        words: the words of the command.
        bootstrap: the broker's address; None to pass none.
        given: text for the standard input; None for an empty one.
        timeout_s: after this time the command is killed.

    Returns a `subprocess.CompletedProcess` with text.
    """
    words = [*words, *(["--bootstrap", bootstrap] if bootstrap is not None else [])]
    asked = {"words": words, "environment": {**os.environ, "COLUMNS": "400"}, "directory": os.getcwd()}
    with (
        tempfile.TemporaryFile("w+", errors="backslashreplace") as out,
        tempfile.TemporaryFile("w+", errors="backslashreplace") as error,
    ):
        with _input(given) as stdin, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(_server())
            message = json.dumps(asked).encode()
            fds = [stdin, out.fileno(), error.fileno()]
            socket.send_fds(connection, [len(message).to_bytes(LENGTH_BYTES, "big")], fds)
            connection.sendall(message)
            code = _code(connection, words)
        for file in (out, error):
            file.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), error.read())


@contextlib.contextmanager
def _input(given):
    """A descriptor from which a text is read, through a pipe as from a shell."""
    reading, writing = os.pipe()

    def write():
        # A command need not read what it is given.
        with contextlib.suppress(BrokenPipeError), open(writing, "w") as pipe:
            pipe.write(given or "")

    thread = threading.Thread(target=write, name="given", daemon=True)
    thread.start()
    try:
        yield reading
    finally:
        os.close(reading)
        thread.join()


def _code(connection, words):
    """Wait for the end of a forked process. Kill the process if that takes too long."""
    with connection.makefile("rb") as answers:
        process_id = int(answers.readline())
        try:
            return int(answers.readline())
        except TimeoutError:
            os.kill(process_id, signal.SIGKILL)
            raise AssertionError(f"{words} did not end") from None


@functools.cache
def _server():
    """The path at which the server of this process listens. It ends with this process, which holds its standard input."""
    path = str(Path(tempfile.mkdtemp(prefix="commands-")) / "socket")
    python_path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": python_path},
    )
    assert process.stdout.readline() == b"listening\n"
    _PROCESSES.append(process)
    return path


_PROCESSES = []


# -- in the server ----------------------------------------------------------------------------------------------------


def serve(path):
    """Fork a process for each command that is asked for at a path. Returns in the forked process, which then is as one
    that was started with the words of the command. Exits when the standard input ends.
    """
    _import_commands()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the processes that are forked here
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        os.write(1, b"listening\n")
        connection = _connection_of_forked(listener, path)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    asked, fds = _received(connection)
    process_id = os.fork()
    if process_id:
        for fd in fds:
            os.close(fd)
        connection.sendall(b"%d\n" % process_id)
        _, status = os.waitpid(process_id, 0)
        with contextlib.suppress(OSError):  # the test has not waited
            connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    connection.close()
    _become(asked, fds)


def _import_commands():
    """Import what the commands import, and start no thread: a fork would not have it."""
    from importlib import import_module

    from stablelog.cli.commands import MODULES, app
    from stablelog.errors import UsageError

    for name in MODULES:
        import_module(f"stablelog.cli.{name}")
    with contextlib.suppress(UsageError):  # an address that is not valid is refused after the last import
        app(["topics", "list", "--bootstrap", "none"])
    gc.freeze()  # a collection in a forked process would copy the memory of all this
    assert threading.active_count() == 1


def _connection_of_forked(listener, path):
    """Fork a process for each connection. Return the connection in the forked process."""
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:  # its end: nothing is written to it
            os.unlink(path)
            os.rmdir(os.path.dirname(path))
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            return connection
        connection.close()


def _received(connection):
    head, fds, _, _ = socket.recv_fds(connection, LENGTH_BYTES, len(FDS))
    with connection.makefile("rb") as messages:
        head += messages.read(LENGTH_BYTES - len(head))
        return json.loads(messages.read(int.from_bytes(head, "big"))), fds


def _become(asked, fds):
    """Take the words, descriptors, environment and directory of a command, and start its time."""
    from stablelog import cli

    for fd, own in zip(fds, FDS, strict=True):
        os.dup2(fd, own)
        os.close(fd)
    sys.argv[1:] = asked["words"]
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["directory"])
    cli.STARTED_S = time.monotonic()
