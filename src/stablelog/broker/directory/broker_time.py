"""The file `broker-time`, by which broker time continues across restarts.

The broker keeps many times in its logs and snapshots: the start of a transaction, the last write of a producer, the
commit of an offset. They are broker time (`env.clock`). If the wall clock was set while the broker ran, broker time and
wall clock differ. If the next start began broker time at the wall clock, all these times would seem older or younger by
this difference. The file contains both times, as the last broker read them. The next start adds to broker time only the
time that has passed on the wall clock since then.

If the file is missing or not whole, broker time begins at the wall clock.

A machine without a battery for its clock starts with a wall clock that is years behind. If the file recorded this wrong
time, the next start with a right clock would add those years to broker time, and all sessions, transactions and offsets
would expire. So while the wall clock is earlier than the time in the file, the broker does not record the wall clock.
Instead, it records the time in the file plus the time that has passed since the start, until the wall clock is set or
shows a later time.

Format: docs/reference/formats.md, "broker-time".
"""

import logging
import re
from functools import partial
from pathlib import Path

from stablelog.broker.loop.threads import in_thread_to_its_end
from stablelog.env.clock import Clock
from stablelog.env.disk import Disk
from stablelog.errors import DiskError

log = logging.getLogger(__name__)

BROKER_TIME_FILE = "broker-time"
CONTENT = re.compile(rb"0\n(\d{1,15})\n(\d{1,15})\n")


def read_broker_time(disk: Disk, directory: Path) -> tuple[int, int] | None:
    """Return the two times in the file `broker-time` of a data directory, as a broker last recorded them: broker time
    (its clock for durations) and the wall clock, both in ms. None if the file is missing or not whole.
    """
    try:
        whole = CONTENT.fullmatch(disk.read_bytes(directory / BROKER_TIME_FILE))
    except FileNotFoundError:
        return None
    return None if whole is None else (int(whole[1]), int(whole[2]))


class BrokerTime:
    """The broker time of one data directory, and the file that keeps it. Broker time measures durations, and never goes
    back.

    Args:
        directory: the data directory.
    """

    def __init__(self, clock: Clock, disk: Disk, directory: Path) -> None:
        self._clock = clock
        self._disk = disk
        self._path = directory / BROKER_TIME_FILE
        # How far the wall clock must be ahead of broker time, in ms, if the file is right and the present wall clock is
        # behind; None if the present wall clock counts.
        self._least_ahead_ms: int | None = None

    def resume(self) -> None:
        """Set broker time (the clock for durations, which never goes back) to the broker time in the file, plus the
        time that has passed since the file was written.

        The wall clock tells how much time has passed. If it is earlier now than in the file, no time is added.
        """
        recorded = read_broker_time(self._disk, self._path.parent)
        if recorded is None:
            return
        now_ms, wall_ms = recorded
        passed_ms = self._clock.wall_ms() - wall_ms
        if passed_ms < 0:
            self._least_ahead_ms = wall_ms - now_ms
            log.warning(
                "the machine's clock is %.1f s before the time at which a broker last used %s: the clock was wrong then, "
                "or is wrong now. Set the clock right: new records get its time. Timeouts do not depend on the clock",
                -passed_ms / 1000,
                self._path.parent,
            )
        self._clock.continue_at(now_ms + max(passed_ms, 0))

    def clock_was_set(self) -> None:
        """Take note that the wall clock was set just now. From now on `record` writes its time into the file
        `broker-time`, even if this time is earlier than the one in the file.
        """
        self._least_ahead_ms = None

    def record(self) -> None:
        """Write the present broker time (a clock for durations, which never goes back) and the wall clock into the file
        `broker-time`, which is durable on return.

        A disk error is only logged, because the next start can also continue from the times of the earlier file. The
        disk reserve, space that the broker keeps for a full disk, is not used for this file: ends of transactions and
        deletions depend on that space.
        """
        try:
            self._disk.write_atomic(self._path, self._content())
        except DiskError as error:
            _log_unrecorded(error)

    async def record_in_thread(self) -> None:
        """Write the present broker time (a clock for durations, which never goes back) and the wall clock into the file
        `broker-time`, in a thread, so that the event loop does not wait for the disk. The file is durable when this
        method ends. A disk error is only logged: see `record`.
        """
        write = partial(self._disk.write_atomic, self._path, self._content())
        try:
            await in_thread_to_its_end(None, write)
        except DiskError as error:
            _log_unrecorded(error)

    def _content(self) -> bytes:
        now_ms, wall_ms = self._clock.now_ms(), self._clock.wall_ms()
        if self._least_ahead_ms is not None:
            wall_ms = max(wall_ms, now_ms + self._least_ahead_ms)
        return f"0\n{now_ms}\n{wall_ms}\n".encode()


def _log_unrecorded(error: DiskError) -> None:
    log.warning(
        "the broker's time (its clock for durations) cannot be recorded: %s. This matters only "
        "if the machine's clock was set while the broker ran",
        error,
    )
