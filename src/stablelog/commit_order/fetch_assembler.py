"""Assembly of a fetch response in commit order.

The batches of a transaction are scattered over the log. A response contains each batch with another base offset and
another leader epoch, which the CRC does not cover. All other bytes are the same as in the log. The first 16 bytes of a
large batch come from the commit index, and the rest is a slice of the mapped log file. Small batches are copied into
one buffer, because sending each in a piece of its own would cost more time than the copy.

A batch may have only a hundred bytes, so the cost for each batch matters. The code therefore handles batches in
comprehensions over hundreds of batches, which may belong to several transactions.

A damaged batch ends the response. The batches before it are sent. The next fetch starts at the damaged batch and gets
the error.
"""

import io
import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, groupby
from operator import sub

from stablelog.batch.header import (
    CONTROL,
    CRC,
    CRC_START,
    HEADER,
    LENGTH_AND_OFFSET_SIZE,
    PREFIX,
    TRANSACTIONAL,
    empty_batch,
    read_header,
)
from stablelog.commit_order.copy_buffers import COPY_BUFFERS
from stablelog.commit_order.extents import SEVERAL, BatchExtent, ExtentColumns
from stablelog.commit_order.index_format import Entry
from stablelog.crc32c import crc32c
from stablelog.env.disk import Buffer, File
from stablelog.errors import DamageError
from stablelog.log.model import Slice
from stablelog.log.segments.segment import Segment

SMALL_LENGTH_MAX = 4096  # copying a batch of this size takes about as long as sending it in two pieces
# Greatest size of the copies in a response, in bytes. They stay in memory until the reader has received the response.
COPIED_SIZE_MAX = 1 << 20
# Greatest size of the batches from an object store in a response, in bytes. A response holds copies of these batches.
REMOTE_SIZE_MAX = 8 << 20
# A response ends after this many batches from an object store, because the CRC of each is checked.
REMOTE_COUNT_MAX = 2_000
NO_LEADER_EPOCH = -1  # the leader epoch of a batch that is not in the log
PAGE_SIZE = 4096  # the kernel reads at least a whole page of this size from the disk
LOOKED_AT = struct.Struct(
    ">"
    "8x"  # base offset
    "i"  # batch length
    "9x"  # skipped: leader epoch, magic, CRC
    "h"  # attributes
    "i"  # last offset delta
    "16x"  # timestamps
    "q"  # producer id
)
LAST_OFFSET_DELTA = struct.Struct(">23xi")
LENGTH_MIN = HEADER.size - LENGTH_AND_OFFSET_SIZE
KIND = TRANSACTIONAL | CONTROL


class FetchAssembler:
    """Assembles whole batches into one fetch response in commit order.

    Attributes:
        start: the position in commit order at which the fetch begins.
        end: the position in commit order after the last batch; `start` while there is no batch.
        room: how many more bytes of batches fit into the response.
    """

    def __init__(self, start: int, size_max: int, *, at_least_one: bool, reads_on: bool) -> None:
        """Create an empty response.

        Args:
            start: the first position of the fetch.
            size_max: the greatest size of the response in bytes.
            at_least_one: whether the response may have a first batch that is larger than `size_max`.
            reads_on: whether the reader continues where an earlier fetch ended. Such a reader also reads the batches in
                between, of other transactions, so the operating system's readahead serves it best. For another reader,
                exactly the byte ranges of the batches in the response are requested from the disk.
        """
        self.start = self.end = start
        self.room = size_max
        self._copied_room = COPIED_SIZE_MAX
        self._remote_room = REMOTE_SIZE_MAX
        self._remote_count = 0
        self._wants_one = at_least_one
        self._reads_on = reads_on
        self._buffers: list[Buffer] = []
        self._copies: io.BytesIO | None = None
        # For an index in `_buffers`: the range of bytes in `_copies` that `slice` puts there.
        self._copied: dict[int, range] = {}

    @property
    def needs_one(self) -> bool:
        """Whether the next batch must be added even if it is larger than the space that is left, because the response
        has no batch yet and the reader has asked for at least one.
        """
        return self._wants_one and self.end == self.start

    @property
    def remote_room(self) -> int:
        """How many more bytes of batches from an object store fit into the response."""
        return max(min(self.room, self._remote_room), 0)

    def slice(self) -> Slice:
        """Return the assembled response as a `Slice`: its buffers, in the order in which they are sent. No batch may be
        added afterwards.
        """
        if self._copies is not None:
            copies = self._copies.getbuffer()
            COPY_BUFFERS.return_buffer(self._copies)
            for place, part in self._copied.items():
                self._buffers[place] = copies[part.start : part.stop]
        return Slice(self._buffers, self.start, self.end, ())

    def add_batches(self, segment: Segment, extents: ExtentColumns) -> bool:
        """Add batches of transactions from a local segment. Batches that end before `start`, the first position of the
        fetch, are left out.

        Args:
            segment: the segment of the extents.
            extents: the byte ranges of the batches.

        Returns:
            Whether the response has room for more.

        Raises:
            DamageError: a batch is damaged. The batches before it are in the response.
        """
        log = segment.log
        if not self._reads_on:
            self._request_readahead(log, extents)
        data = log.view(0, max(extents.ends))
        extents, damage = split_extents(data, extents, self.start)
        if segment.proof.damaged_batches:
            extents, known_damage = _before_damage(segment, extents)
            damage = known_damage or damage
        has_room = self._add(data, extents)
        if damage is not None and has_room:
            raise damage
        return has_room

    def add_remote_batches(self, data: memoryview, extents: ExtentColumns) -> bool:
        """Add batches of transactions from an object store. Batches that end before `start`, the first position of the
        fetch, are left out.

        Args:
            data: the bytes of the extents (the byte ranges that were loaded), one extent after the other.
            extents: where the extents are in the log file of the remote segment, and which batches they have.

        Returns:
            Whether the response has room for more.

        Raises:
            DamageError: a batch is damaged. The batches before it are in the response.
        """
        ends = list(accumulate(map(sub, extents.ends, extents.begins)))
        batches, damage = split_extents(data, extents._replace(begins=[0, *ends[:-1]], ends=ends), self.start)
        for place, (begin, end) in enumerate(zip(batches.begins, batches.ends, strict=True)):
            if (
                crc32c(data[begin + CRC_START : end])
                != CRC.unpack_from(data, begin + CRC_START - CRC.size)[0]
            ):
                damage = DamageError(
                    f"the CRC of a batch of segment {extents.segment} does not match its bytes"
                )
                batches = batches.part(0, place)
                break
        self._remote_room -= len(data)
        self._remote_count += len(batches.begins)
        has_room = self._add(data, batches)
        if damage is not None and has_room:
            raise damage
        return has_room and self._remote_room > 0 and self._remote_count < REMOTE_COUNT_MAX

    def add_remote_run(self, buffers: Sequence[Buffer], end: int, entry: Entry) -> bool:
        """Add a run of consecutive batches outside transactions, whose bytes are from an object store. Return whether
        the response has room for more.

        Args:
            buffers: the bytes of whole batches, which follow each other; empty if the response has no space for the
                first one.
            end: the position after the last of them.
            entry: the entry of the run in the commit index.
        """
        if not buffers:
            return False
        self._buffers += buffers
        size = sum(map(len, buffers))
        self.room -= size
        self._remote_room -= size
        self.end = end
        return end == entry.end and self.room > 0 and self._remote_room > 0

    def add_empty_batch(self, end: int) -> None:
        """Add a batch without records that takes the positions up to `end`, if it fits. A reader that gets it continues
        after these positions, as it does after a batch whose records compaction has removed.

        Args:
            end: the position after the batch. A batch can take only a limited number of positions. If `end` is further
                away, the batch ends earlier.
        """
        if end <= self.end or (self.room < HEADER.size and not self.needs_one):
            return
        batch = empty_batch(self.end, end, NO_LEADER_EPOCH)
        self._buffers.append(batch)
        self.room -= len(batch)
        self.end = read_header(batch).next_offset

    def _request_readahead(self, log: File, extents: ExtentColumns) -> None:
        """Ask the operating system to read ahead the extents (byte ranges of batches) for which the response has room.
        Adjacent extents are requested together. This does not wait for the disk.
        """
        asked_begin = asked_end = extents.begins[0]
        wanted_size = 0
        for begin, end in zip(extents.begins, extents.ends, strict=True):
            if not asked_end <= begin < asked_end + PAGE_SIZE:
                log.will_need(asked_begin, asked_end - asked_begin)
                asked_begin = begin
            asked_end = end
            wanted_size += end - begin
            if wanted_size >= self.room:
                break
        log.will_need(asked_begin, asked_end - asked_begin)

    def _add(self, data: memoryview, batches: ExtentColumns) -> bool:
        """Add batches to the response. No extent (a byte range that the commit index names) has more than one of them.
        Return True if the response has room for more batches.
        """
        if not batches.lengths:
            return True
        if max(batches.lengths) <= SMALL_LENGTH_MAX:
            return self._add_alike(data, batches, are_small=True)
        first = 0
        for are_small, same in groupby(length <= SMALL_LENGTH_MAX for length in batches.lengths):
            end = first + len(list(same))
            if not self._add_alike(data, batches.part(first, end), are_small=are_small):
                return False
            first = end
        return True

    def _add_alike(self, data: memoryview, batches: ExtentColumns, *, are_small: bool) -> bool:
        """Add batches that are all small or all large. Small batches are copied into one buffer; of a large batch, the
        response refers to the bytes in `data`.

        Args:
            data: the mapped log file, or bytes from the object store, which have the batches.
            batches: the byte ranges of the batches. No range has more than one batch.
            are_small: whether the batches are small.

        Returns:
            True if all batches were added and the response has room for more; False if the response is full.
        """
        room = min(self.room, self._copied_room) if are_small else self.room
        size, has_room = batches.size, True
        if size > room:
            sizes = list(accumulate(map(sub, batches.ends, batches.begins)))
            count = bisect_right(sizes, room)
            if not count and self.needs_one:
                count = 1
            if not count:
                return False
            batches, has_room = batches.part(0, count), False
        _, prefixes, _, begins, ends = batches
        pieces: list[Buffer] = [b""] * (2 * len(prefixes))
        pieces[0::2] = prefixes
        skip = PREFIX.size
        pieces[1::2] = [data[begin + skip : end] for begin, end in zip(begins, ends, strict=True)]
        # If not all batches fit, `size` is larger than the added batches. This does no harm, because no batch is added
        # afterwards.
        self.room -= size
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
        """Copy small batches into the response's buffer, so that batches which follow each other in the response are
        sent as one piece.
        """
        if self._copies is None:
            self._copies = COPY_BUFFERS.take_buffer()
        begin = self._copies.tell()
        self._copies.writelines(pieces)
        place = len(self._buffers) - 1
        if place in self._copied:
            begin = self._copied[place].start
        else:
            self._buffers.append(b"")
            place += 1
        self._copied[place] = range(begin, self._copies.tell())

    def add_local_run(self, segment: Segment, extent: BatchExtent, entry: Entry) -> bool:
        """Add a run of consecutive batches outside transactions from a local segment. They keep their offsets, because
        the position of such a record in commit order is its offset.

        Args:
            segment: the segment of the run.
            extent: the byte range of the run, which has no other batches.
            entry: the entry of the run in the commit index.

        Returns:
            Whether the response has room for more.

        Raises:
            DamageError: the first batch is damaged.
        """
        room = self.room
        begin, end, end_offset = extent.begin, extent.end, entry.end
        if entry.start < self.start or extent.size > room:
            found = segment.find(max(self.start, entry.start))
            if found is None or found.position >= extent.end:
                raise DamageError(
                    "the log or the commit index (the list of a segment's transactions) is damaged: the "
                    f"index says that position {self.start} is in the batches outside transactions from "
                    f"position {entry.start} on, but these batches end before this position"
                )
            if found.size > room and not self.needs_one:
                return False
            begin = found.position
            end, end_offset = segment.whole_batches(found, max(room, found.size))
            end, end_offset = min(end, extent.end), min(end_offset, entry.end)
        damaged = segment.damaged_behind(begin)
        if damaged is not None and damaged.position < end:
            segment.check_undamaged(begin, begin + 1)
            end, end_offset = damaged.position, damaged.base_offset
        self._buffers.append(segment.log.view(begin, end - begin))
        self.room = room - (end - begin)
        self.end = end_offset
        return end == extent.end and self.room > 0


def split_extents(
    data: memoryview, extents: ExtentColumns, start: int
) -> tuple[ExtentColumns, DamageError | None]:
    """Split shared extents (byte ranges of the log file, each with several batches of one transaction) into extents of
    one batch each.

    Args:
        data: the bytes of the log file.
        extents: the extents, of which some may be shared.
        start: a position in commit order. Batches that end before it are left out.

    Returns:
        Two values: the batches, and the error about a damaged batch; None in its place if no batch is damaged. With an
        error, only the batches before the damaged one are returned. If the headers in an extent contradict each other,
        it is unknown which of them is damaged: then only the batches of earlier extents are returned.
    """
    if SEVERAL not in extents.lengths:
        return extents, None
    unpack, pack = LOOKED_AT.unpack_from, PREFIX.pack
    found = ExtentColumns(extents.segment, [], [], [], [])
    _, prefixes, lengths, begins, ends = found
    for prefix, extent_length, begin, end in zip(*extents[1:], strict=True):
        if extent_length != SEVERAL:
            prefixes.append(prefix)
            lengths.append(extent_length)
            begins.append(begin)
            ends.append(end)
            continue
        base_offset, _, leader_epoch = PREFIX.unpack(prefix)
        count = len(prefixes)
        # An extent begins with a batch of its transaction, which gives the producer id.
        _, _, _, producer_id = unpack(data, begin)
        at, last_at = begin, end - HEADER.size  # after `last_at`, there is no space for a header
        while at < end:
            length, attributes, last_offset_delta, batch_producer_id = unpack(data, at)
            next_at = at + length + LENGTH_AND_OFFSET_SIZE
            ends_well = next_at <= last_at or next_at == end
            if length < LENGTH_MIN or last_offset_delta < 0 or not ends_well:
                return found.part(0, count), DamageError(
                    f"byte {at} of the log file of segment {extents.segment} is not the beginning of a batch, but the commit "
                    f"index expects batches of producer {producer_id} there"
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
        if base_offset <= start:
            # The first extent must contain `start`, so a batch of the transaction is missing.
            return found, DamageError(
                f"the batches of producer {producer_id} end before position {start}, but the commit index says that they contain this position: the log or the index is damaged"
            )
    return found, None


def _before_damage(segment: Segment, batches: ExtentColumns) -> tuple[ExtentColumns, DamageError | None]:
    """Return the batches before the first one that is known to be damaged, and the error about the damaged batch. If no
    batch is known to be damaged, return all batches, and None instead of the error.
    """
    for place, (begin, end) in enumerate(zip(batches.begins, batches.ends, strict=True)):
        try:
            segment.check_undamaged(begin, end)
        except DamageError as error:
            return batches.part(0, place), error
    return batches, None
