"""What a directory proves of the last manifest in the store."""

import re
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from stablelog.errors import DamageError
from stablelog.log.files.restored import Restored
from stablelog.log.indexes.summary import Summary
from stablelog.tier.history import LocalHistory, ProvenManifest, proven_manifest
from stablelog.tier.manifest import Manifest
from stablelog.tier.published import Published
from stablelog.tier.records import SegmentState
from stablelog.tier.remote_segment import RemoteSegment

TOPIC_ID = uuid.UUID(int=7)
DRILL = Restored(((20, 1_000),), 5_000, -1, 7, 1_000)


def summary(base, end, content=0):
    return Summary(base, end, log_size=100, log_crc=content, record_count=end - base, stable_offset=end)


def row(base, end, content=0, **more):
    return RemoteSegment(
        uuid.uuid4(), base, end, 100, -1, ((1, base),), summary=summary(base, end, content), **more
    )


def segment(base, end, content=0):
    return SimpleNamespace(
        base_offset=base, end_offset=end, size=100, summary=summary(base, end, content), sealed=True
    )


def manifest(*rows, log_start=0, restored=None):
    return Manifest("c", log_start, rows, published=Published(20, 0, 1, {}, TOPIC_ID, 0, restored))


def local(*segments, recorded=None, log_start=0, restored=None):
    start = segments[0].base_offset if segments else 0
    return LocalHistory("t/0", "c", segments, start, log_start, recorded, restored)


ROWS = (row(0, 10), row(10, 20, 5))


def test_a_manifest_of_the_local_log_holds_as_it_is():
    found = manifest(*ROWS)
    assert proven_manifest(
        found, local(segment(0, 10), segment(10, 20, 5), segment(20, 22))
    ) == ProvenManifest(found)


def test_without_a_manifest_nothing_was_copied():
    assert proven_manifest(None, local(segment(7, 10))) == ProvenManifest(Manifest("c", 7))


def test_other_batches_of_the_same_size_are_another_log():
    """A stale copy of the directory gets records of its own, as many and as large."""
    with pytest.raises(DamageError, match="the local segment 10 of t/0 differs"):
        proven_manifest(manifest(*ROWS), local(segment(0, 10), segment(10, 20, 6), segment(20, 22)))


def test_a_local_log_that_ends_before_the_last_copy_is_another_one():
    with pytest.raises(DamageError, match="ends at offset 10"):
        proven_manifest(manifest(*ROWS), local(segment(0, 10)))


def test_a_local_log_that_ends_before_the_durable_records_of_the_manifest_is_only_its_beginning():
    """A stale copy of the directory may have all that is copied, and has copied nothing itself."""
    found = manifest(*ROWS)._replace(published=Published(23, 0, 1, {}, TOPIC_ID, 0))
    whole = segment(0, 10), segment(10, 20, 5)
    for recorded in (None, Manifest("c"), manifest(*ROWS)):
        for last in ((), (segment(20, 22),)):
            with pytest.raises(
                DamageError, match="durable records up to offset 23, but the local log ends at"
            ):
                proven_manifest(found, local(*whole, *last, recorded=recorded))
        assert proven_manifest(found, local(*whole, segment(20, 23), recorded=recorded)).manifest == found
    empty = manifest()._replace(published=Published(3, 0, 1, {}, TOPIC_ID, 0))
    for log in (local(), local(segment(0, 2))):
        with pytest.raises(DamageError, match="up to offset 3"):
            proven_manifest(empty, log)
    restored_since = manifest(*ROWS)._replace(published=Published(1_023, 0, 1, {}, TOPIC_ID, 0, DRILL))
    assert proven_manifest(restored_since, local(*whole)).is_foreign, "a restore counts from other offsets"


def test_what_this_directory_has_published_must_still_be_there():
    recorded = manifest(*ROWS)
    log = segment(20, 22)
    assert proven_manifest(manifest(*ROWS, row(20, 22)), local(log, recorded=recorded))
    for other in (manifest(ROWS[0]), manifest(row(0, 10), ROWS[1]), None):
        with pytest.raises(DamageError, match=r"are lost|lacks segment 0"):
            proven_manifest(other, local(log, recorded=recorded))
    deleted = manifest(ROWS[1], log_start=10)
    assert proven_manifest(deleted, local(log, recorded=recorded, log_start=10)).manifest == deleted


def test_what_a_restore_has_left_out_for_another_directory_is_not_left_out_here():
    found = manifest(*ROWS, restored=DRILL)
    log = segment(0, 10), segment(10, 20, 5), segment(20, 22)
    assert proven_manifest(found, local(*log)) == ProvenManifest(manifest(*ROWS), is_foreign=True)
    assert proven_manifest(found, local(*log, restored=DRILL)) == ProvenManifest(found)
    here = proven_manifest(manifest(*ROWS), local(*log, restored=DRILL))
    assert here == ProvenManifest(found, is_foreign=True), (
        "the restored directory says so, whoever has published"
    )


def test_a_log_start_that_this_directory_has_not_recorded_passes_no_local_record():
    found, recorded = manifest(*ROWS, log_start=10), manifest(*ROWS)
    with pytest.raises(DamageError, match="has deleted records that this one keeps"):
        proven_manifest(found, local(segment(0, 10), segment(10, 20, 5), recorded=recorded))
    own = proven_manifest(found, local(segment(0, 10), segment(10, 20, 5), recorded=recorded, log_start=10))
    assert own == ProvenManifest(found), (
        "this broker has recorded it, and was killed before it deleted the segment"
    )


def test_records_that_were_only_in_the_store_may_be_gone():
    marked = replace(ROWS[0], state=SegmentState.DELETE_STARTED)
    found = manifest(marked, ROWS[1], log_start=10)
    recorded = manifest(*ROWS)
    assert proven_manifest(found, local(segment(10, 20, 5), recorded=recorded)) == ProvenManifest(
        found, lost=(0, 10)
    )
    assert proven_manifest(found, local(segment(10, 20, 5))) == ProvenManifest(found), "the record was lost"


def test_a_manifest_of_another_cluster_is_refused():
    with pytest.raises(DamageError, match="written by cluster other"):
        proven_manifest(Manifest("other"), local(segment(0, 10)))


def test_a_refusal_names_a_section_of_the_documents():
    with pytest.raises(DamageError) as refused:
        proven_manifest(manifest(*ROWS), local(segment(0, 10)))
    path, heading = re.search(r'follow (\S+), "([^"]+)"', str(refused.value)).groups()
    assert f"## {heading}\n" in Path(path).read_text()
