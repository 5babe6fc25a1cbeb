"""The disk reserve: taken when there is room, given up step by step, and taken back as a whole."""

import asyncio
import errno
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.durability.disk_reserve import (
    CALL_SIZE_MAX,
    MARGIN_SIZE_MIN,
    STEP_COUNT,
    DiskReserve,
)
from stablelog.data_directory.names import RESERVE_FILE
from stablelog.errors import DiskError, RefusedError
from stablelog.testing.sim_disk import SimDisk
from tests.declared_apis import WHILE_FULL

HERE = Path("/data")
PATH = HERE / RESERVE_FILE
SIZE = 160_000
STEP = SIZE // STEP_COUNT


def full_call(disk, what="writing"):
    raise DiskError(f"{what} something failed", errno.ENOSPC)


def made(disk=None, *, size=SIZE, capacity=None):
    disk = disk or SimDisk()
    disk.make_dir(HERE)
    disk.capacity = capacity
    reserve = DiskReserve(disk, HERE, size)
    reserve.open()
    return disk, reserve


def restored(reserve):
    return asyncio.run(reserve.restore())


def test_a_new_directory_has_the_reserve_and_takes_writes():
    disk, reserve = made()
    assert disk.size(PATH) == SIZE
    assert not reserve.is_full
    for while_full in WHILE_FULL.values():
        reserve.check(while_full)


@pytest.mark.parametrize("left", [0, SIZE // 2, SIZE, SIZE + MARGIN_SIZE_MIN - 1])
def test_where_the_reserve_and_its_margin_do_not_fit_no_writes_are_taken_until_they_do(left):
    disk, reserve = made(capacity=left)
    assert reserve.is_full
    assert not restored(reserve)
    disk.capacity = SIZE + MARGIN_SIZE_MIN
    assert restored(reserve)
    assert not reserve.is_full
    assert disk.size(PATH) == SIZE


def test_work_that_must_go_on_gets_room_in_steps_and_only_as_much_as_it_needs():
    disk, reserve = made()
    disk.capacity = SIZE
    reserve.write_atomic(HERE / "small", bytes(10))
    assert reserve.is_full
    assert disk.size(PATH) == SIZE - STEP
    reserve.write_atomic(HERE / "larger", bytes(2 * STEP))
    assert disk.size(PATH) == SIZE - 3 * STEP
    with pytest.raises(DiskError):
        reserve.write_atomic(HERE / "too large", bytes(SIZE))
    assert disk.size(PATH) == 0


def test_the_last_quarter_is_for_what_frees_room():
    disk, reserve = made()
    disk.capacity = SIZE
    with pytest.raises(DiskError):
        reserve.attempt(lambda: disk.write_atomic(HERE / "decision", bytes(SIZE)))
    assert disk.size(PATH) == SIZE // 4
    disk.capacity = disk.size(PATH)
    reserve.attempt(lambda: disk.write_atomic(HERE / "list of topics", bytes(STEP)), frees=True)
    assert disk.size(PATH) == SIZE // 4 - STEP


def test_it_is_taken_back_whole_and_with_a_margin_before_writes_are_taken():
    disk, reserve = made()
    disk.capacity = SIZE
    reserve.write_atomic(HERE / "small", bytes(STEP))
    disk.capacity = SIZE + STEP + MARGIN_SIZE_MIN - 1
    assert not restored(reserve)
    disk.capacity += 1
    assert restored(reserve)
    assert disk.size(PATH) == SIZE


def full_of(disk, reserve, *sizes):
    """Have writes of these sizes fail, for lack of room."""
    file = disk.open(HERE / "log", create=True)
    for size in sizes:
        with pytest.raises(DiskError) as raised:
            file.append(bytes(size))
        assert reserve.record_failure(raised.value)
    file.close()


def test_the_margin_is_larger_by_the_largest_write_that_failed_until_there_is_room_for_it():
    disk, reserve = made(capacity=SIZE + MARGIN_SIZE_MIN)
    assert not reserve.is_full
    full_of(disk, reserve, 3_000_000, MARGIN_SIZE_MIN + 1)
    needed = 3_000_000 + MARGIN_SIZE_MIN
    assert f"{needed} bytes can be written" in reserve.state()
    disk.capacity = SIZE + needed - 1
    assert not restored(reserve)
    assert disk.size(PATH) == SIZE
    disk.capacity += 1
    assert restored(reserve)
    assert disk.size(PATH) == SIZE
    # That write is forgotten: a small one that fails later has its own margin.
    disk.capacity = SIZE + MARGIN_SIZE_MIN
    full_of(disk, reserve, MARGIN_SIZE_MIN + 1)
    disk.capacity += MARGIN_SIZE_MIN
    assert not restored(reserve)
    disk.capacity += 1
    assert restored(reserve)


def test_a_write_that_can_never_succeed_does_not_keep_the_disk_full():
    disk, reserve = made(capacity=SIZE + MARGIN_SIZE_MIN)
    full_of(disk, reserve, 2 * CALL_SIZE_MAX)
    disk.capacity += CALL_SIZE_MAX
    assert restored(reserve)


def test_work_that_must_go_on_gets_the_room_of_a_margin_that_is_being_written():
    disk, reserve = made(capacity=SIZE + MARGIN_SIZE_MIN)
    full_of(disk, reserve, 3_000_000)
    disk.capacity = SIZE + MARGIN_SIZE_MIN + 3_000_000

    async def life():
        restoring = asyncio.create_task(reserve.restore())
        async with asyncio.timeout(60):
            while disk.size(PATH) <= SIZE:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0)
        reserve.attempt(lambda: disk.write_atomic(HERE / "decision", bytes(2_500_000)))
        return await restoring

    assert not asyncio.run(life())
    assert disk.size(PATH) == SIZE
    disk.capacity += 2_500_000
    assert restored(reserve)


def test_a_margin_that_a_quota_does_not_give_leaves_the_reserve_as_large_as_it_was():
    disk, reserve = made()
    disk.fault = lambda what, _path: errno.EDQUOT if what == "writing" else None
    full_of(disk, reserve, 3_000_000)
    disk.fault = lambda what, _path: (
        errno.EDQUOT if what == "writing" and disk.size(PATH) > SIZE + 2_000_000 else None
    )
    assert not restored(reserve)
    assert disk.size(PATH) == SIZE
    disk.fault = None
    assert restored(reserve)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_call_without_room_is_noted_also_as_the_cause_of_another_error(number):
    _, reserve = made()
    assert not reserve.record_failure(DiskError("syncing something failed", errno.EIO))
    assert not reserve.record_failure(RefusedError(ErrorCode.invalid_request, "no"))
    assert not reserve.record_failure(None)
    assert not reserve.is_full
    refused = RefusedError(ErrorCode.kafka_storage_error, "no")
    refused.__cause__ = DiskError("writing something failed", number)
    assert reserve.record_failure(refused)
    assert reserve.is_full


def test_other_errors_and_what_is_not_undone_are_not_tried_again():
    disk, reserve = made()
    for error in (
        DiskError("writing something failed", errno.EIO),
        DiskError("writing something failed", errno.ENOSPC, undone=False),
    ):
        calls = []

        def work(calls=calls, error=error):
            calls.append(True)
            raise error

        with pytest.raises(DiskError):
            reserve.attempt(work)
        assert calls == [True]
    assert disk.size(PATH) == SIZE


@pytest.mark.parametrize("api", WHILE_FULL)
def test_each_write_of_a_client_is_refused_with_a_code_that_is_retried(api):
    _, reserve = made()
    reserve.record_failure(DiskError("writing something failed", errno.ENOSPC))
    while reserve.release(frees=True):
        pass
    with pytest.raises(RefusedError, match="the disk of /data is full") as refused:
        reserve.check(WHILE_FULL[api])
    assert refused.value.code is WHILE_FULL[api].code


def test_groups_and_their_offsets_are_served_as_long_as_half_is_left():
    _, reserve = made()
    reserve.record_failure(DiskError("writing something failed", errno.ENOSPC))
    for _ in range(STEP_COUNT // 2 - 1):
        reserve.release()
        reserve.check(WHILE_FULL["OffsetCommit"])
        reserve.check(WHILE_FULL["JoinGroup"])
        with pytest.raises(RefusedError):
            reserve.check(WHILE_FULL["Produce"])
    reserve.release()
    with pytest.raises(RefusedError):
        reserve.check(WHILE_FULL["OffsetCommit"])


def test_without_a_reserve_the_disk_is_full_until_something_can_be_written():
    disk, reserve = made(size=0)
    assert not reserve.is_full
    with pytest.raises(DiskError):
        reserve.attempt(lambda: full_call(disk))
    assert reserve.is_full
    disk.fault = lambda what, _path: errno.EDQUOT if what == "writing" else None
    assert not restored(reserve), "a quota is not in the free size"
    disk.fault = None
    assert restored(reserve)
    assert disk.size(PATH) == 0


def test_a_reserve_that_was_given_up_is_known_after_a_restart():
    disk, reserve = made()
    disk.capacity = SIZE
    reserve.write_atomic(HERE / "small", bytes(STEP))
    reserve.close()
    again = DiskReserve(disk, HERE, SIZE)
    again.open()
    assert again.is_full
    again.write_atomic(HERE / "more", bytes(STEP))
    disk.capacity = None
    assert restored(again)


def test_a_smaller_setting_gives_back_what_is_too_much_and_a_larger_one_takes_more():
    disk, reserve = made()
    reserve.close()
    for size in (SIZE // 2, SIZE * 2, 0):
        reserve = DiskReserve(disk, HERE, size)
        reserve.open()
        assert restored(reserve)
        assert disk.size(PATH) == size
        reserve.close()


def test_room_is_logged_only_after_the_log_has_said_that_the_disk_is_full(caplog):
    caplog.set_level("INFO")
    disk, reserve = made()
    reserve.close()
    larger = DiskReserve(disk, HERE, SIZE * 2)
    larger.open()
    assert restored(larger)
    larger.close()
    assert "has space again" not in caplog.text
    disk.capacity = SIZE * 3
    largest = DiskReserve(disk, HERE, SIZE * 4)
    largest.open()
    assert not restored(largest)
    for _ in range(2):
        largest.log_full()
    assert caplog.text.count("the disk of /data is full") == 1
    disk.capacity = None
    assert restored(largest)
    assert caplog.text.count("the disk of /data has space again") == 1


def test_a_reserve_that_cannot_be_written_for_another_reason_says_so_once(caplog):
    disk = SimDisk()
    disk.fault = lambda what, path: errno.EIO if path == PATH and what != "looking for" else None
    _, reserve = made(disk)
    for _ in range(3):
        assert not restored(reserve)
    assert caplog.text.count("cannot be written to its whole size") <= 2  # once for each call that fails
    disk.fault = None
    assert restored(reserve)


def test_a_file_whose_failed_write_could_not_be_undone_is_opened_again():
    disk, reserve = made()
    reserve.record_failure(DiskError("writing something failed", errno.ENOSPC))
    reserve.release()
    disk.fault, disk.fails_late = lambda what, _path: errno.ENOSPC if what == "writing" else None, True
    assert not restored(reserve)
    disk.fault, disk.fails_late = None, False
    assert restored(reserve)
    assert disk.size(PATH) == SIZE


def test_without_inodes_nothing_is_released_and_the_disk_stays_full_until_a_file_can_be_made(caplog):
    caplog.set_level("INFO")
    disk, reserve = made()
    disk.fault = lambda what, path: errno.ENOSPC if what in ("opening", "writing") and path != PATH else None
    for _ in range(5):
        with pytest.raises(DiskError):
            reserve.write_atomic(HERE / "checkpoint", b"x")
        assert reserve.is_full
        assert disk.size(PATH) == SIZE
        assert not restored(reserve)
        assert reserve.is_full
    disk.fault = None
    assert restored(reserve)
    reserve.write_atomic(HERE / "checkpoint", b"x")
    assert {path.name for path in disk.files(HERE)} == {RESERVE_FILE, "checkpoint"}
    assert (caplog.text.count("is full"), caplog.text.count("has space again")) == (1, 1)


def test_what_a_quota_says_is_not_judged_by_the_free_size():
    disk, reserve = made()
    disk.fault = lambda what, path: errno.EDQUOT if path != PATH and disk.size(PATH) > SIZE // 2 else None
    reserve.write_atomic(HERE / "checkpoint", b"x")
    assert disk.size(PATH) == SIZE // 2
