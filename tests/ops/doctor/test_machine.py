"""The facts about this machine."""

import os
import resource
import sys
from pathlib import Path

from stablelog.ops.doctor import machine


def test_the_versions_are_those_of_what_runs():
    found = machine.versions("1.0")
    assert found.stablelog == "1.0"
    assert found.python.endswith(sys.version.split()[0])
    assert found.libraries["kio"]
    assert "no-such-library" not in found.libraries


def test_the_limits_are_those_of_the_process():
    found = machine.limits()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert found.open_files == (None if soft == resource.RLIM_INFINITY else soft)
    assert found.open_files_max == (None if hard == resource.RLIM_INFINITY else hard)
    assert 0 < found.memory <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_the_volume_of_a_directory(tmp_path):
    found = machine.volume(tmp_path)
    assert found.path == str(tmp_path)
    assert 0 < found.free <= found.total
    assert not found.is_read_only
    if Path("/proc/self/mountinfo").exists():
        assert found.file_system


def test_the_volume_of_a_missing_directory_is_unknown(tmp_path):
    found = machine.volume(tmp_path / "missing")
    assert (found.total, found.free) == (None, None)


def test_a_user_without_a_name_has_a_number():
    assert machine.user_name(os.geteuid())
    assert machine.user_name(2**31 - 7) == str(2**31 - 7)


def test_a_file_that_cannot_be_read_is_empty(tmp_path):
    assert machine.read_text(tmp_path) == ""
