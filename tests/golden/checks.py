"""What has to hold of every cell once stablelog has opened Kafka's directory, and when its producers go on."""

import asyncio
import random
from dataclasses import replace

from kio.schema.errors import ErrorCode

from stablelog.log.verify import verify_directory
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import DATA, opened
from tests.golden.archives import durable_disk
from tests.golden.cells import OPEN, TV1, Cell
from tests.golden.kafka_writer import LAST_OFFSET, CellSeen
from tests.golden.look import (
    PartitionSeen,
    check_times,
    end_transaction,
    group_offset,
    look_at_partition,
    look_at_transaction,
)

LINE_SIZE_MAX = 500


class Failures:
    """What did not hold, by cell.

    Args:
        told: called with the first of each cell as it is found.
    """

    def __init__(self, told=lambda _line: None):
        self.by_cell: dict[Cell | str, list[str]] = {}
        self.told = told

    def add(self, cell: Cell | str, when: str, what: str) -> None:
        """Note one, of a cell or of one of Kafka's own logs."""
        line = f"{when}: {what}"
        if cell not in self.by_cell:
            self.told(f"{cell}: {line[:LINE_SIZE_MAX]}")
        self.by_cell.setdefault(cell, []).append(line)


def killed(disk: SimDisk) -> SimDisk:
    """The disk as a `kill -9` leaves it: the operating system has everything."""
    return durable_disk((path, bytes(disk.content(path))) for path in disk.files())


def check(
    disk: SimDisk, seen: dict[Cell, CellSeen], now_ms: int, failures: Failures, *, everywhere: bool = True
) -> None:
    """Open the directory, restart, and have each open transaction committed and aborted, each on its own copy."""
    _verify(disk, seen, "before it is opened", failures)
    asyncio.run(_check(disk, seen, now_ms, failures, everywhere=everywhere))


async def _check(disk, seen, now_ms, failures, *, everywhere):
    untouched = killed(disk)
    async with opened(disk, topics=(), now_ms=now_ms) as desk:
        await _compare(desk, seen, "opened", failures, everywhere=everywhere)
        after_kill = killed(disk)
        after_power_cut = disk.crash(random.Random(len(seen)))
    _verify(disk, seen, "stopped", failures)
    for word, left in (("stopped", disk), ("killed", after_kill), ("a power cut", after_power_cut)):
        async with opened(left, topics=(), now_ms=now_ms) as desk:
            await _compare(desk, seen, f"opened again after {word}", failures)
    still_open = {cell: cell_seen for cell, cell_seen in seen.items() if cell.state == OPEN}
    # At once, and after a restart.
    for start, word in ((untouched, "at once"), (disk, "after a restart")):
        for commit in (True, False):
            await _decide(killed(start), still_open, now_ms, failures, commit=commit, when=word)


async def _decide(disk, seen, now_ms, failures, *, commit, when):
    """The producers of the open transactions commit, or abort."""
    when = f"{'committed' if commit else 'aborted'} {when}"
    async with opened(disk, topics=(), now_ms=now_ms) as desk:
        expected = {}
        for cell, cell_seen in seen.items():
            txn = cell_seen.transaction
            error = await end_transaction(
                desk,
                cell.transactional_id,
                txn.producer_id,
                txn.producer_epoch,
                commit=commit,
                version=1 if cell.dialect == TV1 else 5,
            )
            if error is not ErrorCode.none:
                failures.add(cell, when, f"EndTxn answers {error.name}")
                continue
            state = "CompleteCommit" if commit else "CompleteAbort"
            bump = cell.dialect != TV1
            transaction = replace(
                txn, state=state, partitions=frozenset(), producer_epoch=txn.producer_epoch + bump
            )
            partitions = [_decided(partition, txn, commit=commit) for partition in cell_seen.partitions]
            offset = LAST_OFFSET if commit and cell.group is not None else cell_seen.group_offset
            expected[cell] = CellSeen(transaction, partitions, offset)
        await desk.durable()
        await _compare(desk, expected, when, failures, everywhere=True)
        left = killed(disk)
    async with opened(left, topics=(), now_ms=now_ms) as desk:
        await _compare(desk, expected, f"{when}, and a kill", failures)


def _decided(partition: PartitionSeen, txn, *, commit: bool) -> PartitionSeen:
    """What is to be seen once the open transaction has its marker."""
    committed = [
        record
        for record in partition.all_records
        if record in partition.committed
        or (record.offset >= partition.stable_offset and (commit or not record.value.startswith(b"last")))
    ]
    end = partition.end_offset + 1
    rows = [row for row in partition.producers if row[0] != txn.producer_id]
    return replace(partition, stable_offset=end, end_offset=end, committed=committed, producers=rows)


async def _compare(desk, seen, when, failures, *, everywhere=False):
    for cell, wanted in seen.items():
        try:
            found = CellSeen(
                await look_at_transaction(desk, cell.transactional_id),
                [
                    await look_at_partition(desk, cell.topic, index, everywhere=everywhere)
                    for index in range(cell.partition_count)
                ],
                -1 if cell.group is None else await group_offset(desk, cell.group, cell.topic),
            )
            for index, partition in enumerate(found.partitions if everywhere else ()):
                await check_times(desk, cell.topic, index, partition)
        except AssertionError as error:
            failures.add(cell, when, str(error))
            continue
        if found.transaction != wanted.transaction:
            failures.add(cell, when, f"{found.transaction} instead of {wanted.transaction}")
        if found.group_offset != wanted.group_offset:
            line = f"{cell.group} has committed {found.group_offset}, with Kafka {wanted.group_offset}"
            failures.add(cell, when, line)
        for index, (ours, kafkas) in enumerate(zip(found.partitions, wanted.partitions, strict=True)):
            for line in _differences(ours, kafkas, cell):
                failures.add(cell, when, f"partition {index}: {line}")


def _differences(ours: PartitionSeen, kafkas: PartitionSeen, cell: Cell):
    for name in ("start_offset", "stable_offset", "end_offset", "committed", "all_records"):
        there, wanted = getattr(ours, name), getattr(kafkas, name)
        if there != wanted:
            yield f"{name} is {there}, with Kafka {wanted}"
    # A marker that was written again has another coordinator's epoch; a producer that went on is not compared.
    known = {row[0]: row for row in ours.producers}
    for row in kafkas.producers:
        found = known.get(row[0])
        if found is None or cell.decision is None:
            same = found == row
        else:
            same = (*found[:3], found[4]) == (*row[:3], row[4])
        if not same:
            yield f"DescribeProducers says {found}, with Kafka {row}"


def _verify(disk, seen, when, failures):
    """`stablelog verify` finds nothing, in Kafka's own logs too."""
    cells = {f"{cell.topic}-{index}": cell for cell in seen for index in range(cell.partition_count)}
    for name in disk.list_dir(DATA):
        if is_partition(name) and disk.is_dir(DATA / name):
            for finding in verify_directory(disk, DATA / name):
                failures.add(cells.get(name, name), when, f"verify: {finding.path.name}: {finding.message}")


def is_partition(name):
    """Whether a directory of this name is one that `stablelog verify` looks at."""
    return name.rpartition("-")[2].isdigit()
