"""Task of a read from an object store: download the parts of a piece (a range of offsets of one partition), check the
headers of their batches against a checksum (the proof), and decode the batches while the next bytes are loaded.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.commits import Commits
from stablelog.commit_order.stored_view import StoredOrder
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError, ObjectMissingError, UnavailableError
from stablelog.log.model import Slice
from stablelog.spark.objects.loaded_ranges import LoadedRanges
from stablelog.spark.objects.opening import opened_store
from stablelog.spark.objects.readers_pins import renew_pins
from stablelog.spark.objects.stored_commits import commits_between
from stablelog.spark.objects.stored_topics import read_again
from stablelog.spark.objects.tiered_partition import missing_between, remote_log
from stablelog.spark.options import ReadOptions
from stablelog.spark.planning import Piece, StoredPiece
from stablelog.spark.source import broker_log
from stablelog.spark.source.listing_retry import retry_with_new_listing
from stablelog.spark.source.resolve import report_loss
from stablelog.tier.manifest import Manifest
from stablelog.tier.names import RemotePartition
from stablelog.tier.records import SegmentState
from stablelog.tier.remote_segment import RemoteSegment
from stablelog.wire.extension.commits import COUNT_MAX

# How many bytes a task reads at a time in commit order.
READ_SIZE_MIN: Final = 64 << 10
READ_SIZE: Final = 4 << 20


def read(options: ReadOptions, cluster: BlockingCluster | None, piece: Piece, decoder: Any) -> Iterator[Any]:
    """Read the objects of a piece (a range of offsets, with what a task needs to read it), and yield its rows as Arrow
    batches. The last rows, which do not fill a batch, stay in the column builder of the decoder; the caller takes them
    from there.

    If an object is missing, the broker has deleted it after the planning. Then the rest of the piece comes from the
    broker, if the read has one. Otherwise the last manifest (the list of the partition's segments) tells which records
    are gone.

    Args:
        options: the options of the read.
        cluster: the brokers; None for a read without a broker.
        piece: what to read.
        decoder: a decoder for this partition and the columns to read.

    Raises:
        UnavailableError: the store does not answer.
        DataLossError: records were deleted meanwhile, the read has no broker, and failOnDataLoss is true.
        DamageError: an object is damaged or missing. The message names it.
    """
    assert piece.stored is not None
    assert options.store_url is not None
    store = opened_store(options.store_url, options.store)
    pieces = [piece]
    while pieces:
        piece = pieces.pop(0)
        stored = piece.stored
        assert stored is not None
        batches = _in_commit_order if stored.segments else _in_log_order
        try:
            yield from batches(store, stored, piece, decoder)
        except ObjectMissingError as missing:
            rest = replace(piece, start=max(decoder.next_offset, piece.start))
            if cluster is not None:
                yield from broker_log.read(options, cluster, replace(rest, stored=None), decoder)
            else:
                pieces = _after_deletion(options, store, rest, missing) + pieces


def _in_log_order(store: ObjectStore, stored: StoredPiece, piece: Piece, decoder: Any) -> Iterator[Any]:
    # This module imports NumPy, which the driver does not use.
    from stablelog.spark.objects.whole_batches import batches_of

    # The command cannot verify what Apache Kafka has written.
    advice = (
        f". `stablelog storage verify {store.url}` names all damaged objects" if stored.cluster_id else ""
    )
    found = batches_of(store, stored.extents)
    while True:
        try:
            part, batches = next(found, (None, None))
        except DamageError as error:
            raise DamageError(f"{error}{advice}") from error
        if part is None:
            return
        renew_pins(store, stored.pins)
        try:
            yield from decoder.feed(batches, piece.start, piece.end, piece.aborted)
        except DamageError as error:
            raise DamageError(f"{store.url}/{part.key}, from byte {part.start}: {error}{advice}") from error


def _in_commit_order(store: ObjectStore, stored: StoredPiece, piece: Piece, decoder: Any) -> Iterator[Any]:
    loaded = LoadedRanges(store)
    manifest = Manifest(stored.cluster_id, stored.log_start, stored.segments)
    remote = remote_log(store, stored.partition, manifest, loaded)
    order, position = StoredOrder(remote), piece.start
    try:
        while position < piece.end:
            renew_pins(store, stored.pins)
            found: Slice = order.read(position, min(max(piece.size, READ_SIZE_MIN), READ_SIZE))
            if found.end_offset == position:
                # The last offsets may be those of markers, which have no position.
                if any(order.entries(position, piece.end)):
                    raise DamageError(
                        f"{stored.partition.directory} in the object store has no record batches for the position "
                        f"{position} in commit order"
                    )
                break
            if found.end_offset < piece.end:
                loaded.load_ahead(remote.view.ranges_ahead(found.end_offset))
            yield from decoder.feed(b"".join(found.buffers), piece.start, piece.end)
            position = found.end_offset
    finally:
        loaded.close()


def listing(options: ReadOptions, piece: Piece) -> Callable[[int], Commits]:
    """Return a function that lists transactions of a piece (the range of a task): it gets an offset, and returns the
    next transactions that end after it, in the order of their commits.

    The function raises UnavailableError if the store does not answer or a commit index was deleted, and DamageError if
    a commit index is damaged.
    """
    assert piece.stored is not None
    assert options.store_url is not None
    stored, store = piece.stored, opened_store(options.store_url, options.store)
    manifest = Manifest(stored.cluster_id, stored.log_start, stored.segments)
    order = StoredOrder(remote_log(store, stored.partition, manifest, LoadedRanges(store)))

    def commits(offset: int) -> Commits:
        try:
            return commits_between(order, piece.start, piece.end, offset, COUNT_MAX, with_outside=False)
        except ObjectMissingError as missing:
            raise UnavailableError(
                f"{missing}: it was deleted after the read was planned, so the commits of its records are unknown. Run "
                "the query again"
            ) from missing

    return commits


def _after_deletion(
    options: ReadOptions, store: ObjectStore, rest: Piece, missing: ObjectMissingError
) -> list[Piece]:
    """Return the parts of the rest of a task's range that can still be read after an object was found to be deleted,
    and report the records that are gone.

    Raises:
        DataLossError: records are gone, and failOnDataLoss is true.
        DamageError: the store still lists the object.
    """
    assert rest.stored is not None
    return retry_with_new_listing(None, lambda: _listed_rest(options, store, rest, missing))


def _listed_rest(
    options: ReadOptions, store: ObjectStore, rest: Piece, missing: ObjectMissingError
) -> list[Piece]:
    """List the store, after an object was found to be deleted. Return the parts of `rest`, the unread rest of a task's
    range, that the store still has, and report the records that are gone. Raises SegmentDeletedError if another segment
    was deleted since the listing, so that the store must be listed again.
    """
    assert rest.stored is not None
    partition = rest.stored.partition
    committed = options.isolation == "read_committed"
    stored = read_again(store, partition, committed=committed, pins=rest.stored.pins)
    if stored is None:
        report_loss(options, f"{rest.topic} was deleted from {store.url} while the query read it")
        return []
    needed = {extent.key for extent in rest.stored.extents} | _log_keys(partition, rest.stored.segments)
    if needed <= _log_keys(partition, stored.manifest.segments):
        raise DamageError(f"{missing}, and {stored.listed_by}: restore the object") from missing
    log_start, place = stored.start_offset, f"{rest.topic}-{rest.partition}"
    runs = stored.runs(rest.start, rest.end)
    pieces = [stored.span(start, end, rest.topic_id).piece() for start, end in runs]
    now = f"while the query read them: the log begins at offset {log_start} now"
    gone = missing_between(runs, rest.start, rest.end)
    for first, end in gone:
        report_loss(
            options, f"the offsets {first} to {end - 1} of {place} were deleted from {store.url} {now}"
        )
    if not gone and rest.stored.segments:
        report_loss(
            options,
            f"the offsets {rest.start} to {rest.end - 1} of {place} have transactions that began before offset "
            f"{log_start}, and these records were deleted from {store.url} {now}",
        )
    return pieces


def _log_keys(partition: RemotePartition, segments: Iterable[RemoteSegment]) -> set[str]:
    """Return the keys of the log files of segments, without those that are being deleted."""
    return {one.log_key(partition) for one in segments if one.state is SegmentState.COPY_FINISHED}
