"""The work that makes more of a partition durable, in its order.

A work first syncs the files of the segments that have grown, then the directory with the names of new files. Last it
writes the files that describe the log: a segment's summary, a snapshot, the leader epochs. Recovery relies on what such
a file says, so the log has to be durable before the file is written. If a file cannot be written, as on a full disk, a
later work writes it: the log is durable without it, and recovery can rebuild it.

A work is made on the event loop and run in any thread. Until `done` is called with it, the next work includes it,
because the first one may never have run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stablelog.env.disk import Content, Disk, File
from stablelog.errors import DiskError
from stablelog.log.segments.segments import Segments

LARGE_SIZE = 1 << 18  # bytes
Files = Mapping[Path, Content]  # of one directory


@dataclass(slots=True, eq=False)
class SyncWork:
    """The work that makes a partition durable up to `end_offset`. Safe to run in any thread.

    Attributes:
        files: are synced first.
        directory: is synced then; None if no name changed in it.
        writes: are written last, in order, because they describe a durable log. Files of one entry are written together.
        release: bases of sealed segments that need not stay open afterwards.
        unwritten: set by `run`: those of `writes` that are not written, because of `failure`.
        failure: set by `run`: why not all of `writes` are written; None if they are.
        sync_failure: set by `run`: the sync that failed. The system reports a lost write once, so no later sync counts.
    """

    end_offset: int
    files: Sequence[File]
    disk: Disk
    directory: Path | None
    writes: Sequence[Files]
    release: Sequence[int]
    unwritten: Sequence[Files] = field(default=(), init=False)
    failure: DiskError | None = field(default=None, init=False)
    sync_failure: DiskError | None = field(default=None, init=False)

    def with_older(self, older: "SyncWork") -> "SyncWork":
        """This work together with an older one that may not have run."""
        both = replace(
            self,
            files=list(dict.fromkeys([*older.files, *self.files])),
            directory=self.directory or older.directory,
            writes=[*older.writes, *self.writes],
        )
        both.sync_failure = older.sync_failure
        return both

    @property
    def is_large(self) -> bool:
        """Whether the work writes more than the event loop may wait for."""
        return sum(len(content) for files in self.writes for content in files.values()) > LARGE_SIZE

    def run(self) -> None:
        """Run the work.

        Raises:
            DiskError: a sync failed: which bytes are durable is not known. A file of `writes` that cannot be written is
                no error: `unwritten` has it and all that follow.
        """
        if self.sync_failure is not None:
            raise self.sync_failure
        try:
            for file in self.files:
                file.sync()
            if self.directory is not None:
                self.disk.sync_dir(self.directory)
        except DiskError as error:
            self.sync_failure = error
            raise
        for place, files in enumerate(self.writes):
            try:
                self.disk.write_together(files)
            except DiskError as error:
                self.unwritten, self.failure = self.writes[place:], error
                return


class Unsynced:
    """Collects what of a partition is not durable yet.

    Args:
        disk: where the partition lies.
        directory: its own.
        base_offset: of the segment that grows; all before it is durable.

    Attributes:
        names_changed: a file was made whose name is not durable.
        are_indexes_written: the index files of the growing segment are complete, and the next work syncs them, too.
    """

    def __init__(self, disk: Disk, directory: Path, base_offset: int) -> None:
        self._disk = disk
        self._directory = directory
        self._from = base_offset  # the first segment that a sync has to look at
        self.names_changed = False
        self.are_indexes_written = False
        self._writes: list[Files] = []
        self._handed_out: SyncWork | None = None  # until it is known to have been run

    def write(self, files: Files) -> None:
        """Write these files, together, when all that was appended so far is durable."""
        self._writes.append(files)

    @property
    def is_idle(self) -> bool:
        """Whether only appended bytes are to be synced, and no work is under way."""
        return self._handed_out is None and not self.is_more_than_bytes

    @property
    def is_more_than_bytes(self) -> bool:
        """Whether there is more to do than to sync appended bytes."""
        return bool(self._writes) or self.names_changed or self.are_indexes_written

    def work(self, segments: Segments, synced_offset: int) -> SyncWork:
        """Make the work that is due, for a log that is synced up to an offset."""
        grown = segments.from_base(self._from)
        writes, self._writes = self._writes, []
        names_changed, self.names_changed = self.names_changed, False
        with_indexes, self.are_indexes_written = bool(writes) or self.are_indexes_written, False
        for segment in grown if with_indexes else ():
            # The files that are written rely on the indexes, so these need durable names.
            names_changed |= segment.growing.names_changed
            segment.growing.names_changed = False
        end_offset = segments.active.end_offset
        files = [
            file
            for segment in grown
            for file in segment.files_to_sync(log=synced_offset < end_offset, indexes=with_indexes)
        ]
        work = SyncWork(
            end_offset=end_offset,
            files=files,
            disk=self._disk,
            directory=self._directory if names_changed else None,
            writes=writes,
            release=[segment.base_offset for segment in grown if segment.sealed],
        )
        self._handed_out = work if self._handed_out is None else work.with_older(self._handed_out)
        return self._handed_out

    def sync_log(self, segments: Segments) -> None:
        """Make the log durable up to its end at once: its bytes, and the names of its files.

        This changes no work that is under way, because that may run in another thread. It writes none of the files that
        describe the log: recovery rebuilds them.

        Raises:
            DiskError: which bytes are durable is not known.
        """
        for segment in segments.from_base(self._from):
            for file in segment.files_to_sync(indexes=False):
                file.sync()
        self._disk.sync_dir(self._directory)

    def done(self, work: SyncWork, segments: Segments) -> None:
        """Note that a work was run. Sealed segments are released when all files that describe them are written."""
        if work is self._handed_out:
            self._handed_out = None
        if work.unwritten:
            self._writes[:0] = work.unwritten
            return
        if self._handed_out is None:
            segments.active.growing.close_files()  # an idle partition keeps its log file open, and no more
        for base_offset in work.release:
            segment = segments[segments.place_of(base_offset)]
            assert segment.base_offset == base_offset, "only durable segments are deleted"
            segment.settled()
        if work.release:
            self._from = max(self._from, work.release[-1] + 1)
