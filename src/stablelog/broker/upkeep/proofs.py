"""Background proofs (checks) of log files. A start of the broker does not check these files, and a request must not
read them before they are checked.

A *proof* checks a log file's batch headers. A read of an unproven segment raises UnprovenError. The handler of the
fetch requests the proof of the segment, and waits for it at most for the `max_wait_ms` of the fetch. The proof
continues after the fetch has ended, so that a retry finds it complete. Several proofs advance together: the thread does
one piece of each proof in turn.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from stablelog.broker.loop.tasks import Tasks
from stablelog.broker.loop.threads import END, next_in_thread
from stablelog.errors import DamageError, StablelogError, UnavailableError, UnprovenError
from stablelog.log.files.names import LOG
from stablelog.log.partition import Partition

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Proof:
    """The check of one log file's batch headers, in progress."""

    partition: Partition
    pieces: Iterator[None]
    done: "asyncio.Future[None]"


class Proofs:
    """The proofs of log files in progress. A proof checks the batch headers of a file before its first read.

    Args:
        tasks: starts the work.
        on_proven: called with the partition after a proof has ended: either more of the partition can be read now, or
            the proof has found damage.
    """

    def __init__(self, tasks: Tasks, on_proven: Callable[[Partition], None]) -> None:
        self._tasks = tasks
        self._on_proven = on_proven
        # The keys contain the partition, too, because the path alone is not unique: a partition that is deleted and
        # created again has the same paths.
        self._proofs: OrderedDict[tuple[Partition, Path], _Proof] = OrderedDict()
        self._wake = asyncio.Event()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="proofs")
        self._unreadable: set[Path] = set()  # The files that could not be read and whose error was logged.

    def request(self, partition: Partition, unproven: UnprovenError) -> "asyncio.Future[None]":
        """Request the proof of a log file: the check of its batch headers. `unproven` is the error of a read of the
        file, and does the check.

        Returns:
            A future that is done when the proof has ended without finding damage. It fails with DamageError if the file
            is damaged, and with DiskError if it cannot be read.
        """
        key = partition, unproven.path
        proof = self._proofs.get(key)
        if proof is None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            proof = self._proofs[key] = _Proof(partition, unproven.prove(), future)
            self._wake.set()
        return proof.done

    def start(self) -> None:
        """Start a task that carries out the requested proofs (checks of log files) until the broker stops."""
        self._tasks.start("proofs", self._run)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._proofs:
                (partition, path), proof = next(iter(self._proofs.items()))
                self._proofs.move_to_end((partition, path))
                try:
                    if partition.availability.is_closed:
                        raise UnavailableError(
                            f"{path} was closed before the broker had checked its batch headers, so it cannot be "
                            "read yet: send the request again"
                        )
                    piece = await next_in_thread(self._threads, proof.pieces)
                except StablelogError as error:
                    self._failed(path, proof, error)
                except Exception as error:  # noqa: BLE001 - the exception fails this partition only
                    self._tasks.report_unexpected(
                        "proofs", self._tasks.partition_scope(proof.partition), error
                    )
                    self._failed(
                        path,
                        proof,
                        UnavailableError(
                            f"the check of {path} failed unexpectedly: the log has the traceback"
                        ),
                    )
                else:
                    if piece is END:
                        del self._proofs[partition, path]
                        proof.done.set_result(None)
                        self._on_proven(proof.partition)

    def _failed(self, path: Path, proof: _Proof, error: StablelogError) -> None:
        del self._proofs[proof.partition, path]
        if isinstance(error, DamageError) or proof.partition.availability.is_closed:
            segments = [] if proof.partition.availability.is_closed else proof.partition.segments()
            if any(segment.path(LOG) == path and segment.proof.damage is not None for segment in segments):
                log.error("%s-%d: %s", proof.partition.topic, proof.partition.index, error)
            else:
                error = UnavailableError(
                    f"{path} was deleted or compacted while the broker checked its batch headers, so it was not "
                    "read: send the request again"
                )
            self._on_proven(proof.partition)
        elif path not in self._unreadable:
            self._unreadable.add(path)
            log.error(
                "the batch headers of a segment of %s-%d cannot be checked; the broker tries again: %s",
                proof.partition.topic,
                proof.partition.index,
                error,
            )
        proof.done.set_exception(error)
        # Mark the error as seen: if no fetch waits for the proof any more, asyncio would log the error as never
        # retrieved. The next read of the file finds the error again.
        proof.done.exception()

    def close(self) -> None:
        """Shut down the thread that reads log files; proofs (checks of log files) in progress are abandoned."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for proof in self._proofs.values():
            proof.done.cancel()
        self._proofs.clear()
