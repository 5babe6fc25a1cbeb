"""A broker on a file system without a free byte, where the machine lets a test mount one."""

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


def run_in_namespace(program, directory):
    """Run a program of this folder that mounts a file system."""
    done = subprocess.run(
        [*namespace(), sys.executable, "-m", f"tests.chaos.{program}", str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.night
def test_a_full_file_system_stops_producers_and_nothing_else(tmp_path):
    run_in_namespace("full_disk_run", tmp_path)


@pytest.mark.night
def test_a_file_system_that_filled_while_the_store_was_away_gets_room_from_the_copies(tmp_path):
    run_in_namespace("tiered_full_disk_run", tmp_path)
