"""The damaged tail of a log: whether the log may be truncated there, which batches follow the damage, and the copy that
keeps the removed bytes.
"""

import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from stablelog.batch.header import HEADER, LENGTH_AND_OFFSET_SIZE, BatchHeader, crc_holds, read_header
from stablelog.env.disk import Disk, File
from stablelog.errors import DamageError
from stablelog.log.files.names import CUT
from stablelog.log.segments.segment import RELATIVE_OFFSET_MAX

SCAN_SIZE = 4 << 20  # how many bytes are searched at a time
COPY_SIZE = 4 << 20
MAGIC_AT = 16  # the position of the magic byte in a batch
MAGIC = b"\x02"
OFFSET_AND_LENGTH = struct.Struct(">qi")
ATTRIBUTES_MASK = 0x7F  # the attribute bits that Kafka has defined
LONE_SIZE_MAX = 2 << 20  # a search accepts a larger batch only if a batch or the file's end follows it
SPARE_READS = 16  # CRC checks of batches above LONE_SIZE_MAX may read this many times the file's size


@dataclass(frozen=True, slots=True)
class SyncedEnd:
    """How much of the log was synced when the broker stopped.

    Attributes:
        offset: the end of the synced offsets, exclusive. Everything before it must be there unchanged.
        is_clean: whether the last broker closed the log. If so, all of the log was synced, even after `offset`.
        is_recorded: whether the recovery point (the offset up to which the broker has recorded that the log is synced)
            is known. If not, `offset` is from the summaries of segments and from snapshots, and more may have been
            synced.
    """

    offset: int
    is_clean: bool
    is_recorded: bool

    def covers(self, offset: int) -> bool:
        """Whether a batch at this offset was synced."""
        return self.is_clean or offset < self.offset

    def __str__(self) -> str:
        if self.is_clean:
            return "all of the log was durable, because the broker closed it"
        return f"records up to offset {self.offset - 1} were durable"


@dataclass(frozen=True, slots=True)
class RemovedTail:
    """The bytes that recovery or repair has removed from the end of one log file.

    Attributes:
        path: the log file.
        position: the position of the first byte that was removed.
        offset: the first offset that is no longer in the log.
        size: the number of bytes that were removed.
        kept: the `.cut` file that has these bytes now.
        damage: the reason why the log was truncated.
    """

    path: Path
    position: int
    offset: int
    size: int
    kept: Path
    damage: str

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.size} bytes at byte {self.position}, from offset {self.offset} on, were truncated and "
            f"are kept as {self.kept.name}: {self.damage}"
        )


def check_cut(disk: Disk, path: Path, position: int, end_offset: int, damage: str, synced: SyncedEnd) -> None:
    """Check a cut, the truncation of a log at damage: refuse it if it would remove synced bytes.

    Args:
        disk: the disk of the partition.
        path: the path of the log file.
        position: the position of the damage; -1 if the whole file is to be removed.
        end_offset: the end of the whole batches before the damage, exclusive.
        damage: a description of the damage, for the error message.
        synced: how much of the log was synced.

    Raises:
        DamageError: the bytes to be removed were synced, or may have been synced. Nothing changed.
    """
    advice = (
        "Restore the file from a backup, or, to go on without these records, run `stablelog repair`, which "
        "first shows what is lost"
    )
    if synced.covers(end_offset):
        raise DamageError(
            f"{path} is damaged: {damage}. The damaged bytes were durable ({synced}), so the disk has "
            f"lost or changed these bytes. {advice}"
        )
    if synced.is_recorded:
        return
    with closing(disk.open(path)) as file:
        following = next(batches_after_damage(file, position, end_offset), None)
    if following is not None:
        raise DamageError(
            f"{path} is damaged: {damage}. A whole batch of offset {following[1].base_offset} follows "
            f"at byte {following[0]}, and it is not recorded up to which offset the log was durable. "
            f"{advice}"
        )


def batches_after_damage(file: File, position: int, end_offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the whole batches after damage in a log file, as (position, header). A batch is whole if its CRC matches.

    The length field of the damaged batch gives the position of the next one. If a whole batch begins there, the search
    continues with it, because the records of the damaged batch may contain bytes that look like a batch. Otherwise the
    search tries every byte as the beginning of a batch.

    Args:
        file: the log file.
        position: the position of the damaged batch; -1 to search the file from its beginning.
        end_offset: batches that begin before this offset are ignored.
    """
    search = _Search(file)
    at: int | None = 0 if position < 0 else search.next_after_damaged(position, end_offset)
    while at is not None:
        header = search.whole_batch_at(at, end_offset)
        if header is None:
            at = search.next_after_damaged(at, end_offset)
            continue
        yield at, header
        at, end_offset = at + header.size, header.next_offset


def lost_batches(file: File, position: int, end_offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the whole batches that a truncation at damage removes from a log file, as (position, header).

    The batch at `position` is yielded, too, if its CRC matches and its offsets are less than those of the next batch.
    Its records are whole: it counts as damaged because of missing batches before it, or because of its leader epoch.

    Args:
        file: the log file.
        position: the position of the damaged batch; -1 if the whole file is removed.
        end_offset: the end of the batches before the damage, exclusive. Batches that begin before it are ignored.
    """
    first = _Search(file).whole_batch_at(position, end_offset) if position >= 0 else None
    for at, header in batches_after_damage(file, position, end_offset):
        if first is not None and first.next_offset <= header.base_offset:
            yield position, first
        first = None
        yield at, header
    if first is not None:
        yield position, first


class _Search:
    """A search for whole batches in a damaged log file. It limits how many bytes it reads to check CRCs, because many
    bytes may look like a batch and be none.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self._spare = SPARE_READS * file.size

    def next_after_damaged(self, position: int, end_offset: int) -> int | None:
        """Return the position of the next whole batch after a damaged one; None if no whole batch follows."""
        if self._file.size - position < HEADER.size:
            return None
        length: int = OFFSET_AND_LENGTH.unpack(self._file.read(position, OFFSET_AND_LENGTH.size))[1]
        following = position + length + LENGTH_AND_OFFSET_SIZE
        if position < following <= self._file.size:
            if following == self._file.size:
                return None
            if self.whole_batch_at(following, end_offset) is not None:
                return following
        return self._search(position + 1, end_offset)

    def whole_batch_at(self, position: int, end_offset: int) -> BatchHeader | None:
        """Return the header of the whole batch that begins at a position and at or after the offset `end_offset`; None
        if no such batch begins there. A batch is whole if its CRC matches.
        """
        header = self._header_at(position, end_offset)
        is_whole = header is not None and crc_holds(self._file.read(position, header.size), 0, header)
        return header if is_whole else None

    def _header_at(self, position: int, end_offset: int) -> BatchHeader | None:
        return self._plausible(self._file.read(position, HEADER.size), 0, position, end_offset)

    def _plausible(self, content: bytes, place: int, position: int, end_offset: int) -> BatchHeader | None:
        try:
            header = read_header(content, place)
        except DamageError:
            return None
        is_plausible = (
            header.size <= self._file.size - position
            and end_offset <= header.base_offset <= end_offset + RELATIVE_OFFSET_MAX
            and header.attributes & ~ATTRIBUTES_MASK == 0
        )
        return header if is_plausible else None

    def _search(self, begin: int, end_offset: int) -> int | None:
        """Return the position of the next whole batch, which may begin at any byte; None if there is none.

        If bytes look like a whole batch, but neither another batch nor the file's end follows them, the search goes on,
        and prefers a batch that is followed by one of them.
        """
        at, lone = begin, None
        while len(chunk := self._file.read(at, SCAN_SIZE)) >= HEADER.size:
            found = chunk.find(MAGIC, MAGIC_AT)
            while found != -1:
                place = found - MAGIC_AT
                header = self._plausible(chunk, place, at + place, end_offset)
                if header is not None:
                    is_followed = self._is_followed(at + place, header)
                    if (is_followed or lone is None) and self._holds(at + place, header, is_followed):
                        if is_followed:
                            return at + place
                        lone = at + place
                found = chunk.find(MAGIC, found + 1)
            # A header that is incomplete at this chunk's end is complete in the next chunk.
            at += len(chunk) - HEADER.size + 1
        return lone

    def _is_followed(self, position: int, header: BatchHeader) -> bool:
        following = position + header.size
        return (
            self._file.size - following < HEADER.size
            or self._header_at(following, header.next_offset) is not None
        )

    def _holds(self, position: int, header: BatchHeader, is_followed: bool) -> bool:
        if header.size > LONE_SIZE_MAX:
            if not is_followed or header.size > self._spare:
                return False
            self._spare -= header.size
        return crc_holds(self._file.read(position, header.size), 0, header)


def keep_tail(disk: Disk, path: Path, position: int, offset: int, damage: str) -> list[RemovedTail]:
    """Copy the bytes at the end of a log file, which will be removed, into a `.cut` file. The copy is durable on return.

    Its path is `<base>.cut`, or `<base>.cut.<number>` if a file of that name has other bytes.

    Args:
        disk: the disk of the partition.
        path: the path of the log file.
        position: the position of the first byte that will be removed.
        offset: the first offset that will no longer be in the log.
        damage: the reason why the log is truncated.

    Returns:
        The description of these bytes; an empty list if there are none.
    """
    kept, number = path.with_suffix(CUT), 0
    with closing(disk.open(path)) as source:
        size = source.size - position
        if not size:
            return []
        while disk.exists(kept) and not _is_copy(disk, kept, source, position):
            number += 1
            kept = path.with_suffix(f"{CUT}.{number}")
        with closing(disk.open(kept, create=True)) as target:
            target.truncate(0)
            at = position
            while at < source.size:
                at += len(piece := source.read(at, COPY_SIZE))
                target.append(piece)
            target.sync()
    disk.sync_dir(path.parent)
    return [RemovedTail(path, position, offset, size, kept, damage)]


def _is_copy(disk: Disk, kept: Path, source: File, position: int) -> bool:
    """Whether a `.cut` file is an earlier, interrupted copy of the same bytes, so that it can be overwritten."""
    with closing(disk.open(kept)) as there:
        return all(
            there.read(at, COPY_SIZE) == source.read(position + at, min(COPY_SIZE, there.size - at))
            for at in range(0, there.size, COPY_SIZE)
        )
