"""How does a reader get the batches of a transaction, which lie scattered, at the positions of its commit?

Each batch is handed out with another base offset and leader epoch, which no CRC covers; the rest is its bytes in the
log. A large batch stays where it is, in the mapped file, behind sixteen bytes of its own. Small ones are copied
together: to hand the socket two pieces for each would cost more than their bytes.

This runs once for each batch that is read, and a batch may be a hundred bytes: hence the plain loops.
"""

import struct
from collections.abc import Iterator, Sequence

from stablelog.batch.header import (
    CONTROL,
    HEADER,
    LENGTH_AND_OFFSET_SIZE,
    PREFIX,
    TRANSACTIONAL,
)
from stablelog.env.disk import Buffer, File
from stablelog.errors import Corrupt
from stablelog.log.model import Slice
from stablelog.log.segment import Found, Segment
from stablelog.views.commit_index import Entry
from stablelog.views.extents import ONE_BATCH, Extent

SMALL_SIZE_MAX = 4096  # a batch of this size costs about as much to copy as to hand out in pieces
COPIED_TOGETHER = 1024  # pieces
COPIED_SIZE_MAX = 1 << 20  # of one answer: it takes memory until the reader has it
LOOKED_AT = struct.Struct(
    ">"
    "8x"  # base offset
    "i"  # batch length
    "9x"  # leader epoch, magic, CRC
    "h"  # attributes
    "i"  # last offset delta
    "16x"  # timestamps
    "q"  # producer id
)
LENGTH_MIN = HEADER.size - LENGTH_AND_OFFSET_SIZE
LENGTH_LESS = ONE_BATCH + LENGTH_AND_OFFSET_SIZE  # of `Extent.sized`, for the length of its only batch
SIZE = ~ONE_BATCH  # the bits of `Extent.sized` that are the size
KIND = TRANSACTIONAL | CONTROL


class Gathered:
    """Whole batches for one answer.

    Attributes:
        start: the first position that is wanted.
        end: the position behind the last batch; `start` as long as there is none.
    """

    def __init__(self, start: int, size_max: int, *, at_least_one: bool, goes_on: bool) -> None:
        """Begin with nothing.

        Args:
            start: the first position that is wanted.
            size_max: bytes.
            at_least_one: whether a first batch of more is handed out.
            goes_on: whether the reader goes on where it was. Then it is about to read what lies between the
                transaction's batches as well, and it is left to the system to read ahead. Of another only the
                transactions' own bytes are read from the disk.
        """
        self.start = self.end = start
        self._room = size_max
        self._wants_one = at_least_one
        self._goes_on = goes_on
        self._buffers: list[Buffer] = []
        self._small: list[Buffer] = []  # pieces of small batches, to be copied together
        self._copied_size = 0

    def slice(self) -> Slice:
        """What has been gathered."""
        self._copy()
        return Slice(self._buffers, self.start, self.end, ())

    def add(self, log: File, extents: Sequence[tuple[int, ...]], before_end: int, entry: Entry) -> bool:
        """Add a transaction's batches in some extents of one segment. Returns whether there is room for more.

        Args:
            log: of the segment.
            extents: in which they are, as rows of `EXTENT`.
            before_end: how many records of the transaction stand before what comes behind the extents.
            entry: the transaction.

        Raises:
            Corrupt: what stands there is no batch.
        """
        room, leader_epoch, pack = self._room, entry.leader_epoch, PREFIX.pack
        first, (_, last, last_sized, _) = extents[0][1], extents[-1]
        if not self._goes_on:
            wanted_size = 0
            for _, position, sized, _ in extents:
                log.will_need(position, sized & SIZE)
                wanted_size += sized & SIZE
                if wanted_size >= room:
                    break
        data = log.view(first, last + (last_sized & SIZE) - first)
        if entry.start + extents[0][3] >= self.start:
            target = self._target_of_all([extent[2] for extent in extents])
            if target is not None:
                # As nearly always where many write: each stands alone, and there is room for all.
                target += [
                    piece
                    for _, position, sized, before_count in extents
                    for piece in (
                        pack(entry.start + before_count, sized - LENGTH_LESS, leader_epoch),
                        data[position - first + PREFIX.size : position - first + (sized & SIZE)],
                    )
                ]
                self.end = entry.start + before_end
                return self._room > 0
        for base_offset, end_offset, at, size in self._batches(data, first, extents, before_end, entry):
            if size > room and not (self._wants_one and self.end == self.start):
                self._room = 0
                return False
            room -= size
            if size > SMALL_SIZE_MAX:
                if self._small:
                    self._copy()
                self._buffers.append(pack(base_offset, size - LENGTH_AND_OFFSET_SIZE, leader_epoch))
                self._buffers.append(data[at + PREFIX.size : at + size])
            else:
                self._small.append(pack(base_offset, size - LENGTH_AND_OFFSET_SIZE, leader_epoch))
                self._small.append(data[at + PREFIX.size : at + size])
            self.end = end_offset
            if len(self._small) >= COPIED_TOGETHER:
                self._copy()
                if self._copied_size >= COPIED_SIZE_MAX:
                    room = 0
        self._room = room
        return room > 0

    def _target_of_all(self, sizes: list[int]) -> list[Buffer] | None:
        """Where the pieces of batches go that stand alone, all small or all large, if there is room for them; else None.

        The room is taken then.
        """
        least, size = min(sizes), sum(sizes) - len(sizes) * ONE_BATCH
        if least < ONE_BATCH or size > self._room:
            return None
        if least - ONE_BATCH > SMALL_SIZE_MAX:
            self._copy()
            self._room -= size
            return self._buffers
        if max(sizes) - ONE_BATCH > SMALL_SIZE_MAX or self._copied_size >= COPIED_SIZE_MAX:
            return None
        if len(self._small) >= COPIED_TOGETHER:
            self._copy()
        self._room -= size
        return self._small

    def _batches(
        self, data: memoryview, first: int, extents: Sequence[tuple[int, ...]], before_end: int, entry: Entry
    ) -> Iterator[tuple[int, int, int, int]]:
        """Each batch that ends behind the start, as (base offset, next offset, place in `data`, size)."""
        start, entry_start = self.start, entry.start
        ends = [extent[3] for extent in extents[1:]]
        ends.append(before_end)
        for (_, position, sized, before_count), before_next in zip(extents, ends, strict=True):
            if not sized & ONE_BATCH:
                extent = Extent(0, position - first, sized, before_count)
                yield from _looked_at(data, extent, entry, start)
            elif entry_start + before_next > start:
                yield entry_start + before_count, entry_start + before_next, position - first, sized & SIZE

    def _copy(self) -> None:
        """Copy the small batches together that have come by now."""
        if self._small:
            copied = b"".join(self._small)
            self._buffers.append(copied)
            self._copied_size += len(copied)
            self._small = []

    def add_run(self, segment: Segment, extent: Extent, entry: Entry, *, whole: bool) -> bool:
        """Add batches outside transactions, which stand at their own offsets. Returns whether there is room for more.

        Args:
            segment: in which they lie.
            extent: where, one behind the other.
            entry: the run.
            whole: whether all of it is wanted, not only what stands at the start and behind.
        """
        self._copy()
        room, run_end = self._room, extent.position + extent.size
        begin, end, end_offset = extent.position, run_end, entry.end
        if not whole or extent.size > room:
            found: Found | None = segment.find(max(self.start, entry.start))
            if found is None or found.position >= run_end:
                return True
            if found.size > room and not (self._wants_one and self.end == self.start):
                return False
            begin = found.position
            end, end_offset = segment.whole_batches(found, max(room, found.size))
            if end >= run_end:
                end, end_offset = run_end, entry.end
        self._buffers.append(segment.log.view(begin, end - begin))
        self._room = room - (end - begin)
        self.end = end_offset
        return end == run_end and self._room > 0


def _looked_at(
    data: memoryview, extent: Extent, entry: Entry, start: int
) -> Iterator[tuple[int, int, int, int]]:
    """The batches of a transaction in an extent that may hold others' as well: see `Gathered._batches`.

    Raises:
        Corrupt: what stands there is no batch.
    """
    unpack, producer_id = LOOKED_AT.unpack_from, entry.producer_id
    at, end, next_offset = extent.position, extent.position + extent.size, entry.start + extent.before_count
    while at < end:
        length, attributes, last_offset_delta, batch_producer_id = unpack(data, at)
        if length < LENGTH_MIN or last_offset_delta < 0:
            raise Corrupt(
                f"what stands in the log where a batch of producer {producer_id} is looked for is none"
            )
        size = length + LENGTH_AND_OFFSET_SIZE
        if batch_producer_id == producer_id and attributes & KIND == TRANSACTIONAL:
            base_offset = next_offset
            next_offset += last_offset_delta + 1
            if next_offset > start:
                yield base_offset, next_offset, at, size
        at += size
