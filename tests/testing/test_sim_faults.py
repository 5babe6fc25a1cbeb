"""The faults of a simulated disk: which operation fails or crashes, and what it has changed by then."""

import errno
from pathlib import Path

import pytest

from stablelog.errors import DiskError
from stablelog.testing.sim_faults import SimFaults, SimulatedCrash
from stablelog.testing.sim_tree import Inode

PATH = Path("/a")


def test_the_operation_of_the_number_fails_and_no_other():
    faults = SimFaults()
    faults.fail_at, faults.number = 2, errno.ENOSPC
    faults.step("write", path=PATH)
    with pytest.raises(DiskError) as failed:
        faults.step("write", path=PATH)
    assert failed.value.number == errno.ENOSPC
    faults.step("write", path=PATH)
    assert faults.steps == 3


def test_the_machine_stops_in_an_operation_whose_bytes_may_have_reached_the_disk():
    faults, inode = SimFaults(), Inode(bytearray(b"one"))
    faults.crash_at = 1
    with pytest.raises(SimulatedCrash):
        faults.step("append", torn=(inode, b"two"))
    assert inode.content == b"onetwo"


@pytest.mark.parametrize("fails_late", [False, True])
def test_an_operation_fails_before_its_effect_or_late_after_it(fails_late):
    faults, done = SimFaults(), []
    faults.fail_at, faults.fails_late = 1, fails_late
    with pytest.raises(DiskError) as failed, faults.effect("sync", PATH):
        done.append("synced")
    assert done == ["synced"] * fails_late
    assert failed.value.undone is not fails_late


def test_a_crash_comes_before_the_effect_even_if_operations_fail_late():
    faults, done = SimFaults(), []
    faults.crash_at, faults.fails_late = 1, True
    with pytest.raises(SimulatedCrash), faults.effect("sync", PATH):
        done.append("synced")
    assert done == []


def test_a_call_fails_with_the_number_that_the_fault_returns():
    faults = SimFaults()
    faults.call("reading", PATH)
    faults.fault = lambda what, path: errno.EIO if (what, path) == ("reading", PATH) else None
    with pytest.raises(DiskError, match="reading /a failed"):
        faults.call("reading", PATH)
    faults.call("listing", PATH)
    assert faults.steps == 0
