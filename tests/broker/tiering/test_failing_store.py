"""A broker whose object store rejects its requests, or is not there: a wrong bucket, missing rights, an unknown host.

The broker says so once for its copies and once for reads, with URL and key. It reads nothing as empty, deletes nothing, and
serves what is on the local disk.
"""

import asyncio
import contextlib
import re
from functools import partial

import pytest
from kio.schema.errors import ErrorCode

from stablelog.env.objects import opening
from stablelog.env.objects.retrying_store import Patience
from stablelog.testing.s3 import S3Fault, serve_s3
from stablelog.testing.sim_disk import SimDisk
from tests.broker.tiering.desk import copy, log_of, tiered, write_segments
from tests.broker.tiering.life import URL, alive, reach
from tests.broker.tiering.world import lines
from tests.waiting import PATIENCE_S, until

RETRIABLE = (ErrorCode.kafka_storage_error, ErrorCode.not_leader_or_follower)
WRITES = ("put", "delete", "begin", "part", "complete", "abort")
KINDS = (*WRITES, "get", "head", "list")
CREATES = 4  # attempts, of both tasks that copy
UNKNOWN_HOST = "http://no-such-host.invalid:9000"
OTHER_BUCKET = "s3://other/prefix"
EVER = 10**9
SHORT = Patience(limit_s=0.2, pause_s=0.01)
ASKED_AGAIN = 20  # requests of several attempts to copy


def attempts(desk, call):
    """How many requests of a kind the broker has sent to the store."""
    found = {
        one.labels: one.value
        for one in desk.broker.tiering.samples()
        if one.name == "stablelog_remote_requests"
    }
    return found.get((call,), 0)


def check_line(told, url, words):
    """One line, with the URL, a key and these words."""
    (line,) = told
    assert re.search(rf"{url}/\S+/\S+", line), line
    assert words in line


def check_lines(told, url, words):
    """One line about copies and one about reads."""
    reading = [line for line in told if "a remote segment cannot be read" in line]
    assert len(told) == 2, told
    check_line(reading, url, words)
    check_line([line for line in told if line not in reading], url, words)


def check_failure(life, url, words):
    """Check that the broker asks a store that fails again and again, says so twice, and loses nothing."""
    s3, bases, before = life.s3, life.local_bases(), life.bounds()
    life.write()
    for _ in range(2):  # a failed load is repeated
        error, records, _ = life.fetch(0)
        assert error in RETRIABLE
        assert not records
        enough = s3.counts.total() + ASKED_AGAIN
        until(lambda enough=enough: s3.counts.total() > enough, "the store is not asked again")
    check_lines(life.errors(), url, words)
    start, stable = life.bounds()
    assert start == before[0] == 0
    assert stable > before[1]
    assert set(bases) < set(life.local_bases()), "no segment is deleted"
    life.check_reads(bases[0])


@pytest.mark.extended
@pytest.mark.parametrize(
    ("failure", "words"),
    [
        ("bucket", "<Code>NoSuchBucket</Code>"),
        ("rights", "403 Forbidden"),
        ("right to write", "403 Forbidden"),
        ("host", "no clear answer in 0.2 s"),
    ],
)
def test_each_failure_is_one_line_for_copies_and_one_for_reads(failure, words, monkeypatch, caplog):
    """In the process of the test, without clients."""
    disk = SimDisk()
    line_count, reads = (1, 0) if failure == "right to write" else (2, 2)
    monkeypatch.setattr(opening, "open_store", partial(opening.open_store, patience=SHORT))

    async def copied():
        async with tiered(URL, disk, stablelog_remote_allow_http=True) as desk:
            await write_segments(desk, 3)
            await copy(desk)

    async def conversation(url):
        soon = {
            "remote_log_manager_task_interval_ms": 5,
            "stablelog_remote_coordinator_copy_interval_ms": 100,
        }
        async with tiered(url, disk, stablelog_remote_allow_http=True, **soon) as desk:
            await desk.opened("t")
            log_of(desk).log.prove_segments()
            start = log_of(desk).start_offset
            await write_segments(desk, 2)
            producer = await desk.init("x")  # the log of a coordinator has grown, too
            assert producer[0] >= 0
            while (
                attempts(desk, "create") < CREATES
                or len(lines(caplog)) < line_count
                or attempts(desk, "get_range") < reads
            ):
                if line_count == 2:
                    found = await desk.fetch("t", 0, 0, max_wait_ms=50)
                    assert found.error_code in RETRIABLE
                    assert not found.records
                await asyncio.sleep(0.01)
            assert log_of(desk).start_offset == start
            assert log_of(desk).remote.start_offset == 0

    with serve_s3() as s3:
        reach(s3, monkeypatch)
        asyncio.run(copied())
        objects = dict(s3.objects)
        if failure == "host":
            reach(s3, monkeypatch, UNKNOWN_HOST)
        for kind in {"rights": KINDS, "right to write": WRITES}.get(failure, ()):
            s3.fail(S3Fault(kind, status=403, count=EVER))
        url = OTHER_BUCKET if failure == "bucket" else URL
        asyncio.run(asyncio.wait_for(conversation(url), PATIENCE_S))
        assert s3.objects == objects
    if line_count == 1:
        check_line(lines(caplog), url, words)
    else:
        check_lines(lines(caplog), url, words)


@contextlib.contextmanager
def copied(directory, monkeypatch):
    """A server that has segments of a broker that is stopped. Yields the server, the data directory and the broker's life."""
    with serve_s3() as s3:
        reach(s3, monkeypatch)
        with alive(directory / "data", s3) as life:
            life.create()
            life.write()
            life.wait_until_remote()
        yield s3, directory / "data", life


@pytest.mark.night
def test_a_wrong_bucket_is_logged_once_and_read_as_an_error(tmp_path, monkeypatch):
    with copied(tmp_path, monkeypatch) as (s3, data, first):
        objects = dict(s3.objects)
        with alive(data, s3, url=OTHER_BUCKET) as life:
            life.go_on(first.writer)
            check_failure(life, OTHER_BUCKET, "NoSuchBucket")
        assert s3.objects == objects
        with alive(data, s3) as last:
            last.writer = life.writer
            last.wait_until_remote()
            last.check()


@pytest.mark.night
def test_missing_rights_are_logged_once_and_when_they_are_there_copying_resumes(tmp_path, monkeypatch):
    with copied(tmp_path, monkeypatch) as (s3, data, first):
        objects = dict(s3.objects)
        for kind in KINDS:
            s3.fail(S3Fault(kind, status=403, count=EVER))
        with alive(data, s3) as life:
            life.go_on(first.writer)
            check_failure(life, URL, "403 Forbidden")
            assert s3.objects == objects
            s3.clear_faults()
            life.wait_until_remote()
            life.check()
            assert len(life.errors()) == 2


@pytest.mark.night
def test_an_unknown_host_is_logged_once_and_read_as_an_error(tmp_path, monkeypatch):
    with copied(tmp_path, monkeypatch) as (s3, data, first):
        reach(s3, monkeypatch, UNKNOWN_HOST)
        with alive(data, s3) as life:
            life.go_on(first.writer)
            bases = life.local_bases()
            life.write()
            error, records, _ = life.fetch(0)
            assert error in RETRIABLE
            assert not records
            until(lambda: len(life.errors()) > 1, "no two lines", patience_s=2 * PATIENCE_S)
            check_lines(life.errors(), URL, "no clear answer in 30 s")
            assert life.bounds()[0] == 0
            assert set(bases) < set(life.local_bases()), "no segment is deleted"
            life.check_reads(bases[0])
