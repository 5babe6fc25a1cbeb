"""What a history wrote, was told and has read, and what follows from it for every view and every cut.

What stands where is found here by brute force: the log is read in the order of its appends, each transaction's batches are kept
until its marker comes, and then they are given the positions behind it. A batch is known by its CRC: no two hold the same
values, and no reader's CRC covers what the view changes.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from stablelog.batch.header import crc_holds, headers_in
from stablelog.batch.markers import MarkerType, read_marker
from stablelog.log.partition import Isolation


@dataclass(eq=False)
class Txn:
    """A transaction, or several that are committed together.

    Attributes:
        parts: by (partition, producer), the CRCs of the acknowledged batches, in order.
        asked: its commit was asked for, after all of them were acknowledged.
        acked: it was told that it is committed.
        refused: it was told that it is not, or it was never asked for.
        asked_after: the greatest commit sequence that was known when its commit was asked for.
    """

    number: int
    group: str
    parts: dict = field(default_factory=dict)
    asked: bool = False
    acked: bool = False
    refused: bool = False
    asked_after: int = 0
    sequence: int = -1
    found: dict = field(default_factory=dict)  # by part, where it stands
    begun: dict = field(default_factory=dict)  # by part, where its first batch was appended

    def __repr__(self):
        return f"transaction {self.number}"


class Part(NamedTuple):
    """Where a part of a transaction stands in commit order, and where its first batch was appended."""

    start: int
    end: int
    first_offset: int


class Row(NamedTuple):
    """A batch in commit order. `first_offset` is that of its transaction."""

    position: int
    count: int
    crc: int
    first_offset: int


class Known:
    """What was learned of one partition."""

    def __init__(self, scanned_to):
        self.scanned_to = scanned_to
        self.begins_at = scanned_to
        self.open = {}  # by producer id: (base offset, count, crc) of each batch
        self.rows = []
        self.last_sequence = {}  # by group
        self.commits = []  # (start, end, commit sequence, first offset)


class Model:
    """The truth of one history."""

    def __init__(self):
        self.written = {}  # crc -> (transaction or None, part)
        self.acknowledged_plain = {}  # crc -> partition
        self.txns = []
        self.known = {}
        self.by_sequence = defaultdict(dict)  # group -> commit sequence -> transaction
        self.counted = defaultdict(int)  # group -> the greatest R that was answered
        self.waiting = []  # found somewhere, and in no cut yet
        self.gone = defaultdict(lambda: (0, 0))  # partition -> (start of the view, start of the log)
        self.settled_cuts = {}  # (partition, commit sequence) -> offset, once a later commit has fixed it
        self.cut_count = 0

    def begin(self, group):
        txn = Txn(len(self.txns), group)
        self.txns.append(txn)
        return txn

    def wrote(self, crc, txn, part):
        assert crc not in self.written, "two batches with one CRC: another seed, please"
        self.written[crc] = (txn, part)

    def refuse(self, txn):
        """It was told that nothing is committed, or it never asked."""
        assert not txn.acked, f"{txn} was acknowledged, and is refused now"
        assert not txn.found, f"{txn} was refused, and is committed in {txn.found}"
        txn.refused = True

    # -- the log -----------------------------------------------------------------------------------------------

    def learn(self, target, partition):
        """Take in what has become durable."""
        known = self.known.get(target)
        if known is None:
            known = self.known[target] = Known(partition.start_offset)
        if known.scanned_to < partition.high_watermark:
            self._scan(known, target, partition)
        self.gone[target] = (
            max(self.gone[target][0], partition.visible_start(Isolation.READ_COMMITTED)),
            max(self.gone[target][1], partition.start_offset),
        )

    def _scan(self, known, target, partition):
        partition.log.prove_segments()
        while known.scanned_to < partition.high_watermark:
            read = partition.read(known.scanned_to, 1 << 30, Isolation.READ_UNCOMMITTED)
            assert read.buffers, f"{target}: nothing at {known.scanned_to}, before {partition.high_watermark}"
            self._take(known, target, b"".join(read.buffers))

    def _take(self, known, target, data):
        for at, header in headers_in(data):
            if header.next_offset <= known.scanned_to:
                continue
            known.scanned_to = header.next_offset
            if header.is_control:
                self._end(known, target, header, read_marker(data, at))
                continue
            batch = (header.base_offset, header.last_offset_delta + 1, header.crc)
            assert crc_holds(data, at, header), f"{target}: damaged at {header.base_offset}"
            txn, part = self.written.get(header.crc, (None, None))
            assert part is not None, f"{target}: never written: {batch}"
            assert part[0] == target, f"{target}: written to {part}: {batch}"
            if header.is_transactional:
                known.open.setdefault(header.producer_id, []).append(batch)
                txn.begun.setdefault(part, header.base_offset)
            else:
                known.rows.append(Row(*batch, header.base_offset))

    def _end(self, known, target, header, marker):
        batches = known.open.pop(header.producer_id, [])
        count = sum(batch[1] for batch in batches)
        if marker.type is not MarkerType.COMMIT or not header.last_offset_delta:
            assert marker.type is not MarkerType.COMMIT or not count, f"{target}: a marker without positions"
            return
        start, sequence = header.base_offset + 1, marker.commit_sequence
        group = marker.group
        assert sequence >= known.last_sequence.get(group, 0), (
            f"{target}: commit {sequence} stands behind {known.last_sequence.get(group)}"
        )
        known.last_sequence[group] = sequence
        if count != header.last_offset_delta:
            assert known.begins_at > 0, f"{target}: {count} records, {header.last_offset_delta} positions"
            known.commits.append((start, header.next_offset, sequence, -1))
            return  # torn by retention, which another check looks after
        first_offset = batches[0][0]
        known.commits.append((start, header.next_offset, sequence, first_offset))
        position = start
        for _, batch_count, crc in batches:
            known.rows.append(Row(position, batch_count, crc, first_offset))
            position += batch_count
        txn, part = self.written[batches[0][2]]
        assert txn is not None, f"{target}: a plain batch in a transaction"
        self._found(
            txn, part, [crc for _, _, crc in batches], Part(start, position, first_offset), sequence, group
        )

    def _found(self, txn, part, crcs, where, sequence, group):
        """A part of a transaction is committed in the log."""
        assert txn.asked, f"{txn} was never to be committed: {part}"
        assert not txn.refused, f"{txn} was never committed: {part}"
        assert crcs == txn.parts.get(part), f"{txn}, {part}: other batches than were acknowledged"
        assert txn.found.setdefault(part, where) == where, (
            f"{txn}, {part}: moved from {txn.found[part]} to {where}"
        )
        assert txn.group == group, f"{txn} of group {txn.group!r} is marked for {group!r}"
        if txn.sequence == sequence:
            return
        assert txn.sequence < 0, f"{txn} has two numbers: {txn.sequence}, {sequence}"
        other = self.by_sequence[group].setdefault(sequence, txn)
        assert other is txn, f"{txn} and {other} have the same number {sequence}"
        assert sequence > self.counted[group], (
            f"{txn} is commit {sequence}, and R was {self.counted[group]} before"
        )
        assert sequence > txn.asked_after, f"{txn} is commit {sequence}, asked for after {txn.asked_after}"
        txn.sequence = sequence
        self.waiting.append(txn)

    def reopened(self, target, partition):
        """A partition was recovered: whatever was durable is where it was."""
        before = self.known.get(target)
        after = Known(partition.start_offset)
        if before is not None:
            assert partition.high_watermark >= before.scanned_to, (
                f"{target}: durable to {before.scanned_to}, and ends at {partition.high_watermark}"
            )
        view_start, log_start = self.gone[target]
        assert partition.visible_start(Isolation.READ_COMMITTED) >= view_start, (
            f"{target}: the view's start moved back"
        )
        assert partition.start_offset >= log_start, f"{target}: the log's start moved back"
        self._scan(after, target, partition)
        if before is not None:
            kept = [row for row in before.rows if self._is_left(row, partition.start_offset)]
            now = [row for row in after.rows if row.position < before.scanned_to]
            assert kept == now, f"{target}: other positions after a restart: {kept} {now}"
        self.known[target] = after
        self.learn(target, partition)

    # -- the view ----------------------------------------------------------------------------------------------

    def is_gone(self, target, where):
        """Whether retention or DeleteRecords has taken a part."""
        view_start, log_start = self.gone[target]
        return where.end <= view_start or where.first_offset < log_start

    def _is_left(self, row, log_start):
        """Whether the log has the whole transaction of a batch; of a batch outside transactions, its end."""
        if self.written[row.crc][0] is None:
            return row.position + row.count > log_start
        return row.first_offset >= log_start

    def expected(self, target, start, end):
        """What a reader of [start, end) gets."""
        log_start = self.gone[target][1]
        return [
            row
            for row in self.known[target].rows
            if row.position < end and row.position + row.count > start and self._is_left(row, log_start)
        ]

    def read(self, target, partition, start, end, chance):
        """What it does get, fetch after fetch, each of another size."""
        found = []
        position = start
        partition.log.prove_segments()
        while position < end:
            size_max = chance.choice((1, 150, 400, 1 << 20))
            buffers = partition.read(position, size_max, Isolation.READ_COMMITTED).buffers
            if not buffers:
                break
            data = b"".join(buffers)
            first = True
            for at, header in headers_in(data):
                assert not first or header.next_offset > position, f"{target}: a batch below {position}"
                first = False
                assert crc_holds(data, at, header), (
                    f"{target}: a batch that is damaged at {header.base_offset}"
                )
                position = header.next_offset
                if header.base_offset < end:
                    found.append((header.base_offset, header.last_offset_delta + 1, header.crc))
        return found

    def check_view(self, target, partition, chance):
        """The view is what a sort by commit marker says."""
        self.learn(target, partition)
        start = partition.visible_start(Isolation.READ_COMMITTED)
        end = partition.last_stable_offset
        found = self.read(target, partition, start, end, chance)
        expected = [row[:3] for row in self.expected(target, start, partition.high_watermark)]
        assert found == expected, f"{target} from {start}: {found} is not {expected}"
        listed = [
            (one.start, one.end, one.commit_sequence) for one in partition.view.transactions(start, 1000)
        ]
        log_start = self.gone[target][1]
        told = [
            commit[:3]
            for commit in self.known[target].commits
            if commit[1] > start and commit[3] >= log_start
        ]
        assert listed == told, f"{target}: the index lists {listed}, the log {told}"

    # -- cuts --------------------------------------------------------------------------------------------------

    def is_whole(self, txn):
        """Whether each part is committed, or was taken as a whole by retention before that was durable."""
        return all(
            part in txn.found or txn.begun.get(part, 1 << 62) < self.gone[part[0]][1] for part in txn.parts
        )

    def check_cut(self, group, commit_sequence, offsets, partitions):
        """A cut at R, just answered: whole transactions, and all of them up to R. R never goes back."""
        self.cut_count += 1
        assert commit_sequence >= self.counted[group], (
            f"R moved back from {self.counted[group]} to {commit_sequence}"
        )
        for target, partition in partitions.items():
            self.learn(target, partition)
        self.counted[group] = max(self.counted[group], commit_sequence)
        left = []
        for txn in self.waiting:
            if txn.group != group:
                left.append(txn)
            elif txn.sequence <= commit_sequence:
                assert self.is_whole(txn), f"{txn}, commit {txn.sequence}, is torn at R={commit_sequence}"
            else:
                left.append(txn)
            self._check_side(txn, commit_sequence, offsets)
        self.waiting = left
        self._note_settled(commit_sequence, offsets)

    def _check_side(self, txn, commit_sequence, offsets):
        for (target, _), where in txn.found.items():
            if target not in offsets or self.is_gone(target, where):
                continue
            if txn.sequence <= commit_sequence:
                assert where.end <= offsets[target], (
                    f"{txn} lies behind the cut {commit_sequence} in {target}"
                )
            else:
                assert where.start >= offsets[target], (
                    f"{txn} lies before the cut {commit_sequence} in {target}"
                )

    def _note_settled(self, commit_sequence, offsets):
        for target, offset in offsets.items():
            if any(
                commit[2] > commit_sequence and commit[0] == offset
                for commit in self.known[target].commits[-8:]
            ):
                self.settled_cuts[target, commit_sequence] = offset

    def check_past_cut(self, group, commit_sequence, offsets, partitions):
        """A cut that was asked for by its number."""
        for target, partition in partitions.items():
            self.learn(target, partition)
        for txn in self.txns:
            if txn.sequence >= 0 and txn.group == group:
                self._check_side(txn, commit_sequence, offsets)
        for target, offset in offsets.items():
            before = self.settled_cuts.get((target, commit_sequence))
            if before is None:
                continue
            # Once what stood there is deleted, the next transaction bounds the cut.
            start = partitions[target].visible_start(Isolation.READ_COMMITTED)
            passed = self.expected(target, start, offset) if start < offset else []
            moved = before < start <= offset and all(self.written[row.crc][0] is None for row in passed)
            assert offset == before or moved, (
                f"the cut {commit_sequence} of {target} was at {before}, is at {offset}"
            )

    def check_between(self, before, after, partitions, chance):
        """A reader between two cuts (R, offsets) gets exactly the transactions between them, whole."""
        parts = defaultdict(set)
        for target, partition in partitions.items():
            start, end = before[1][target], after[1][target]
            found = self.read(target, partition, start, end, chance)
            expected = [row[:3] for row in self.expected(target, start, end)]
            assert found == expected, f"{target} [{start}, {end}): {found} is not {expected}"
            for _, _, crc in found:
                txn, part = self.written[crc]
                if txn is not None:
                    parts[txn].add(part)
        for txn, there in parts.items():
            gone = {
                part for part in txn.parts if part not in txn.found or self.is_gone(part[0], txn.found[part])
            }
            assert there | gone == set(txn.parts), f"{txn} is read in part: {there} of {set(txn.parts)}"
            assert before[0] < txn.sequence <= after[0], (
                f"{txn}, commit {txn.sequence}, between {before[0]} and {after[0]}"
            )

    def check_end(self):
        """Everything has settled: whatever was acknowledged is there."""
        for txn in self.txns:
            if txn.acked:
                assert self.is_whole(txn), f"{txn} was acknowledged, and is not there"
            assert not txn.found or self.is_whole(txn), f"{txn} is torn for ever"
            assert not txn.found or 0 <= txn.sequence <= self.counted[txn.group], f"{txn} is in no cut"
        for crc, target in self.acknowledged_plain.items():
            known = self.known[target]
            if known.begins_at == 0:
                assert any(row.crc == crc for row in known.rows), f"a plain batch of {target} is lost"
