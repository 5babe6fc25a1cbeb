"""The work that makes appended batches of a partition durable, in the right order.

A `SyncWork` first syncs the files of the segments that have grown, then the directory, if it has new files. Last it
writes the files that describe the log: the summaries of sealed segments (their sizes and checksums), snapshots, the
leader epochs. Recovery relies on these files, so the log must be durable before they are written. If such a file cannot
be written, as on a full disk, a later `SyncWork` writes it: recovery can do without it.

The event loop makes a `SyncWork`, and any thread runs it. Until `finish_work` is called with it, each new `SyncWork`
includes its steps, because it may never have run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stablelog.env.disk import Content, Disk, File
from stablelog.errors import DiskError
from stablelog.log.segments.sealed_segment import SealedSegment
from stablelog.log.segments.segments import LogSegments

LARGE_SIZE = 1 << 18  # a `SyncWork` that writes more bytes must not run on the event loop
Files = Mapping[Path, Content]  # the contents of files in one directory, by path


@dataclass(slots=True, eq=False)
class SyncWork:
    """The steps that make a partition durable up to `end_offset`. Any thread may run them.

    Attributes:
        files: the files that are synced first.
        directory: the directory that is synced next; None if no file was created in it.
        writes: the files that are written last, because they describe a durable log. Each entry has the contents of
            files by path, which are written together. The entries are written one after another.
        release: the base offsets of the sealed segments that become durable by this work. It releases them: their files
            can be closed, and they can be deleted or copied to an object store.
        unwritten: the entries of `writes` that `run` could not write.
        failure: the error because of which `run` has not written all of `writes`; None if all are written.
        sync_failure: the error of the sync that failed in `run`. It stays, because the operating system reports a lost
            write only once: the success of a later sync would prove nothing.
    """

    end_offset: int
    files: Sequence[File]
    disk: Disk
    directory: Path | None
    writes: Sequence[Files]
    release: Sequence[int]
    unwritten: Sequence[Files] = field(default=(), init=False)
    failure: DiskError | None = field(default=None, init=False)
    sync_failure: DiskError | None = None

    def with_older(self, older: "SyncWork") -> "SyncWork":
        """Return a new `SyncWork` with the steps of this one and of an older one, because the older one may not have
        run. The steps sync files, and then write the files that describe the log.
        """
        return replace(
            self,
            files=list(dict.fromkeys([*older.files, *self.files])),
            directory=self.directory or older.directory,
            writes=[*older.writes, *self.writes],
            sync_failure=older.sync_failure,
        )

    @property
    def is_large(self) -> bool:
        """Whether this `SyncWork` writes so many bytes that it would block the event loop for too long."""
        return sum(len(content) for files in self.writes for content in files.values()) > LARGE_SIZE

    def run(self) -> None:
        """Sync the files and the directory, and then write the files that describe the log.

        Raises:
            DiskError: a sync failed, so it is unknown which bytes are durable. If only a file of `writes` cannot be
                written, no error is raised: `unwritten` then has this entry and all that follow.
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
        self.unwritten = self.writes
        self.write()

    def write(self) -> None:
        """Write the files in `unwritten`, in their order, up to the first error. A later call writes the rest."""
        self.failure = None
        for place, files in enumerate(self.unwritten):
            try:
                self.disk.write_together(files)
            except DiskError as error:
                self.unwritten, self.failure = self.unwritten[place:], error
                return
        self.unwritten = ()


class PendingSync:
    """Collects the files that a partition has to sync and to write, and makes `SyncWork` objects from them.

    Args:
        disk: the disk of the partition.
        directory: the partition's directory.
        base_offset: the base offset of the growing segment. All segments before it are durable.

    Attributes:
        names_changed: whether a file was created since the last sync of the directory.
        are_indexes_written: whether the indexes of the growing segment were written to their files, which the next
            `SyncWork` must sync.
    """

    def __init__(self, disk: Disk, directory: Path, base_offset: int) -> None:
        self._disk = disk
        self._directory = directory
        self._from = base_offset  # the base offset of the first segment that may have unsynced bytes
        self.names_changed = False
        self.are_indexes_written = False
        self._writes: list[Files] = []
        # The last `SyncWork` that was made; None after `finish_work` was called with it.
        self._last_work: SyncWork | None = None

    def add_files(self, files: Files) -> None:
        """Let the next `SyncWork` write these files together, after it has made all appended batches durable."""
        self._writes.append(files)

    @property
    def is_idle(self) -> bool:
        """Whether the partition waits for nothing except a sync of the log file: the next `SyncWork` (the steps that
        make appended batches durable) has no other step, and no earlier one can still be running.
        """
        return self._last_work is None and not self.is_more_than_bytes

    @property
    def is_more_than_bytes(self) -> bool:
        """Whether the next `SyncWork` (the steps that make appended batches durable) has more to do than to sync the
        appended bytes of the log file.
        """
        return bool(self._writes) or self.names_changed or self.are_indexes_written

    def make_work(self, segments: LogSegments, synced_offset: int) -> SyncWork:
        """Make the next `SyncWork`, the steps that make the appended batches durable. It includes the work of the last
        one if `finish_work` was not called with that one.

        Args:
            segments: the segments of the log.
            synced_offset: the offset up to which the log is synced.

        Returns:
            The `SyncWork`. Any thread may run it; the caller passes it to `finish_work` after that.
        """
        grown = segments.from_base(self._from)
        writes, self._writes = self._writes, []
        names_changed, self.names_changed = self.names_changed, False
        with_indexes, self.are_indexes_written = bool(writes) or self.are_indexes_written, False
        for segment in grown if with_indexes else ():
            # The files in `writes` describe the index files, so the directory entries of the index files must be
            # durable first.
            names_changed |= segment.growing.names_changed
            segment.growing.names_changed = False
        end_offset = segments.active.end_offset
        work = SyncWork(
            end_offset=end_offset,
            files=[
                file
                for segment in grown
                for file in segment.files_to_sync(log=synced_offset < end_offset, indexes=with_indexes)
            ],
            disk=self._disk,
            directory=self._directory if names_changed else None,
            writes=writes,
            release=[segment.base_offset for segment in grown if isinstance(segment, SealedSegment)],
        )
        self._last_work = work if self._last_work is None else work.with_older(self._last_work)
        return self._last_work

    def sync_log(self, segments: LogSegments) -> None:
        """Sync the log files and the directory at once.

        This call changes no `SyncWork`, because a thread may be running one. Of the files that describe the log, such
        as summaries and snapshots, it writes none, because recovery can do without them.

        Raises:
            DiskError: it is unknown which bytes are durable.
        """
        for segment in segments.from_base(self._from):
            for file in segment.files_to_sync(indexes=False):
                file.sync()
        self._disk.sync_dir(self._directory)

    def finish_work(self, work: SyncWork, segments: LogSegments) -> None:
        """Close the files of the sealed segments that a `SyncWork` has made durable. If it could not write all files
        that describe the log, such as their summaries, close none: the next `SyncWork` writes these files, and the
        segments wait for it.

        Args:
            work: the `SyncWork`, after its `run` has returned without an error.
            segments: the segments of the log.
        """
        if work is self._last_work:
            self._last_work = None
        if work.unwritten:
            self._writes[:0] = work.unwritten
            return
        if self._last_work is None:
            # An idle partition keeps only its log file open, to save file descriptors.
            segments.active.growing.close_files()
        for base_offset in work.release:
            segment = segments[segments.place_of(base_offset)]
            assert isinstance(segment, SealedSegment)
            assert segment.base_offset == base_offset, "only durable segments are deleted"
            segment.mark_durable()
        if work.release:
            self._from = max(self._from, work.release[-1] + 1)
