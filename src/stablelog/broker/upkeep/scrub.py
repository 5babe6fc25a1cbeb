"""Scrub: reads all segments in the background and checks the CRC of every batch.

At the first read of a segment after a start, its proof checks only the batch headers. The scrub finds bytes that the
disk has changed in batch bodies, and in segments that no request has read. A fetch may return a damaged batch until the
scrub has read the batch. From then on the broker refuses fetches of the batch. The scrub logs each damaged batch with
its file and offset, and counts it in a metric.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from stablelog.broker.loop.tasks import Tasks
from stablelog.broker.loop.threads import END, next_in_thread
from stablelog.broker.topics.open_partitions import OpenPartitions
from stablelog.errors import DamageError, DiskError
from stablelog.log.files.names import LOG
from stablelog.log.partition import Partition
from stablelog.log.segments.proof import DamagedBatch
from stablelog.log.segments.segment import Segment

log = logging.getLogger(__name__)

# The number of seconds between two passes over all segments, so that a small log is not read all the time.
PASS_PAUSE_S = 60.0


class Scrub:
    """Scrubs the partitions of a broker (reads their segments and checks the CRC of each batch), one segment after the
    other, at a limited rate.

    Args:
        rate: returns the number of bytes to read in a second; 0 pauses the scrub.

    Attributes:
        read_size: the number of bytes that the scrub has read since the start.
    """

    def __init__(self, partitions: OpenPartitions, tasks: Tasks, rate: Callable[[], int]) -> None:
        self._partitions = partitions
        self._tasks = tasks
        self._rate = rate
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="scrub")
        # The number of bytes read and of damaged batches in the last pass that was logged.
        self._told = (0, 0)
        self.read_size = 0

    def start(self) -> None:
        """Start a task that scrubs (checks the CRC of all batches), pass after pass, while the rate is not 0. The first
        pass begins at once.
        """
        if self._rate():
            self._tasks.every("scrub", PASS_PAUSE_S, self.scrub_all, first_at_once=True)

    async def scrub_all(self) -> None:
        """Read every segment once, and check its batches. Of a growing segment, read the part that exists at that time.

        The result of the pass is logged: at level DEBUG if the pass reads no bytes, or has the same result as the pass
        before.
        """
        loop = asyncio.get_running_loop()
        began_s, before = loop.time(), self.read_size
        count = 0
        for partition in self._partitions:
            for segment in partition.segments():
                # Skip a partition that was deleted since the last await: such a partition is closed and counts as
                # failed.
                if partition.failure is None:
                    await self.scrub_segment(partition, segment)
                    count += 1
        size = self.read_size - before
        damaged_count = sum(partition.log.segments.damaged_count for partition in self._partitions)
        is_told = size > 0 and (size, damaged_count) != self._told
        self._told = size, damaged_count
        log.log(
            logging.INFO if is_told else logging.DEBUG,
            "scrub: read %d segments, %d bytes, in %d s; %d batches or segments are damaged",
            count,
            size,
            loop.time() - began_s,
            damaged_count,
        )

    async def scrub_segment(self, partition: Partition, segment: Segment) -> None:
        """Read one segment, and check the CRC of each batch. A disk error is logged; the next pass tries again."""
        try:
            await self._read(partition, segment, self._proof_sizes(segment))
            await self._read(partition, segment, segment.scrub())
        except FileNotFoundError:
            if partition.has_segment(segment):
                log.error(
                    "scrub: %s is missing, although its data was durable. Restore the file", segment.path(LOG)
                )
        except (DamageError, DiskError) as error:
            if partition.has_segment(segment):
                log.error(
                    "scrub: a segment of %s-%d cannot be read: %s", partition.topic, partition.index, error
                )
        except Exception as error:  # noqa: BLE001 - the exception fails this partition only
            if partition.availability.is_closed:
                return  # The partition was deleted, and its paths may belong to files of another topic now.
            self._tasks.report_unexpected("scrub", self._tasks.partition_scope(partition), error)

    @staticmethod
    def _proof_sizes(segment: Segment) -> Iterator[int]:
        """Check the batch headers of a segment (its proof) if no request has done so yet.

        Yields:
            0 after each piece of the work. These bytes are not counted here, because the scrub counts them when it
            checks the whole batches.
        """
        for _ in segment.prove():
            yield 0

    async def _read(
        self, partition: Partition, segment: Segment, pieces: Iterator[int | DamagedBatch]
    ) -> None:
        while (piece := await next_in_thread(self._threads, pieces)) is not END:
            if partition.availability.is_closed:
                return
            if isinstance(piece, DamagedBatch):
                if partition.has_segment(segment) and segment.add_damaged_batch(piece):
                    log.error(
                        "scrub: %s has a damaged batch, which fetches now refuse: %s",
                        segment.path(LOG),
                        piece,
                    )
                continue
            self.read_size += piece
            await self._pause(piece)

    async def _pause(self, size: int) -> None:
        """Pause after a read of `size` bytes, for as long as the permitted rate of bytes per second demands."""
        await asyncio.sleep(size / max(self._rate(), 1))

    def close(self) -> None:
        """Shut down the thread that reads segments."""
        self._threads.shutdown(wait=True, cancel_futures=True)
