import subprocess
import sys

import pytest

from tests.memory_limit import EXIT_CODE, resident_mib

TAKES = """
import threading
def test_takes_memory():
    taken = []
    while True:
        taken.append(bytearray(1 << 20))
"""
CONFTEST = """
from tests import memory_limit

def pytest_configure(config):
    capture = config.pluginmanager.getplugin("capturemanager")
    memory_limit.watch(lambda: capture.suspend(in_=True), mib_max=300, period_s=0.05)
"""


def test_the_memory_of_this_process_is_known():
    # A process of its own: in this one other tests may have left free memory that 64 MiB fit in.
    program = "from tests.memory_limit import resident_mib; a = resident_mib(); taken = b'1' * (64 << 20); print(a, resident_mib())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
    )
    before, after = map(int, done.stdout.split())
    assert 0 < before < before + 60 < after < before + 80


def test_without_the_file_of_the_system_there_is_no_limit(tmp_path):
    assert resident_mib(tmp_path / "statm") == 0


@pytest.mark.parametrize("words", [[], ["-n", "1", "--max-worker-restart", "0"]], ids=["alone", "worker"])
def test_a_test_that_takes_too_much_memory_is_named_with_its_place(tmp_path, words):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_memory.py").write_text(TAKES)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", *words]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False)
    shown = done.stdout + done.stderr
    assert "test_takes_memory (call) takes 3" in shown, shown
    assert "in test_takes_memory" in done.stderr
    assert done.returncode == EXIT_CODE or "crashed while running" in done.stdout
