"""How does a reader get the batches of a transaction, which lie scattered, at the positions of its commit?

Each batch is handed out with another base offset and leader epoch, which no CRC covers; the rest is its bytes in the
log. A large batch stays where it is, in the mapped file, behind sixteen bytes of its own. Small ones are copied
together: to hand the socket two pieces for each would cost more than their bytes.

A batch may be a hundred bytes: nothing is done for each but in a comprehension over hundreds, whatever transactions
they are of.
"""

import io
import struct
from bisect import bisect_right
from itertools import accumulate, groupby

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
from stablelog.views.copies import COPIES
from stablelog.views.extents import SHARED, Extent
from stablelog.views.stretches import Stretch

SMALL_SIZE_MAX = 4096  # a batch of this size costs about as much to copy as to hand out in pieces
COPIED_SIZE_MAX = 1 << 20  # of one answer: it takes memory until the reader has it
PAGE_SIZE = 4096  # what lies in one is read from the disk together
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
LAST_OFFSET_DELTA = struct.Struct(">23xi")
LENGTH_MIN = HEADER.size - LENGTH_AND_OFFSET_SIZE
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
        self._copied_room = COPIED_SIZE_MAX
        self._wants_one = at_least_one
        self._goes_on = goes_on
        self._buffers: list[Buffer | range] = []  # a range is of the copies
        self._copies: io.BytesIO | None = None

    def slice(self) -> Slice:
        """What has been gathered, after which nothing is added."""
        copies = memoryview(b"")
        if self._copies is not None:
            copies = self._copies.getbuffer()
            COPIES.give_back(self._copies)
        buffers: list[Buffer] = [
            copies[part.start : part.stop] if isinstance(part, range) else part for part in self._buffers
        ]
        return Slice(buffers, self.start, self.end, ())

    def add(self, log: File, stretch: Stretch) -> bool:
        """Add batches of transactions, those that end behind the start. Returns whether there is room for more.

        Args:
            log: of the segment in which they lie.
            stretch: their extents.

        Raises:
            Corrupt: what stands there is no batch.
        """
        if not self._goes_on:
            self._ask_for(log, stretch)
        largest = max(stretch.sizes)
        if largest >= SHARED:
            data = log.view(0, max(map(_end_of, stretch.positions, stretch.sizes)))
            stretch = _looked_at(data, stretch, self.start)
            largest = max(stretch.sizes, default=0)
        else:
            last = max(stretch.positions)
            data = log.view(0, last + stretch.sizes[stretch.positions.index(last)])
        if largest <= SMALL_SIZE_MAX:
            return self._add_alike(data, stretch, are_small=True)
        if min(stretch.sizes) > SMALL_SIZE_MAX:
            return self._add_alike(data, stretch, are_small=False)
        first = 0
        for are_small, same in groupby(size <= SMALL_SIZE_MAX for size in stretch.sizes):
            end = first + len(list(same))
            if not self._add_alike(data, stretch.part(first, end), are_small=are_small):
                return False
            first = end
        return True

    def _ask_for(self, log: File, stretch: Stretch) -> None:
        """Have as much of the extents read from the disk as there is room for, all at once."""
        begin = end = stretch.positions[0]
        wanted_size = 0
        for position, sized in zip(stretch.positions, stretch.sizes, strict=True):
            if not 0 <= position - end < PAGE_SIZE:
                log.will_need(begin, end - begin)
                begin = position
            end = position + (sized & ~SHARED)
            wanted_size += end - position
            if wanted_size >= self._room:
                break
        log.will_need(begin, end - begin)

    def _add_alike(self, data: memoryview, stretch: Stretch, *, are_small: bool) -> bool:
        """Add batches that are all small or all large, each alone in its extent."""
        _, positions, sizes, base_offsets, leader_epochs, _ = stretch
        if not sizes:
            return True
        room = min(self._room, self._copied_room) if are_small else self._room
        taken_size, has_room = sum(sizes), True
        if taken_size > room:
            ends = list(accumulate(sizes))
            count = bisect_right(ends, room)
            if not count and self._wants_one and self.end == self.start:
                count = 1
            if not count:
                return False
            taken_size, has_room = ends[count - 1], False
            _, positions, sizes, base_offsets, leader_epochs, _ = stretch.part(0, count)
        pack, skip, uncounted = PREFIX.pack, PREFIX.size, LENGTH_AND_OFFSET_SIZE
        pieces: list[Buffer] = [b""] * (2 * len(sizes))
        pieces[0::2] = [
            pack(base_offset, size - uncounted, leader_epoch)
            for base_offset, size, leader_epoch in zip(base_offsets, sizes, leader_epochs, strict=True)
        ]
        pieces[1::2] = [
            data[position + skip : position + size] for position, size in zip(positions, sizes, strict=True)
        ]
        self._room -= taken_size
        if are_small:
            self._copied_room -= taken_size
            self._copy(pieces)
        else:
            self._buffers += pieces
        (last_offset_delta,) = LAST_OFFSET_DELTA.unpack_from(data, positions[-1])
        self.end = base_offsets[-1] + last_offset_delta + 1
        return has_room and self._room > 0

    def _copy(self, pieces: list[Buffer]) -> None:
        """Copy small batches together."""
        if self._copies is None:
            self._copies = COPIES.take()
        begin = self._copies.tell()
        self._copies.writelines(pieces)
        last = self._buffers[-1] if self._buffers else None
        if isinstance(last, range):  # then they follow it
            begin = last.start
            self._buffers.pop()
        self._buffers.append(range(begin, self._copies.tell()))

    def add_run(self, segment: Segment, extent: Extent, entry: Entry, *, whole: bool) -> bool:
        """Add batches outside transactions, which stand at their own offsets. Returns whether there is room for more.

        Args:
            segment: in which they lie.
            extent: where, one behind the other.
            entry: the run.
            whole: whether all of it is wanted, not only what stands at the start and behind.
        """
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


def _end_of(position: int, sized: int) -> int:
    return position + (sized & ~SHARED)


def _looked_at(data: memoryview, stretch: Stretch, start: int) -> Stretch:
    """The batches in extents of which some are shared, each alone: of these, those that end behind the start.

    Raises:
        Corrupt: what stands there is no batch.
    """
    unpack = LOOKED_AT.unpack_from
    found = Stretch(stretch.segment, [], [], [], [], [])
    for at, sized, base_offset, leader_epoch, producer_id in zip(*stretch[1:], strict=True):
        if sized < SHARED:
            found.add(at, sized, base_offset, leader_epoch, producer_id)
            continue
        end = at + (sized & ~SHARED)
        last_at = end - HEADER.size  # a batch cannot begin behind it
        while at < end:
            length, attributes, last_offset_delta, batch_producer_id = unpack(data, at)
            size = length + LENGTH_AND_OFFSET_SIZE
            next_at = at + size
            ends_well = next_at <= last_at or next_at == end
            if length < LENGTH_MIN or last_offset_delta < 0 or not ends_well:
                raise Corrupt(
                    f"what stands in the log where a batch of producer {producer_id} is looked for is none"
                )
            if batch_producer_id == producer_id and attributes & KIND == TRANSACTIONAL:
                next_offset = base_offset + last_offset_delta + 1
                if next_offset > start:
                    found.add(at, size, base_offset, leader_epoch, producer_id)
                base_offset = next_offset
            at = next_at
    return found
