"""Cache of compiled kernels on a machine, and the loading of kernels from it.

Numba takes some seconds to compile the kernels of a module. The machine code is a few kilobytes and runs without Numba
(`kernels.build`). So one process of each machine compiles, and the others load the code in milliseconds, without the
half second and the memory of importing Numba. The cache is in a directory of the user (`places`), because the package
may be read-only, or in a directory that root has made with the machine's image. A file's name contains a digest (hash)
of the source, of Numba's version and of the processor, so that code of another version of the package is never run. A
file is written under a temporary name and then renamed, and contains the digest of its content. Of several workers that
start at the same time, one takes a lock and compiles; the others wait and load the code.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import binding

from stablelog.spark.kernels.machine import native_machine
from stablelog.spark.private_directories import images_directories, own_directory

Array = npt.NDArray[np.int64]

DIGEST_SIZE = 32
DIRECTORY = "kernels"


def _digest(module_name: str) -> str:
    """Return a digest (hash) of everything that the machine code of a module's compiled functions depends on: the
    source, the versions of Python packages, and the processor.
    """
    digest = hashlib.sha256(module_name.encode())
    digest.update(f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}".encode())
    for library in ("numba", "llvmlite"):
        with contextlib.suppress(PackageNotFoundError):
            digest.update(version(library).encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def _read(path: Path) -> bytes | None:
    """Return the machine code in a file; None if the file is missing or incomplete."""
    try:
        held = path.read_bytes()
    except OSError:
        return None
    code = held[DIGEST_SIZE:]
    return code if hashlib.sha256(code).digest() == held[:DIGEST_SIZE] else None


def _write(path: Path, code: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(hashlib.sha256(code).digest() + code)
    # Let all users read the file. The code is not secret, and if root writes the file into a machine's image, other
    # users load it.
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        # On a file system without locks, several workers compile the same code, which only costs time.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _build(module_name: str) -> dict[str, bytes]:
    from stablelog.spark.kernels.build import build

    return build(module_name)


def machine_code(module_name: str, name: str) -> bytes:
    """Return the machine code of a kernel, a compiled function, from this machine's cache. If the cache lacks it,
    compile the kernel and add the code to the cache.
    """
    stem = f"{module_name.rpartition('.')[2]}-{_digest(module_name)}"
    for made_before in images_directories(DIRECTORY):
        if (code := _read(made_before / f"{stem}-{name}")) is not None:
            return code
    directory = own_directory(DIRECTORY)
    if directory is None:
        return _build(module_name)[name]
    path = directory / f"{stem}-{name}"
    if (code := _read(path)) is not None:
        return code
    with _locked(directory / f"{stem}-lock"):
        if (code := _read(path)) is not None:
            return code
        built = _build(module_name)
        # If the file cannot be written, as on a full disk, the next process compiles again.
        with contextlib.suppress(OSError):
            for each, code in built.items():
                _write(directory / f"{stem}-{each}", code)
    return built[name]


@cache
def kernel(module_name: str, name: str) -> Callable[..., int]:
    """Return a kernel of a module, a compiled function, in a form that Python can call with arrays of 64-bit integers.

    The kernel does not check the sizes of the arrays: the caller must make them large enough.
    """
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), native_machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(machine_code(module_name, name)))
    engine.finalize_object()
    address = engine.get_function_address(name)
    function: Any = None

    def call(*arrays: Array) -> int:
        nonlocal function
        if function is None:
            function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * len(arrays))(address)
        for array in arrays:
            assert array.dtype == np.int64 and array.flags.c_contiguous and array.flags.writeable  # noqa: PT018
        return int(function(*[array.ctypes.data for array in arrays]))

    call.engine = engine  # type: ignore[attr-defined]  # keeps the engine: its memory contains the code
    return call


SOURCES = ("stablelog.spark.kernels.decode_source", "stablelog.spark.kernels.encode_source")


def compile_all() -> None:
    """Compile all kernels (functions that Numba translates to machine code) that are not in this machine's cache. Run
    it when you build a machine image, so that no worker compiles.
    """
    from stablelog.spark.kernels.build import names_in

    for source in SOURCES:
        for name in names_in(source):
            machine_code(source, name)


if __name__ == "__main__":
    compile_all()
