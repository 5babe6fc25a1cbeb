"""All threads of a process share a few of glibc's arenas."""

import platform
import subprocess
import sys

import pytest

# Each thread allocates and keeps memory, so that glibc gives it an arena. `malloc_stats` then names all arenas.
PROGRAM = """
import ctypes, sys, threading
from stablelog.env.malloc import use_arenas
if sys.argv[1:]:
    use_arenas(int(sys.argv[1]))
barrier = threading.Barrier(6)
def work():
    kept = bytes(100_000)
    barrier.wait()
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(5)]
for thread in threads:
    thread.start()
barrier.wait()
ctypes.CDLL(None).malloc_stats()
barrier.wait()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has no arenas")
def test_threads_share_arenas():
    def arena_count(*arguments):
        command = [sys.executable, "-c", PROGRAM, *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stderr.count("Arena ")

    assert arena_count("2") == 2
    assert arena_count() > 2
