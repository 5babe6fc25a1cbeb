"""The tail of a log behind damage: whether it may be cut, and the cut, which keeps the bytes."""

import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from stablelog.batch.header import HEADER, LENGTH_AND_OFFSET_SIZE, BatchHeader, crc_holds, read_header
from stablelog.env.disk import Disk, File
from stablelog.errors import Corrupt
from stablelog.log.files.names import CUT, LOG
from stablelog.log.segments.segment import RELATIVE_OFFSET_MAX

SCAN_SIZE = 4 << 20  # bytes that are looked through at a time
COPY_SIZE = 4 << 20
MAGIC_AT = 16  # in a batch
MAGIC = b"\x02"
OFFSET_AND_LENGTH = struct.Struct(">qi")
ATTRIBUTES_MASK = 0x7F  # what Kafka has defined
LONE_SIZE_MAX = 2 << 20  # of a batch that is searched for, if nothing that looks like a batch follows it
SPARE_READS = 16  # times the file's size may be read for the CRC of larger ones


@dataclass(frozen=True, slots=True)
class SyncedEnd:
    """Up to where the log was synced when the broker stopped.

    Attributes:
        offset: exclusive; everything before it must be there as it was.
        is_clean: whether the last owner closed the log, so that all of it was synced, whatever `offset` is.
        is_recorded: whether the broker's recovery point is known. If not, `offset` is what summaries and snapshots
            say, and more may have been synced.
    """

    offset: int
    is_clean: bool
    is_recorded: bool

    def covers(self, offset: int) -> bool:
        """Whether a batch at this offset was synced."""
        return self.is_clean or offset < self.offset

    def __str__(self) -> str:
        if self.is_clean:
            return "the broker closed the log, all of it was durable"
        return f"records up to offset {self.offset - 1} were durable"


@dataclass(frozen=True, slots=True)
class Cut:
    """What was cut off a log file.

    Attributes:
        path: the log file.
        position: of the first byte that was cut.
        offset: the first offset that is no longer in the log.
        size: bytes.
        kept: the file that holds these bytes now.
        damage: why it was cut.
    """

    path: Path
    position: int
    offset: int
    size: int
    kept: Path
    damage: str

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.size} bytes at byte {self.position}, from offset {self.offset} on, were cut off and "
            f"are kept as {self.kept.name}: {self.damage}"
        )


def check_cut(path: Path, file: File, position: int, end_offset: int, damage: str, synced: SyncedEnd) -> None:
    """Refuse to cut what was synced.

    Args:
        path: of the log file.
        file: the log file.
        position: of the damage.
        end_offset: where the whole batches before the damage end.
        damage: what is wrong, for the message.
        synced: up to where the log was synced.

    Raises:
        Corrupt: what would be cut was synced, or may have been. Nothing changed.
    """
    advice = (
        "Restore the file from a backup, or, to go on without these records, run `stablelog repair`, which "
        "says first what is lost"
    )
    if synced.covers(end_offset):
        raise Corrupt(f"{path}: {damage}; {synced}, so the disk has lost or changed them. {advice}")
    if synced.is_recorded:
        return
    following = next(batches_behind(file, position, end_offset), None)
    if following is not None:
        raise Corrupt(
            f"{path}: {damage}; a whole batch of offset {following[1].base_offset} follows at byte {following[0]}, "
            f"and up to where the log was durable is not recorded. {advice}"
        )


def batches_behind(file: File, position: int, end_offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the whole batches that follow damage, as (position, header). Their CRC holds.

    A damaged batch ends where its own length says, if a whole batch begins there: a record may contain bytes that look like
    a batch. Otherwise the next batch is searched at every byte.

    Args:
        file: the log file.
        position: of the damaged batch; -1 if the file is to be read from its beginning.
        end_offset: batches of earlier offsets are passed over.
    """
    search = _Search(file)
    at: int | None = 0 if position < 0 else search.behind_damaged(position, end_offset)
    while at is not None:
        header = search.whole_at(at, end_offset)
        if header is None:
            at = search.behind_damaged(at, end_offset)
            continue
        yield at, header
        at, end_offset = at + header.size, header.next_offset


def lost_batches(file: File, position: int, end_offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the whole batches that a cut takes of a log file, as (position, header). Arguments as of `batches_behind`.

    The batch at `position` is one of them if its CRC holds and its offsets fit before the next batch. Such a batch was
    refused because batches before it are gone, or because of its leader epoch. Its records are whole.
    """
    first = _Search(file).whole_at(position, end_offset) if position >= 0 else None
    for at, header in batches_behind(file, position, end_offset):
        if first is not None and first.next_offset <= header.base_offset:
            yield position, first
        first = None
        yield at, header
    if first is not None:
        yield position, first


class _Search:
    """Search for whole batches in a damaged log file. It reads a bounded number of bytes for the CRCs of false ones."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._spare = SPARE_READS * file.size

    def behind_damaged(self, position: int, end_offset: int) -> int | None:
        """Return where the next whole batch begins behind a damaged one; None if none follows."""
        if self._file.size - position < HEADER.size:
            return None
        length: int = OFFSET_AND_LENGTH.unpack(self._file.read(position, OFFSET_AND_LENGTH.size))[1]
        following = position + length + LENGTH_AND_OFFSET_SIZE
        if position < following <= self._file.size:
            if following == self._file.size:
                return None
            if self.whole_at(following, end_offset) is not None:
                return following
        return self._search(position + 1, end_offset)

    def whole_at(self, position: int, end_offset: int) -> BatchHeader | None:
        """Return the header of the whole batch that begins here; None if there is none."""
        header = self._header_at(position, end_offset)
        if header is None:
            return None
        return header if crc_holds(self._file.read(position, header.size), 0, header) else None

    def _header_at(self, position: int, end_offset: int) -> BatchHeader | None:
        head = self._file.read(position, HEADER.size)
        return self._plausible(head, 0, position, end_offset)

    def _plausible(self, content: bytes, place: int, position: int, end_offset: int) -> BatchHeader | None:
        try:
            header = read_header(content, place)
        except Corrupt:
            return None
        is_plausible = (
            header.size <= self._file.size - position
            and end_offset <= header.base_offset <= end_offset + RELATIVE_OFFSET_MAX
            and header.attributes & ~ATTRIBUTES_MASK == 0
        )
        return header if is_plausible else None

    def _search(self, begin: int, end_offset: int) -> int | None:
        """Return where the next whole batch begins, at any byte; None if there is none.

        The first batch that another batch or the file's end follows is preferred to an earlier lone one.
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
            at += len(chunk) - HEADER.size + 1  # a header that this chunk cuts off is whole in the next one
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


def keep_tail(disk: Disk, path: Path, position: int) -> Path:
    """Copy the bytes of a log file from `position` on into a file that stays. Durable on return.

    Returns:
        The copy: `<base>.cut`, or with a number behind it if that holds other bytes.
    """
    kept, number = path.with_suffix(CUT), 0
    with closing(disk.open(path)) as source:
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
    return kept


def _is_copy(disk: Disk, kept: Path, source: File, position: int) -> bool:
    """Whether a file holds the beginning of the bytes to keep: a crash may have interrupted an earlier copy."""
    size = disk.size(kept)
    with closing(disk.open(kept)) as there:
        return all(
            there.read(at, COPY_SIZE) == source.read(position + at, min(COPY_SIZE, size - at))
            for at in range(0, size, COPY_SIZE)
        )


def keep_segment(disk: Disk, path: Path, offset: int, damage: str) -> Cut | None:
    """Keep the whole log file of a segment that is to be deleted; None if it is empty."""
    assert path.suffix == LOG
    size = disk.size(path)
    if not size:
        return None
    return Cut(path, 0, offset, size, keep_tail(disk, path, 0), damage)
