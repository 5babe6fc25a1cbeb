"""`verify` and `inspect` on a file system that is mounted read-only, where the machine lets a test mount one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stablelog.env.local_disk import LocalDisk
from stablelog.log.opening import open_partition
from stablelog.log.partition import LogConfig
from tests.broker.desk import batch
from tests.chaos.test_full_disk import namespace

pytestmark = pytest.mark.extended

RUN = "from stablelog.cli.main import run; run()"


@pytest.mark.parametrize("command", [["verify"], ["inspect"], ["inspect", "--records"]])
def test_a_directory_on_a_read_only_file_system_can_be_looked_into(tmp_path, command):
    partition = tmp_path / "t-0"
    log = open_partition(LocalDisk(), partition, LogConfig(), topic="t", partition=0, clean=True, now_ms=1)
    log.append(batch(b"value"), now_ms=1)
    log.close(clean=True)
    mounted = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && ! touch "$1/x" 2>/dev/null && shift && exec "$@"'
    done = subprocess.run(
        [*namespace(), "sh", "-c", mounted, "sh", partition, sys.executable, "-c", RUN, *command, partition],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("0 findings" if command == ["verify"] else f"{0:020d}.log") in done.stdout
