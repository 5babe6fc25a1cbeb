"""Verification of one partition: its segments in their order, then the files that concern the whole log."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from stablelog.env.disk import Disk, read_if_there
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.files.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.files.listing import Listing
from stablelog.log.files.log_start import LOG_START_FILE, read_log_start
from stablelog.log.files.names import LOG, SUMMARY, first_segment_path, is_summary, log_offsets, offset_of
from stablelog.log.indexes.summary import Summary
from stablelog.log.recovery.formats import check_formats
from stablelog.log.recovery.plan import NEVER
from stablelog.log.verify.segment import SegmentProof
from stablelog.log.verify.snapshots import SnapshotProof
from stablelog.log.verify.state import FileFinding, LogState


def verify_directory(
    disk: Disk, directory: Path, *, recovery_point: int = 0, gapless_epoch: int = NEVER
) -> Iterator[FileFinding]:
    """Compare the files of a partition with its log, and yield what contradicts it.

    Args:
        disk: the disk of the partition.
        directory: the partition's directory.
        recovery_point: the offset up to which the log was synced, exclusive, as the broker had recorded it before this
            call. The log must reach it.
        gapless_epoch: a leader epoch. Batches of this epoch and of later ones follow each other without a gap in the
            growing segment, so a gap between two of them means lost records.
    """
    try:
        check_formats(Listing(disk, directory))
    except UnknownFormatError as newer:  # a file in an unknown format cannot be verified
        yield FileFinding(Path(newer.place), str(UnknownFormatError(newer.what, newer.found, newer.known)))
        return
    names = disk.list_dir(directory)
    bases = log_offsets(names)
    state = LogState(disk, directory)
    log_start = None
    try:
        log_start = read_log_start(disk, directory / LOG_START_FILE)
    except DamageError as error:
        path = directory / LOG_START_FILE
        yield FileFinding(path, str(error).removeprefix(f"{path} "))
    # Apache Kafka has no log-start-offset file. If the file must exist and is missing, `ops.verify` reports it.
    if log_start is not None:
        yield from _verify_first(directory, names, bases, log_start)
    yield from _find_lost(state, names, bases, log_start or 0)
    if not bases:
        return
    snapshots = SnapshotProof(state, names)
    state.end_offset = bases[0]
    if bases[0]:
        snapshots.load_state_at(bases[0])
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        yield from SegmentProof(state, snapshots, base, following, gapless_epoch).run()
    yield from _verify_epochs(state)
    last = state.path(bases[-1], LOG)
    if state.end_offset < recovery_point and disk.exists(last):
        yield FileFinding(
            last,
            f"ends at offset {state.end_offset - 1}; records up to offset {recovery_point - 1} were durable",
        )
    if log_start is not None and log_start > state.end_offset:
        yield FileFinding(
            directory / LOG_START_FILE,
            f"says that the log begins at offset {log_start}, but the log ends at offset {state.end_offset}",
        )
    # A running broker may have deleted a segment during the verification; the end of the log is then not known.
    if state.are_begins_known and all(disk.exists(state.path(base, LOG)) for base in bases):
        yield from snapshots.prove_past_end()


def _verify_first(
    directory: Path, names: list[str], bases: list[int], log_start: int
) -> Iterator[FileFinding]:
    """Yield a finding, an error for the report, if the log file of the first segment is missing. This segment has the
    log start offset `log_start`.
    """
    if not bases:
        message = "is missing: the directory has no log file, but the partition was made with one"
    elif bases[0] > log_start:
        message = f"is missing: the log begins at offset {log_start}, but the first segment begins at offset {bases[0]}"
    else:
        return
    yield FileFinding(first_segment_path(directory, names, log_start), message)


def _find_lost(state: LogState, names: list[str], bases: list[int], log_start: int) -> Iterator[FileFinding]:
    """Yield a finding (a contradiction between a file and the log) for each log file that was lost: that of a segment
    with a summary (which is written only when the segment is sealed), and that of the segment that must begin where the
    summary of another one ends.
    """
    begins = {offset_of(name) for name in names if is_summary(name)}
    ends = set()
    for base in bases:
        with contextlib.suppress(DamageError, UnknownFormatError):
            ends.add(Summary.decode(state.content(base, SUMMARY) or b"").end_offset)
    for base in sorted((begins | ends) - set(bases)):
        # A running broker may delete or compact the segment during the verification, so its files are looked up again.
        is_lost = base in ends or state.disk.exists(state.path(base, SUMMARY))
        if base >= log_start and is_lost and not state.disk.exists(state.path(base, LOG)):
            yield FileFinding(state.path(base, LOG), "is missing, and was durable")


def _verify_epochs(state: LogState) -> Iterator[FileFinding]:
    """Compare the file of leader epochs with the batches, and yield a finding if it contradicts them. A missing file
    does not, because the broker rebuilds it.
    """
    path = state.directory / EPOCH_FILE
    content = read_if_there(state.disk, path)
    if content is None:
        return
    try:
        said = LeaderEpochs.decode(content).entries
    except (DamageError, UnknownFormatError) as error:
        yield FileFinding(path, str(error))
        return
    known = state.epochs.entries
    if not said or not known or not state.is_complete:
        return
    # Retention and DeleteRecords remove the first epochs from the file and from the log, and Kafka lets the first
    # remaining epoch begin at the log start offset. So the epochs are compared from the first offset that both contain.
    begin = max(said[0][1], known[0][1])
    if begin >= state.end_offset:
        return
    said, known = (
        [(LeaderEpochs(entries).epoch_of(begin), begin)]
        + [(epoch, start) for epoch, start in entries if begin < start < state.end_offset]
        for entries in (said, known)
    )
    if said != known[: len(said)]:
        yield FileFinding(path, f"has the leader epochs (epoch, first offset) {said}; the log has {known}")
