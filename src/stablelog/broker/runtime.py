"""Runtime: what all parts of one broker share, such as its settings, disk, clock, tasks and flush."""

from dataclasses import dataclass
from pathlib import Path

from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.broker.durability.flush import GroupFlush
from stablelog.broker.loop.tasks import Tasks
from stablelog.broker.settings.config import BrokerConfig
from stablelog.env.clock import Clock
from stablelog.env.disk import Disk


@dataclass(frozen=True, slots=True, eq=False)
class Runtime:
    """The runtime of one broker: the objects that its parts share. Each part keeps references to those that it uses.

    Attributes:
        config: the settings of the broker.
        disk: the disk of the data directory.
        directory: the data directory.
        clock: broker time, which never goes back, and the wall clock.
        reserve: reports whether the disk is full, and frees disk space for work that must succeed then.
        tasks: starts background work, runs the work of a request to its end, and handles unexpected exceptions.
        flush: makes appended batches durable, with one fsync for all that wait.
    """

    config: BrokerConfig
    disk: Disk
    directory: Path
    clock: Clock
    reserve: DiskReserve
    tasks: Tasks
    flush: GroupFlush
