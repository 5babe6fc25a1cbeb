"""A broker on a file system without a free byte and 10,000 open transactions, where the machine lets a test mount one."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMESPACES = (["unshare", "--user", "--map-root-user", "--mount"], ["unshare", "--mount"])


def namespace():
    """The command that runs another one in a mount namespace of its own; skips the test where there is none."""
    if shutil.which("unshare"):
        for command in NAMESPACES:
            mounted = "mount -t tmpfs tmpfs /mnt"
            if (
                subprocess.run([*command, "sh", "-c", mounted], capture_output=True, check=False).returncode
                == 0
            ):
                return command
    return pytest.skip("no mount namespace to be had: neither user namespaces nor root")


@pytest.mark.night
def test_a_full_file_system_stops_producers_and_nothing_else(tmp_path):
    done = subprocess.run(
        [*namespace(), sys.executable, "-m", "tests.chaos.full_disk_run", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
