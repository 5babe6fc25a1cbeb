"""The settings of glibc's memory allocator: a few arenas for all threads, and the return of freed memory."""

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

# The first allocation of 8 MiB is mapped by default. When it is freed, its memory goes back to the system.
FREED = """
import ctypes, sys
from stablelog.env.malloc import keep_freed
if sys.argv[1:]:
    keep_freed(int(sys.argv[1]))
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.free(libc.malloc(8 << 20))
libc.malloc_stats()
"""
with_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="another C library has no such settings"
)


def stats(program, *arguments):
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stderr


@with_glibc
def test_threads_share_arenas():
    assert stats(PROGRAM, "2").count("Arena ") == 2
    assert stats(PROGRAM).count("Arena ") > 2


@with_glibc
def test_freed_memory_is_kept():
    def heap_size(*arguments):
        heap = stats(FREED, *arguments).split("Arena 0:")[1]
        return int(heap.split("system bytes     =")[1].split()[0])

    assert heap_size(str(64 << 20)) > 8 << 20
    assert heap_size() < 8 << 20
