"""Verify: a whole log has no finding, and a file that says something else about the log has one, whatever it says.

The forged files are well-formed: every CRC holds, and the summary agrees with a forged index. So a finding can only come
from the comparison with the log.
"""

import random
from collections import defaultdict
from dataclasses import fields, replace

import pytest
from crc32c import crc32c

from stablelog.log.files.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.files.log_start import LOG_START_FILE, encode_log_start
from stablelog.log.indexes.offset_index import ENTRY as OFFSET_ENTRY
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.time_index import ENTRY as TIME_ENTRY
from stablelog.log.indexes.transaction_index import ENTRY as TXN_ENTRY
from stablelog.log.indexes.transaction_index import AbortedTxn, TransactionIndex
from stablelog.log.producer_state.producer import KeptBatch
from stablelog.log.producer_state.producer_table import ProducerTable
from stablelog.log.producer_state.snapshots import (
    decode_producers,
    decode_snapshot,
    encode_producers,
    encode_snapshot,
)
from stablelog.log.verify import verify_directory
from tests.log.test_damage import headers
from tests.log.timeline import DIRECTORY, Log

UNPROVEN = {"first_timestamp", "index_size", "timeindex_size", "txnindex_size"}  # a start does not use them
STEPS = 70


def path_of(offset, suffix):
    return DIRECTORY / f"{offset:020d}{suffix}"


def several_epochs(seed, *, clean=False):
    """A log of several segments and leader epochs, with transactions of each fate across them; some are open."""
    chance = random.Random(seed)
    log = Log(segment_bytes=900, index_interval_bytes=120, snapshot_bytes=500)
    began = set()
    for step in range(STEPS):
        producer, choice = chance.randint(1, 4), chance.random()
        if choice < 0.55:
            time_ms = log.now_ms + chance.choice([step, -step, 0])
            log.append(producer, count=chance.randint(1, 3), size=chance.randint(1, 40), time_ms=time_ms)
            began.add(producer)
        elif choice < 0.65:
            log.write("-", sync=False)
        elif choice < 0.9 and began:
            producer = chance.choice(sorted(began))
            began.remove(producer)
            log.end(producer, commit=chance.random() < 0.4, coordinator_epoch=step)
        log.now_ms += 1
        if step % 7 == 0:
            log.sync()
            log.partition.log.take_snapshot()
            log.sync()
        if step in (STEPS // 3, STEPS // 2):
            log.reopen(clean=chance.random() < 0.5, leader_epoch=step)
    log.sync()
    log.bases = [segment.base_offset for segment in log.partition.segments()]
    log.end_offset = log.partition.end_offset
    log.partition.close(clean=clean)
    return log


def findings(log, **known):
    return list(verify_directory(log.disk, DIRECTORY, **known))


# -- forgeries: the content of some files, and the paths that findings have to name --------------------------------


def content_of(log, path):
    return log.disk.read_bytes(path) if log.disk.exists(path) else b""


def with_summary(log, base, suffix, content):
    """The forged index, and the summary that agrees with it if there is one."""
    path = path_of(base, suffix)
    files, summary = {path: content}, path_of(base, ".summary")
    if log.disk.exists(summary):
        crc = {f"{suffix[1:]}_crc": crc32c(content)}
        files[summary] = replace(Summary.decode(log.disk.read_bytes(summary)), **crc).encode()
    return files, {path}


def forged_offset_and_time_indexes(log):
    for base in log.bases:
        for suffix, entry, changes in (
            (".index", OFFSET_ENTRY, [(-9, 0), (0, 1), (0, -1)]),
            (".timeindex", TIME_ENTRY, [(1, 0), (-1, 0)]),
        ):
            content = content_of(log, path_of(base, suffix))
            for at in range(0, len(content), entry.size):
                row = entry.unpack_from(content, at)
                for change in changes:
                    new = entry.pack(*map(sum, zip(row, change, strict=True)))
                    forged = content[:at] + new + content[at + entry.size :]
                    yield with_summary(log, base, suffix, forged)
        if base == log.bases[-1]:
            continue  # it grows: what lies behind its end is what was not read
        position, header = headers(log, path_of(base, ".log"))[-1]
        end = header.next_offset - base
        for suffix, row in (
            (".index", OFFSET_ENTRY.pack(end, position + header.size)),
            (".index", OFFSET_ENTRY.pack(end - 1, position + 1)),
            (".timeindex", TIME_ENTRY.pack(log.now_ms + 10**6, end)),
        ):
            yield with_summary(log, base, suffix, content_of(log, path_of(base, suffix)) + row)


def forged_transaction_indexes(log):
    for base in log.bases:
        content, sealed = content_of(log, path_of(base, ".txnindex")), base != log.bases[-1]
        index = TransactionIndex(content)
        entries, forged = [index[place] for place in range(len(index))], []
        for place, one in enumerate(entries):
            for name in AbortedTxn._fields:
                changes = [one._replace(**{name: getattr(one, name) + by}) for by in (1, -1)]
                # What lies past the end of the growing segment has not been read.
                changes = [changed for changed in changes if changed.last_offset < log.end_offset]
                forged += [[*entries[:place], changed, *entries[place + 1 :]] for changed in changes]
            if sealed:  # that of the growing segment may end early
                forged.append([*entries[:place], *entries[place + 1 :]])
            forged.append([*entries[:place], one, *entries[place:]])
        last = headers(log, path_of(base, ".log"))[-1][1].last_offset
        forged.append([*entries, AbortedTxn(77, last, last, last)])
        for rows in forged:
            yield with_summary(log, base, ".txnindex", b"".join(TXN_ENTRY.pack(0, *row) for row in rows))
        if sealed:
            yield with_summary(log, base, ".txnindex", content + b"\0")


def forged_summaries(log):
    for base in log.bases[:-1]:
        path = path_of(base, ".summary")
        known = Summary.decode(log.disk.read_bytes(path))
        for field in fields(Summary):
            for by in (1, -1) if field.name not in UNPROVEN else ():
                value = getattr(known, field.name) + by
                if value < 0 and field.name.endswith("crc"):
                    continue
                named = {path}
                # The summary's own CRC holds: the other file is the one that has changed.
                if field.name in ("log_size", "log_crc", "index_crc", "timeindex_crc", "txnindex_crc"):
                    named = {path_of(base, f".{field.name.split('_')[0]}")}
                elif field.name == "end_offset":  # a segment that begins there is missed
                    named.add(path_of(value, ".log"))
                yield {path: replace(known, **{field.name: value}).encode()}, named


def forged_producers(producers, *, is_kafkas):
    """Tables in which something of one producer is not what the log says."""
    for place, one in enumerate(producers):
        forged = [
            [replace(one, producer_epoch=one.producer_epoch + 1)],
            [replace(one, coordinator_epoch=one.coordinator_epoch + 1)],
            [replace(one, txn_first_offset=one.txn_first_offset + 1)],
            [one, replace(one, producer_id=99)],
        ]
        if one.txn_first_offset >= 0:
            forged += [[], [replace(one, txn_first_offset=-1)]]
        for at, batch in enumerate(one.batches):
            for name in KeptBatch._fields:
                if is_kafkas and name == "timestamp_ms":
                    continue  # it may be that of a marker
                changed = batch._replace(**{name: getattr(batch, name) + 1})
                forged.append([replace(one, batches=[*one.batches[:at], changed, *one.batches[at + 1 :]])])
        for rows in forged:
            yield ProducerTable.from_producers([*producers[:place], *rows, *producers[place + 1 :]])


def forged_snapshots(log):
    for path in sorted(log.disk.files()):
        if path.suffix == ".producers":
            table, progress = decode_producers(log.disk.read_bytes(path))
            for forged in forged_producers(list(table), is_kafkas=False):
                yield {path: b"".join(encode_producers(forged, progress))}, {path}
        elif path.suffix == ".snapshot":
            table = decode_snapshot(log.disk.read_bytes(path), 0)
            for forged in forged_producers(list(table), is_kafkas=True):
                yield {path: b"".join(encode_snapshot(forged))}, {path}


def together(forgeries):
    """Forgeries of different files, which are made at the same time."""
    by_files = defaultdict(list)
    for files, named in forgeries:
        by_files[frozenset(files)].append((files, named))
    while any(by_files.values()):
        found = [rest.pop() for rest in by_files.values() if rest]
        yield (
            {path: content for files, _ in found for path, content in files.items()},
            {path for _, named in found for path in named},
        )


FORGERIES = [
    forged_offset_and_time_indexes,
    forged_transaction_indexes,
    forged_summaries,
    forged_snapshots,
]


@pytest.mark.extended
@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_a_file_that_says_something_else_than_the_log_is_named(forge):
    log = several_epochs(0)
    assert findings(log) == []
    forgeries = list(forge(log))
    assert len(forgeries) > 50
    for files, named in together(forgeries):
        before = {path: content_of(log, path) for path in files}
        for path, content in files.items():
            log.disk.write_atomic(path, content)
        assert {finding.path for finding in findings(log)} == named
        for path, content in before.items():
            log.disk.write_atomic(path, content)


# -- what may differ -------------------------------------------------------------------------------------------------


def deleted_up_to(log, base):
    """Retention has deleted the segments before this one."""
    for path in list(log.disk.files()):
        if path.parent == DIRECTORY and path.stem.isdigit() and int(path.stem) < base:
            log.disk.lose(path)
    log.disk.write_atomic(DIRECTORY / LOG_START_FILE, encode_log_start(base))
    log.bases = [one for one in log.bases if one >= base]
    return log


def without_snapshots(log, *suffixes, before=None):
    for path in list(log.disk.files()):
        if path.suffix in suffixes and (before is None or int(path.stem) < before):
            log.disk.lose(path)
    return log


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("place", [1, 2, -1])
@pytest.mark.parametrize("lost", [(), (".producers",), (".snapshot", ".producers")], ids=str)
def test_a_log_whose_beginning_was_deleted_has_no_finding(seed, place, lost):
    log = several_epochs(seed)
    deleted_up_to(log, log.bases[place])
    assert findings(without_snapshots(log, *lost), recovery_point=log.end_offset, gapless_epoch=0) == []


@pytest.mark.parametrize(
    ("lost", "forge"),
    [(False, forge) for forge in FORGERIES]
    # Kafka's snapshot has one batch of a producer, and does not count the records of open transactions.
    + [(True, forged_offset_and_time_indexes), (True, forged_transaction_indexes)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_forgeries_are_found_behind_the_snapshot_at_the_logs_start(lost, forge):
    log = several_epochs(5)
    deleted_up_to(log, log.bases[3])
    base = log.bases[0]
    if lost:
        log.disk.lose(path_of(base, ".producers"))
    assert findings(log) == []
    for files, named in together(one for one in forge(log) if all(int(path.stem) > base for path in one[0])):
        assert {finding.path for finding in forged(log, files)} == named


def forged(log, files):
    """The findings with some files forged."""
    before = {path: content_of(log, path) for path in files}
    for path, content in files.items():
        log.disk.write_atomic(path, content)
    found = findings(log)
    for path, content in before.items():
        log.disk.write_atomic(path, content)
    return found


def test_without_a_snapshot_at_the_logs_start_aborts_are_compared_by_their_ends():
    """An entry may begin earlier than what is left of its transaction; its producer and its end are known."""
    log = several_epochs(5)
    deleted_up_to(log, log.bases[2])
    without_snapshots(log, ".producers", ".snapshot")
    assert findings(log) == []
    count = 0
    for base in log.bases[:-1]:
        index = TransactionIndex(content_of(log, path_of(base, ".txnindex")))
        entries = [index[place] for place in range(len(index))]
        for place, one in enumerate(entries):
            if one.first_offset >= log.bases[0]:
                count += 1
                check_entry_by_its_end(log, base, entries, place)
    assert count > 2


def check_entry_by_its_end(log, base, entries, place):
    one = entries[place]
    for changes, is_named in (
        ({"producer_id": one.producer_id + 1}, True),
        ({"first_offset": one.last_offset}, True),
        ({"first_offset": 0}, False),
        ({"stable_offset": one.stable_offset + 40}, True),
        ({"stable_offset": 0}, False),
        (None, True),
    ):
        rows = [
            *entries[:place],
            *([] if changes is None else [one._replace(**changes)]),
            *entries[place + 1 :],
        ]
        files, named = with_summary(log, base, ".txnindex", b"".join(TXN_ENTRY.pack(0, *row) for row in rows))
        assert {finding.path for finding in forged(log, files)} == (named if is_named else set())


def test_a_file_of_leader_epochs_that_cannot_be_read_is_named_with_the_reason():
    path = DIRECTORY / EPOCH_FILE
    (finding,) = forged(several_epochs(0), {path: b"0\nmany\n"})
    assert finding.path == path
    assert finding.message


def test_leader_epochs_are_compared_from_where_both_are_known():
    log = several_epochs(0)
    path = DIRECTORY / EPOCH_FILE
    entries = LeaderEpochs.decode(log.disk.read_bytes(path)).entries
    assert len(entries) == 3
    for place, (epoch, start) in enumerate(entries):
        for changed in ((epoch + 1, start), (epoch, start + 1), (epoch, start - 1)):
            rows = [*entries[:place], changed, *entries[place + 1 :]]
            if changed[1] < 0 or (place == 0 and changed[0] == epoch):
                continue  # the log's start may have moved
            assert {finding.path for finding in forged(log, {path: LeaderEpochs(rows).encode()})} == {path}
    for rows, is_named in (
        (entries[1:], False),
        (entries[:-1], False),
        ([entries[0], entries[-1]], True),
        ([*entries, (10**6, log.end_offset)], False),
        ([*entries, (10**6, log.end_offset - 1)], True),
        ([(10**6, log.end_offset)], False),
        ([(10**6, log.end_offset - 1)], True),
        ([], False),
    ):
        found = {finding.path for finding in forged(log, {path: LeaderEpochs(rows).encode()})}
        assert found == ({path} if is_named else set()), rows
    log.disk.lose(path)
    assert findings(log) == []


def test_the_logs_start_and_end_are_held_against_what_the_broker_has_recorded():
    log = several_epochs(1)
    start, last = DIRECTORY / LOG_START_FILE, path_of(log.bases[-1], ".log")
    for offset, is_named in ((0, False), (log.end_offset, False), (log.end_offset + 1, True)):
        found = [finding.path for finding in forged(log, {start: encode_log_start(offset)})]
        assert found == ([start] if is_named else [])
    assert findings(log, recovery_point=log.end_offset) == []
    assert [finding.path for finding in findings(log, recovery_point=log.end_offset + 1)] == [last]
    deleted_up_to(log, log.bases[1])
    assert [one.path for one in forged(log, {start: encode_log_start(log.bases[0] - 1)})] == [
        path_of(log.bases[0] - 1, ".log")
    ]
