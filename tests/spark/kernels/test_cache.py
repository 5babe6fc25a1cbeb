"""Kernels are compiled once per machine, and nothing but what this version of the package made is ever run."""

import os
import subprocess
import sys
import tempfile

import numpy as np
import pytest

from stablelog.spark import private_directories
from stablelog.spark.kernels import build as kernels_build
from stablelog.spark.kernels import cache as kernels_cache
from stablelog.spark.kernels import decode as kernels_decode

MODULE = "stablelog.spark.kernels.encode_source"


@pytest.fixture(autouse=True)
def no_other_places(monkeypatch, tmp_path):
    """What other tests have compiled in this user's own places is not found: root's are an image's, too."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


@pytest.fixture
def built(monkeypatch, tmp_path):
    """The modules that were compiled, instead of compiling them; the cache is empty."""
    found = []

    def build(module_name):
        found.append(module_name)
        return {"encode_rows": b"machine code", "hash_key": b"more of it"}

    monkeypatch.setenv("STABLELOG_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernels_build, "build", build)
    return found


def files(tmp_path):
    return sorted((tmp_path / "kernels").glob("*-encode_rows"))


def test_what_was_compiled_is_kept(built, tmp_path):
    assert kernels_cache.machine_code(MODULE, "encode_rows") == b"machine code"
    assert kernels_cache.machine_code(MODULE, "hash_key") == b"more of it"
    assert built == [MODULE]
    assert files(tmp_path)[0].stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("damage", [b"", b"x" * 31, None])
def test_what_is_damaged_is_compiled_again(built, tmp_path, damage):
    kernels_cache.machine_code(MODULE, "encode_rows")
    [path] = files(tmp_path)
    held = bytearray(path.read_bytes())
    held[-1] ^= 1
    path.write_bytes(bytes(held) if damage is None else damage)
    assert kernels_cache.machine_code(MODULE, "encode_rows") == b"machine code"
    assert kernels_cache.machine_code(MODULE, "encode_rows") == b"machine code"
    assert built == [MODULE] * 2


def test_another_version_compiles_for_itself(built, tmp_path, monkeypatch):
    kernels_cache.machine_code(MODULE, "encode_rows")
    monkeypatch.setattr(kernels_cache, "version", lambda library: "another")
    kernels_cache.machine_code(MODULE, "encode_rows")
    assert built == [MODULE] * 2
    assert len(files(tmp_path)) == 2


def test_where_others_may_write_nothing_is_kept_or_taken(built, tmp_path, monkeypatch):
    kernels_cache.machine_code(MODULE, "encode_rows")
    (tmp_path / "kernels").chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    kernels_cache.machine_code(MODULE, "encode_rows")
    assert built == [MODULE] * 2
    assert files(tmp_path / "own" / "stablelog")


def test_what_root_has_made_with_the_image_is_taken(built, tmp_path, monkeypatch):
    kernels_cache.machine_code(MODULE, "encode_rows")
    owner = os.getuid()
    monkeypatch.setattr(private_directories, "ROOT_UID", owner)
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)  # so nothing here is this user's own
    assert kernels_cache.machine_code(MODULE, "encode_rows") == b"machine code"
    assert built == [MODULE]
    for directory in (tmp_path, tmp_path / "kernels"):
        mode = directory.stat().st_mode
        directory.chmod(0o777)
        kernels_cache.machine_code(MODULE, "encode_rows")
        directory.chmod(mode)
    assert built == [MODULE] * 3


def test_without_any_place_it_is_compiled_for_this_process(built, monkeypatch):
    monkeypatch.setattr(private_directories, "candidates", lambda: iter(()))
    assert kernels_cache.machine_code(MODULE, "encode_rows") == b"machine code"


def test_everything_can_be_compiled_ahead(built, tmp_path, monkeypatch):
    monkeypatch.setattr(kernels_cache, "SOURCES", (MODULE,))
    kernels_cache.compile_all()
    assert built == [MODULE]
    assert len(list((tmp_path / "kernels").glob("*-hash_key"))) == 1


@pytest.mark.extended
def test_a_kernel_that_needs_python_is_refused(monkeypatch):
    def makes_an_array(state):
        return len(np.zeros(state[0]))

    with pytest.raises(RuntimeError, match=r"the kernel it calls .*NRT.*must not call Python or Numba"):
        kernels_build.object_of("it", makes_an_array, 1)


@pytest.mark.extended
def test_workers_that_start_at_once_compile_once_and_need_no_numba(tmp_path):
    """Real processes and the real compiler: one compiles, the others wait and load, all get the same answer."""
    code = (
        "import sys, pyarrow as pa\n"
        "from stablelog.spark.kernels.encode import hash_key\n"
        "key = pa.py_buffer(b'foobar')\n"
        "print(hash_key(key.address, 6), 'numba' in sys.modules)\n"
    )
    home = str(tmp_path / "home")
    environment = {
        "STABLELOG_CACHE_DIR": str(tmp_path),
        "HOME": home,
        "TMPDIR": str(tmp_path),  # what others have compiled there is not found
        "PYTHONPATH": ":".join(filter(None, sys.path)),
    }
    workers = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = sorted(worker.communicate(timeout=300)[0].split() for worker in workers)
    wanted = str(-790332482 & 0xFFFFFFFF)
    assert said == [[wanted, "False"], [wanted, "False"], [wanted, "True"]]
    assert not list((tmp_path / "kernels").glob("tmp*"))


def test_a_table_of_the_wrong_shape_never_reaches_a_kernel():
    state = np.zeros(kernels_decode.SCAN_WIDTH, np.int64)
    with pytest.raises(AssertionError):
        kernels_decode.scan_batches(state, np.zeros((1, 3), np.int64))
    with pytest.raises(AssertionError):
        kernels_decode.scan_batches(
            state.astype(np.int32), np.zeros((1, kernels_decode.TABLE_WIDTH), np.int64)
        )
