"""How the kernels are compiled, and where the machine keeps them once they are.

Numba compiles a kernel in a second or two and loads a compiled one in milliseconds, so each machine compiles once.
The compiled code lies in a directory of the user's own, not in the package, which may be read-only. The directory's
name holds a digest of the source, of the library's version and of the processor: its files are written once and never
change, so a worker can never load what another version of the package has left. Several workers that start at once
take a lock: one compiles, the others load.
"""

import contextlib
import fcntl
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

import numba
from llvmlite import binding

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

_njit: Any = numba.njit
_config: Any = numba.config

READY = "ready"  # a file of this name says that the directory holds every kernel of its module


def _is_ours(path: Path) -> bool:
    """Whether only this user writes there: compiled code that somebody else may replace must not be run."""
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _candidates() -> Iterator[Path]:
    if "NUMBA_CACHE_DIR" in os.environ:
        yield Path(os.environ["NUMBA_CACHE_DIR"])
    if "XDG_CACHE_HOME" in os.environ:
        yield Path(os.environ["XDG_CACHE_HOME"])
    with contextlib.suppress(RuntimeError):  # there is no home
        yield Path.home() / ".cache"
    yield Path(tempfile.gettempdir()) / f"stablelog-{os.getuid()}"


def kernel_directory(source: Path) -> Path | None:
    """Where the compiled kernels of this source file lie; None if there is nowhere to keep them."""
    try:
        text = b"".join(path.read_bytes() for path in [source, *sorted(source.parent.glob("kernels*.py"))])
    except OSError:  # the package lies in an archive
        return None
    processor = f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}"
    versions = f"{numba.__version__} {sys.version}"
    digest = hashlib.sha256(b"\0".join([text, processor.encode(), versions.encode()])).hexdigest()[:24]
    for candidate in _candidates():
        path = candidate / "stablelog" / "kernels" / f"{source.stem}-{digest}"
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryFile(dir=path):
                pass
            if _is_ours(path):
                return path
        except OSError:
            continue
    return None


class Compiler:
    """Compiles the kernels of one module, or loads them.

    Used as a context manager around the definitions of the kernels, so that they are compiled under one lock:

        with Compiler(__file__) as compiler:
            kernel = compiler.compile("int64(int64[::1])")(_kernel)
    """

    def __init__(self, source: str) -> None:
        self.directory = kernel_directory(Path(source))
        self._lock: int | None = None

    @property
    def is_ready(self) -> bool:
        """Whether this machine has compiled the module before."""
        return self.directory is not None and (self.directory / READY).exists()

    def __enter__(self) -> Self:
        if self.directory is not None and not self.is_ready:
            with contextlib.suppress(
                OSError
            ):  # file systems without locks: several may compile, none is wrong
                self._lock = os.open(self.directory / "lock", os.O_CREAT | os.O_RDWR, 0o600)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        if self.directory is not None and failure is None and not self.is_ready:
            with contextlib.suppress(OSError):
                (self.directory / READY).touch()
        if self._lock is not None:
            os.close(self._lock)  # which unlocks

    def compile(self, signature: str) -> Callable[[Kernel], Kernel]:
        """A decorator: the kernel compiled for this signature."""

        def decorate(function: Kernel) -> Kernel:
            compiled: Kernel
            if self.directory is None:
                compiled = _njit(signature, error_model="numpy", nogil=True)(function)
                return compiled
            before = _config.CACHE_DIR
            _config.CACHE_DIR = str(self.directory)
            try:
                compiled = _njit(signature, error_model="numpy", nogil=True, cache=True)(function)
                return compiled
            finally:
                _config.CACHE_DIR = before

        return decorate


def inlined(function: Kernel) -> Kernel:
    """A part of kernels: compiled into each that calls it."""
    part: Kernel = _njit(error_model="numpy")(function)
    return part
