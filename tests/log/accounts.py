"""Accounts: what a partition does to its disk, told in text, compared with the text that is kept.

An account is a list of lines. `Account` tells of each step of a story which files have changed, decoded, and the operations
on the disk in their order. The kept texts lie in `tests/log/kept_accounts`. After a wanted change of behaviour,
`python -m tests.log.accounts` writes them again; the difference then shows what the change does, and is reviewed with it.
"""

import re
import struct
import sys
from pathlib import Path

from stablelog.batch.header import read_header
from stablelog.errors import DamageError
from stablelog.log.files.names import has_offset
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.time_index import TimeIndex
from stablelog.log.indexes.transaction_index import TransactionIndex
from stablelog.log.producer_state.snapshots import decode_producers, decode_snapshot
from stablelog.testing.sim_disk import SimDisk
from tests.log.timeline import NOW_MS

KEPT = Path(__file__).parent / "kept_accounts"


def short(text):
    """Names without the zeros that fill an offset."""
    return re.sub(r"\b0{1,19}(?=\d+\.)", "", text)


def time(value):
    """A time, counted from the beginning of the story."""
    return f"{value - NOW_MS:+d}" if value > NOW_MS // 2 else str(value)


class TracingDisk(SimDisk):
    """A simulated disk that keeps the operations that change something, and the files that are open.

    A file that nothing refers to stays among the open ones, unlike a real descriptor: who opens a file closes it.
    """

    def __init__(self):
        super().__init__()
        self.operations = []
        self.held = []

    def open(self, path, *, create=False):
        file = super().open(path, create=create)
        self.held.append(file)
        return file

    def release_file(self, file):
        super().release_file(file)
        if file in self.held:
            self.held.remove(file)

    def names_held(self):
        """The names of open files."""
        return sorted(short(file.path.name) for file in self.held)

    def step(self, what, torn=None, path=None):
        super().step(what, torn, path)
        self.operations.append(short(what))


def operations_of(disk):
    """The operations since this was asked last."""
    done = "; ".join(disk.operations).replace("sync directory t-0", "sync")
    disk.operations.clear()
    return done


def copy_of(disk):
    """A disk with the same files, all of them durable."""
    copied = TracingDisk()
    for path in disk.files():
        copied.make_dir(path.parent)
        copied.write_atomic(path, disk.read_bytes(path))
    copied.operations.clear()
    return copied


# -- files in words -------------------------------------------------------------------------------------------------


def of_log(content):
    """A line for each batch: offsets, place, producer, epoch, sequence, times, attributes."""
    at = 0
    while at < len(content):
        try:
            header = read_header(content, at)
        except (DamageError, struct.error):
            yield f"@{at} {len(content) - at} bytes"
            return
        who = f"P{header.producer_id}.{header.producer_epoch} #{header.base_sequence}"
        yield (
            f"@{at} [{header.base_offset}, {header.last_offset}] {header.record_count} records "
            f"{who if header.has_producer else '-'} {time(header.base_timestamp)} {time(header.max_timestamp)} "
            f"epoch {header.leader_epoch} attributes {header.attributes:x}"
        )
        at += header.size


def of_summary(one):
    """Offsets, times, size and CRC of each file, counts of records, and what was undecided and aborted."""
    return (
        f"{one.base_offset}..{one.end_offset} times {time(one.first_timestamp)} {time(one.max_timestamp)} "
        f"log {one.log_size}:{one.log_crc:08x} index {one.index_size}:{one.index_crc:08x} timeindex "
        f"{one.timeindex_size}:{one.timeindex_crc:08x} txnindex {one.txnindex_size}:{one.txnindex_crc:08x} records "
        f"{one.record_count} committed {one.committed_count} stable {one.stable_offset} aborted {one.least_aborted_offset}"
    )


def of_producers(table):
    """A line for each producer."""
    for one in table:
        batches = [
            f"#{b.last_sequence}@{b.last_offset}-{b.offset_delta} {time(b.timestamp_ms)}" for b in one.batches
        ]
        yield (
            f"P{one.producer_id}.{one.producer_epoch} coordinator {one.coordinator_epoch} used {time(one.used_ms)} "
            f"last {time(one.last_timestamp_ms)} txn {one.txn_first_offset} {time(one.txn_started_ms)} "
            f"{one.txn_record_count} batches {batches}"
        )


def in_words(name, content):
    """What a file holds, in lines."""
    base = int(name.partition(".")[0]) if has_offset(name) else 0
    suffix = name.partition(".")[2].removesuffix(".deleted") if has_offset(name) else name
    try:
        if suffix == "log" or suffix.startswith(("log.", "cut")):
            return list(of_log(content))
        if suffix == "index":
            index = OffsetIndex(base, content)
            return [str(index[at]) for at in range(len(index))]
        if suffix == "timeindex":
            times = TimeIndex(base, content)
            return [f"{time(times[at][0])} at {times[at][1]}" for at in range(len(times))]
        if suffix == "txnindex":
            txns = TransactionIndex(content)
            return [str(tuple(txns[at])) for at in range(len(txns))]
        if suffix == "summary":
            return [of_summary(Summary.decode(content))]
        if suffix == "producers":
            table, progress = decode_producers(content)
            return [f"progress {of_summary(progress)}", *of_producers(table)]
        if suffix == "snapshot":
            return list(of_producers(decode_snapshot(content, -1)))
    except DamageError as error:
        return [f"{len(content)} bytes: {type(error).__name__}"]
    return content.decode(errors="replace").split("\n")[:-1]


class Account:
    """The account of a story.

    Attributes:
        lines: what has been told so far.
    """

    def __init__(self):
        self.lines = []
        self._before = {}
        self._held = []

    def tell(self, title, disk, *more):
        """Tell what a step has done to the disk since the last one, and some more lines."""
        self.lines.append(f"# {title}")
        self.lines += [f"  {line}" for line in more]
        if disk.operations:
            self.lines.append(f"  > {operations_of(disk)}")
        if disk.names_held() != self._held:
            self._held = disk.names_held()
            self.lines.append(f"  open: {' '.join(self._held)}")
        now = {path.name: in_words(path.name, disk.read_bytes(path)) for path in disk.files()}
        for name in sorted(self._before.keys() | now.keys()):
            before, after = self._before.get(name), now.get(name)
            if after is None:
                self.lines.append(f"  {short(name)} is gone")
            elif before is None or before != after:
                at = 0
                while before and at < min(len(before), len(after)) and before[at] == after[at]:
                    at += 1
                self.lines.append(f"  {short(name)}" + (f" from line {at}" if before is not None else ""))
                self.lines += [f"    {line}" for line in after[at:]]
        self._before = now


def kept(name):
    """The lines of an account that are kept."""
    return (KEPT / f"{name}.txt").read_text().split("\n")[:-1]


def compare(name, lines):
    """Hold an account against the text that is kept."""
    assert lines == kept(name)


def main():
    """Write the texts."""
    from tests.log.test_accounts import ACCOUNTS

    KEPT.mkdir(exist_ok=True)
    for name, account in ACCOUNTS.items():
        (KEPT / f"{name}.txt").write_text("\n".join(account()) + "\n")
        print(f"wrote {KEPT / name}.txt", file=sys.stderr)


if __name__ == "__main__":
    main()
