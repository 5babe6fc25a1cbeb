"""How does a reader get the batches of a transaction, which lie scattered, at the positions of its commit?

Each batch is handed out with another base offset and leader epoch, which no CRC covers; the rest is its bytes in the
log. A large batch stays where it is, in the mapped file, behind sixteen bytes that stand ready in the commit index.
Small ones are copied together: to hand the socket two pieces for each would cost more than their bytes.

A batch may be a hundred bytes: nothing is done for each but in a comprehension over hundreds, whatever transactions
they are of.
"""

import io
import struct
from bisect import bisect_right
from itertools import accumulate, groupby
from operator import sub

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
from stablelog.views.extents import SEVERAL, Extent
from stablelog.views.stretches import Stretch

SMALL_LENGTH_MAX = 4096  # a batch of this size costs about as much to copy as to hand out in pieces
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
        room: bytes that there is room for.
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
        self.room = size_max
        self._copied_room = COPIED_SIZE_MAX
        self._wants_one = at_least_one
        self._goes_on = goes_on
        self._buffers: list[Buffer] = []
        self._copies: io.BytesIO | None = None
        self._copied: dict[int, range] = {}  # by place in the buffers: which part of the copies belongs there

    def slice(self) -> Slice:
        """What has been gathered, after which nothing is added."""
        if self._copies is not None:
            copies = self._copies.getbuffer()
            COPIES.give_back(self._copies)
            for place, part in self._copied.items():
                self._buffers[place] = copies[part.start : part.stop]
        return Slice(self._buffers, self.start, self.end, ())

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
        data = log.view(0, max(stretch.ends))
        if SEVERAL in stretch.lengths:
            stretch = _looked_at(data, stretch, self.start)
        if max(stretch.lengths) <= SMALL_LENGTH_MAX:
            return self._add_alike(data, stretch, are_small=True)
        if min(stretch.lengths) > SMALL_LENGTH_MAX:
            return self._add_alike(data, stretch, are_small=False)
        first = 0
        for are_small, same in groupby(length <= SMALL_LENGTH_MAX for length in stretch.lengths):
            end = first + len(list(same))
            if not self._add_alike(data, stretch.part(first, end), are_small=are_small):
                return False
            first = end
        return True

    def _ask_for(self, log: File, stretch: Stretch) -> None:
        """Have as much of the extents read from the disk as there is room for, all at once."""
        asked_begin = asked_end = stretch.begins[0]
        wanted_size = 0
        for begin, end in zip(stretch.begins, stretch.ends, strict=True):
            if not asked_end <= begin < asked_end + PAGE_SIZE:
                log.will_need(asked_begin, asked_end - asked_begin)
                asked_begin = begin
            asked_end = end
            wanted_size += end - begin
            if wanted_size >= self.room:
                break
        log.will_need(asked_begin, asked_end - asked_begin)

    def _add_alike(self, data: memoryview, stretch: Stretch, *, are_small: bool) -> bool:
        """Add batches that are all small or all large, each alone in its extent."""
        room = min(self.room, self._copied_room) if are_small else self.room
        size, has_room = sum(stretch.ends) - sum(stretch.begins), True
        if size > room:
            sizes = list(accumulate(map(sub, stretch.ends, stretch.begins)))
            count = bisect_right(sizes, room)
            if not count and self._wants_one and self.end == self.start:
                count = 1
            if not count:
                return False
            stretch, has_room = stretch.part(0, count), False
        _, prefixes, _, begins, ends = stretch
        pieces: list[Buffer] = [b""] * (2 * len(prefixes))
        pieces[0::2] = prefixes
        skip = PREFIX.size
        pieces[1::2] = [data[begin + skip : end] for begin, end in zip(begins, ends, strict=True)]
        self.room -= size  # where not all of it fits, nothing is added any more
        if are_small:
            self._copied_room -= size
            self._copy(pieces)
        else:
            self._buffers += pieces
        base_offset, _, _ = PREFIX.unpack(prefixes[-1])
        (last_offset_delta,) = LAST_OFFSET_DELTA.unpack_from(data, begins[-1])
        self.end = base_offset + last_offset_delta + 1
        return has_room and self.room > 0

    def _copy(self, pieces: list[Buffer]) -> None:
        """Copy small batches together."""
        if self._copies is None:
            self._copies = COPIES.take()
        begin = self._copies.tell()
        self._copies.writelines(pieces)
        place = len(self._buffers) - 1
        if place in self._copied:  # then they follow it
            begin = self._copied[place].start
        else:
            self._buffers.append(b"")
            place += 1
        self._copied[place] = range(begin, self._copies.tell())

    def add_run(self, segment: Segment, extent: Extent, entry: Entry, *, whole: bool) -> bool:
        """Add batches outside transactions, which stand at their own offsets. Returns whether there is room for more.

        Args:
            segment: in which they lie.
            extent: where, one behind the other.
            entry: the run.
            whole: whether all of it is wanted, not only what stands at the start and behind.
        """
        room, run_end = self.room, extent.end
        begin, end, end_offset = extent.begin, run_end, entry.end
        if not whole or extent.size > room:
            found: Found | None = segment.find(max(self.start, entry.start))
            if found is None or found.position >= run_end:
                raise Corrupt(
                    f"the run at position {entry.start} ends before position {self.start}, which is its own"
                )
            if found.size > room and not (self._wants_one and self.end == self.start):
                return False
            begin = found.position
            end, end_offset = segment.whole_batches(found, max(room, found.size))
            end, end_offset = min(end, run_end), min(end_offset, entry.end)
        segment.check_undamaged(begin, end)
        self._buffers.append(segment.log.view(begin, end - begin))
        self.room = room - (end - begin)
        self.end = end_offset
        return end == run_end and self.room > 0


def _looked_at(data: memoryview, stretch: Stretch, start: int) -> Stretch:
    """The batches in extents of which some may hold several, each alone: of these, those that end behind the start.

    Raises:
        Corrupt: what stands there is no batch.
    """
    unpack, pack = LOOKED_AT.unpack_from, PREFIX.pack
    prefixes: list[bytes] = []
    lengths: list[int] = []
    begins: list[int] = []
    ends: list[int] = []
    for prefix, extent_length, begin, end in zip(*stretch[1:], strict=True):
        if extent_length != SEVERAL:
            prefixes.append(prefix)
            lengths.append(extent_length)
            begins.append(begin)
            ends.append(end)
            continue
        base_offset, _, leader_epoch = PREFIX.unpack(prefix)
        _, _, _, producer_id = unpack(data, begin)  # the first batch is one of the transaction
        at, last_at = begin, end - HEADER.size  # a batch cannot begin behind it
        while at < end:
            length, attributes, last_offset_delta, batch_producer_id = unpack(data, at)
            next_at = at + length + LENGTH_AND_OFFSET_SIZE
            ends_well = next_at <= last_at or next_at == end
            if length < LENGTH_MIN or last_offset_delta < 0 or not ends_well:
                raise Corrupt(
                    f"what stands in the log where a batch of producer {producer_id} is looked for is none"
                )
            if batch_producer_id == producer_id and attributes & KIND == TRANSACTIONAL:
                next_offset = base_offset + last_offset_delta + 1
                if next_offset > start:
                    prefixes.append(pack(base_offset, length, leader_epoch))
                    lengths.append(length)
                    begins.append(at)
                    ends.append(next_at)
                base_offset = next_offset
            at = next_at
        if base_offset <= start:  # the first extent holds the start, and the others lie behind it
            raise Corrupt(
                f"the batches of producer {producer_id} end before position {start}, which is theirs"
            )
    return Stretch(stretch.segment, prefixes, lengths, begins, ends)
