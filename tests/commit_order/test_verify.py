"""Verify of commit indexes: sound ones have no finding, and one that leads elsewhere has one, whatever it says."""

import random
from dataclasses import replace

import pytest
from crc32c import crc32c

from stablelog.commit_order import verify
from stablelog.commit_order.extents import EXTENT, SEVERAL, BatchExtent
from stablelog.commit_order.index_format import (
    ENTRIES_SUFFIX,
    ENTRY,
    EXTENTS_SUFFIX,
    NO_PRODUCER,
    SUMMARY_SUFFIX,
    CommitSummary,
    Entry,
)
from stablelog.commit_order.verify import verify_view
from tests.commit_order.committed_log import DIRECTORY, Log
from tests.commit_order.test_last_commit import grown, path_of


def sealed(seed):
    """A closed log of several segments, with commit indexes."""
    log = grown(random.Random(seed), steps=120)
    log.sync()
    log.partition.close()
    paths = sorted(path for path in log.disk.files() if path.name.endswith(SUMMARY_SUFFIX))
    return log, [int(path.name.partition(".")[0]) for path in paths]


def findings(log):
    return [finding.path for finding in verify_view(log.disk, DIRECTORY)]


def write_index(log, base, entries, extents):
    """Write rows, and the summary that agrees with them."""
    path = path_of(base, SUMMARY_SUFFIX)
    contents = b"".join(ENTRY.pack(*row) for row in entries), b"".join(EXTENT.pack(*row) for row in extents)
    for suffix, content in zip((ENTRIES_SUFFIX, EXTENTS_SUFFIX), contents, strict=True):
        log.disk.write_atomic(path_of(base, suffix), content)
    summary = replace(
        CommitSummary.decode(log.disk.read_bytes(path)),
        entries_size=len(contents[0]),
        entries_crc=crc32c(contents[0]),
        extents_size=len(contents[1]),
        extents_crc=crc32c(contents[1]),
    )
    log.disk.write_atomic(path, summary.encode())


def forgeries(entries, extents):
    """Rows that lead a reader elsewhere than the log says."""
    for place, entry in enumerate(entries):
        before, behind = entries[:place], entries[place + 1 :]
        for name in ("start", "record_count"):
            for by in (1, -1):
                yield [*before, entry._replace(**{name: getattr(entry, name) + by}), *behind], extents
        yield [*before, *behind], extents
        yield [*before, entry, entry, *behind], extents
        if entry.producer_id != NO_PRODUCER:
            yield [*before, entry._replace(producer_id=entry.producer_id + 100), *behind], extents
        if entry.extent_count > 1:
            yield [*before, entry._replace(extent_count=entry.extent_count - 1), *behind], extents
    for place, extent in enumerate(extents):
        owner = next(
            (one for one in entries if 0 <= place - one.extent_first < one.extent_count and one.extent_count),
            None,
        )
        if owner is None:
            continue
        changes = [{"begin": extent.begin + 1}, {"end": extent.begin}, {"segment": extent.segment + 1}]
        if owner.producer_id != NO_PRODUCER:
            changes += [
                {"end": extent.end + 1},
                {"end": extent.end - 1},
                {"base_offset": extent.base_offset + 1},
            ]
            changes += [{"leader_epoch": extent.leader_epoch + 1}]
            changes += [{"length": extent.length + 1 if extent.length != SEVERAL else 7}]
        for change in changes:
            yield entries, [*extents[:place], extent._replace(**change), *extents[place + 1 :]]


@pytest.mark.extended
@pytest.mark.parametrize("seed", [9, 10])
def test_an_index_that_leads_elsewhere_than_the_log_says_is_named(seed):
    log, bases = sealed(seed)
    assert findings(log) == []
    count = 0
    for base in bases:
        contents = [log.disk.read_bytes(path_of(base, one)) for one in (ENTRIES_SUFFIX, EXTENTS_SUFFIX)]
        entries = [Entry(*row) for row in ENTRY.iter_unpack(contents[0])]
        extents = [BatchExtent(*row) for row in EXTENT.iter_unpack(contents[1])]
        for forged in forgeries(entries, extents):
            write_index(log, base, *forged)
            named = findings(log)
            assert named, forged
            assert set(named) == {path_of(base, ENTRIES_SUFFIX)}
            count += 1
        write_index(log, base, entries, extents)
        assert findings(log) == []
    assert count > 40


@pytest.mark.parametrize("seed", [9, 10])
def test_a_file_of_an_index_that_is_changed_cut_short_or_gone_is_named(seed):
    log, bases = sealed(seed)
    for suffix in (ENTRIES_SUFFIX, EXTENTS_SUFFIX, SUMMARY_SUFFIX):
        path = path_of(bases[1], suffix)
        content = log.disk.read_bytes(path)
        for changed in (content[:-1], content + b"\0", content[:-1] + bytes([content[-1] ^ 1])):
            log.disk.write_atomic(path, changed)
            assert findings(log) == [path]
        log.disk.write_atomic(path, content)
        if suffix != SUMMARY_SUFFIX:  # without its summary there is no index
            log.disk.lose(path)
            assert findings(log) == [path]
            log.disk.write_atomic(path, content)
    assert findings(log) == []


def test_nothing_is_proven_behind_a_damaged_batch():
    log, bases = sealed(9)
    assert findings(log) == []
    path = path_of(bases[1], ".log")
    content = bytearray(log.disk.read_bytes(path))
    content[16] = 7  # no such magic
    log.disk.damage(path, bytes(content))
    log.disk.lose(path_of(bases[2], EXTENTS_SUFFIX))
    assert findings(log) == [path]
    for base in bases:
        log.disk.lose(path_of(base, SUMMARY_SUFFIX))
    assert findings(log) == []


def test_of_a_long_log_only_what_open_transactions_lead_to_is_remembered(monkeypatch):
    log = Log(segment_bytes=600)
    for at in range(60):
        log.append(1)
        log.end(1)
        if at in (20, 40):
            log.append(2)
        if at == 30:
            log.end(2)
    log.sync()
    kept, forget_before = [], verify.LogWalk.forget_before

    def noting(walk, base_offset):
        forget_before(walk, base_offset)
        kept.append(sorted({base for base, _ in walk.headers}))

    monkeypatch.setattr(verify.LogWalk, "forget_before", noting)
    bases = [segment.base_offset for segment in log.partition.segments()]
    assert findings(log) == []
    assert len(bases) > 10
    # Of the present segment, and from the one on in which the oldest open transaction begins.
    first_offset = min(one.first_offset for one in log.partition.log.open_transactions())
    begin = max(base for base in bases if base <= first_offset)
    counts = [len(one) for one in kept]
    assert all(one == bases[at + 1 - len(one) : at + 1] for at, one in enumerate(kept))
    assert (counts[:3], max(counts[:20]) > 3, min(counts[10:30])) == ([1] * 3, True, 1)
    assert kept[-1][0] == begin


@pytest.mark.parametrize("seed", range(4))
def test_indexes_stay_provable_while_the_beginning_of_the_log_is_deleted(seed):
    log = grown(random.Random(seed), steps=120)
    log.sync()
    while log.partition.view.start_offset < log.partition.high_watermark - 20:
        log.partition.deletion.delete_records(log.partition.view.start_offset + 15)
        log.sync()
        assert findings(log) == []
        start = log.partition.view.start_offset
        assert log.read_all(start, 1 << 30) == [one for one in log.expected() if one[0] >= start]


@pytest.mark.parametrize("cut", [1, 20, 70])
def test_a_last_batch_that_is_torn_is_not_a_finding_of_the_view(cut):
    log = Log()
    log.append(1)
    log.end(1)
    log.partition.roll(log.now_ms)
    log.append(1)
    log.end(1)
    log.sync()
    path = log.partition.segments()[-1].path(".log")
    content = log.disk.read_bytes(path)
    log.disk.damage(path, content[:-cut])
    assert log.partition.view.indexes[0].summary
    assert findings(log) == []


@pytest.mark.parametrize("version", [-1, 0])
def test_a_version_that_no_summary_has_had_is_a_finding(version):
    log, bases = sealed(9)
    path = path_of(bases[0], SUMMARY_SUFFIX)
    content = version.to_bytes(2, "big", signed=True) + log.disk.read_bytes(path)[2:-4]
    log.disk.write_atomic(path, content + crc32c(content).to_bytes(4, "big"))
    assert findings(log) == [path]
