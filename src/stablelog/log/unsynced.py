"""The work that makes more of a partition durable, in its order.

First the files of the segments that have grown are synced, then the names of new ones, and at last the files are
written that describe the log: a segment's summary, a snapshot of producers, the leader epochs. Such a file is true
only once the log is durable, so that recovery may rely on all that it describes. A file that cannot be written, as on
a full disk, is written with a later work: the log is durable without it, and recovery can rebuild it.

A work is handed out on the event loop and run in any thread. Until `done` is called with it, the next one includes
it: a stop may have come in between.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stablelog.env.disk import Content, Disk, File
from stablelog.errors import DiskError
from stablelog.log.segments import Segments

LARGE_SIZE = 1 << 18  # bytes
Files = Mapping[Path, Content]  # of one directory


@dataclass(slots=True, eq=False)
class SyncWork:
    """What has to be done so that a partition is durable up to `end_offset`. Safe to run in any thread.

    Attributes:
        files: to be synced first.
        directory: to be synced then, if names changed in it.
        writes: to be written at last, in order: each is true only once the log is durable. Files of one entry are
            written together.
        release: bases of sealed segments that need not stay open afterwards.
        unwritten: set by `run`: those of `writes` that are not written, because of `failure`.
        failure: set by `run`: why not all of `writes` are written; None if they are.
        sync_failure: set by `run`: the sync that failed. The system tells a lost write once: no later sync proves anything.
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
        """This work, and one before it that may not have been run."""
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
        """Whether it writes so much that the event loop must not wait for it."""
        return sum(len(content) for files in self.writes for content in files.values()) > LARGE_SIZE

    def run(self) -> None:
        """Do it.

        Raises:
            DiskError: which bytes are durable is not known. A file of `writes` that could not be written is no
                error: it is in `unwritten` with all behind it.
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
    """What of a partition is not durable yet.

    Args:
        disk: where the partition lies.
        directory: its own.
        base_offset: of the segment that grows; all before it is durable.
    """

    def __init__(self, disk: Disk, directory: Path, base_offset: int) -> None:
        self._disk = disk
        self._directory = directory
        self._from = base_offset  # the first segment that a sync has to look at
        self._names_changed = False
        self._are_indexes_written = False
        self._writes: list[Files] = []
        self._handed_out: SyncWork | None = None  # until it is known to have been run

    def write(self, files: Files) -> None:
        """Have these files written, together, once all that was appended so far is durable."""
        self._writes.append(files)

    def names_changed(self) -> None:
        """A file was made."""
        self._names_changed = True

    def indexes_written(self) -> None:
        """The index files of the growing segment have all that memory holds: have them synced, too."""
        self._are_indexes_written = True

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be synced or written, but for what grew since the last work."""
        return self._handed_out is None and not self.is_more_than_bytes

    @property
    def is_more_than_bytes(self) -> bool:
        """Whether there is more to do than to sync what grew."""
        return bool(self._writes) or self._names_changed or self._are_indexes_written

    def work(self, segments: Segments, synced_offset: int) -> SyncWork:
        """What has to be done now, where the log is known to be synced up to an offset."""
        grown = segments.from_base(self._from)
        writes, self._writes = self._writes, []
        names_changed, self._names_changed = self._names_changed, False
        with_indexes, self._are_indexes_written = bool(writes) or self._are_indexes_written, False
        for segment in grown if with_indexes else ():
            # What is written relies on the indexes, so they have to be there with their names.
            names_changed, segment.names_changed = names_changed or segment.names_changed, False
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

        A work that is handed out stays what it is: it may be running in another thread meanwhile. Nor is any of the files
        written that describe the log: recovery rebuilds them.

        Raises:
            DiskError: which bytes are durable is not known.
        """
        for segment in segments.from_base(self._from):
            for file in segment.files_to_sync(indexes=False):
                file.sync()
        self._disk.sync_dir(self._directory)

    def done(self, work: SyncWork, segments: Segments) -> None:
        """Take note that a work was run. Sealed segments are released once all that describes them is written."""
        if work is self._handed_out:
            self._handed_out = None
        if work.unwritten:
            self._writes[:0] = work.unwritten
            return
        if self._handed_out is None:
            segments.active.close_index_files()  # an idle partition keeps its log file open, and no more
        for base_offset in work.release:
            segment = segments[segments.place_of(base_offset)]
            assert segment.base_offset == base_offset, "only durable segments are deleted"
            segment.settled()
        if work.release:
            self._from = max(self._from, work.release[-1] + 1)
