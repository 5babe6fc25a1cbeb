"""A broker whose object store is away: it refuses connections, or takes requests and never answers.

Meanwhile clients produce, and read what is on the local disk. A fetch from the store gets a retriable error when its own time
is over. When the store is back, copying and reads go on in the same process.
"""

import os
import signal

import pytest
from kio.schema.errors import ErrorCode

from stablelog.data_directory.clean_shutdown import CLEAN_SHUTDOWN_FILE
from stablelog.errors import NotLoadedError, UnavailableError
from tests.broker.tiering.life import lived
from tests.broker.tiering.test_remote_reads import ONE, Life, ended
from tests.waiting import until

RETRIABLE = (ErrorCode.kafka_storage_error, ErrorCode.not_leader_or_follower)
WAIT_MS = 500
SLACK_S = 5  # Beyond the time of a fetch; a busy machine may need a part of it.
REQUEST_S = 20  # The time limit of a request to the store.


def refuse(s3):
    s3.refuse()
    yield
    s3.accept()


def hang(s3):
    """The store is started again in the end, so that its connections break."""
    s3.is_silent = True
    yield
    s3.is_silent = False
    s3.break_connections()


def hang_for_good(s3):
    """The network has lost the requests: their connections stay, and no answer ever comes."""
    s3.is_silent = True
    yield
    s3.is_silent = False


@pytest.mark.extended
@pytest.mark.parametrize(
    "outage",
    [
        hang,
        pytest.param(refuse, marks=pytest.mark.night),
        pytest.param(hang_for_good, marks=pytest.mark.night),
    ],
)
def test_while_the_store_is_away_local_work_goes_on_and_then_copying(outage, tmp_path, monkeypatch):
    with lived(tmp_path, monkeypatch) as life:
        life.create()
        life.write()
        life.wait_until_remote()
        (base,), before, pid = life.local_bases(), life.bounds(), life.broker.pid
        away = outage(life.s3)
        next(away)
        for _ in range(4):
            life.write()
            error, records, seconds = life.fetch(0, max_wait_ms=WAIT_MS)
            assert error in RETRIABLE
            assert not records
            assert seconds < WAIT_MS / 1000 + SLACK_S
        life.check_reads(base)
        assert life.local_bases()[0] == base, "no segment is deleted"
        start, stable = life.bounds()
        assert start == before[0]
        assert stable > before[1]
        next(away, None)
        life.wait_until_remote()
        life.check(before)
        assert life.broker.pid == pid


@pytest.mark.extended
def test_a_stop_does_not_wait_for_a_store_that_hangs_before_it_closes_the_data_directory(
    tmp_path, monkeypatch
):
    with lived(tmp_path, monkeypatch) as life:
        life.create()
        life.write()
        life.wait_until_remote()
        until(life.is_commit_log_copied, "the commit log is not copied")
        life.s3.is_silent = True
        assert life.fetch(0)[0] in RETRIABLE
        assert life.s3.silent_count == 1, "a read waits for the store"
        os.kill(life.broker.pid, signal.SIGTERM)
        closed = life.broker.data / CLEAN_SHUTDOWN_FILE
        until(closed.exists, "the stop waits for the store", patience_s=REQUEST_S * 3 / 4)
        life.s3.is_silent = False
        life.s3.break_connections()


def test_a_request_without_a_time_limit_of_its_own_does_not_wait_for_ever_and_the_load_goes_on(monkeypatch):
    monkeypatch.setattr("stablelog.broker.tiering.remote_reads.WAIT_S_MAX", 0.01)

    async def conversation(life):
        with pytest.raises(UnavailableError, match=r"test://store/a\.log was requested 0.01 s ago"):
            await life.reads.load_ranges("p", NotLoadedError([ONE], 0))
        assert len(life.requests.asked) == 1
        (done,) = life.reads.start_loads("p", NotLoadedError([ONE], 0))
        life.requests.gate.set()
        await ended([done])
        assert life.cache.get(ONE) is not None
        assert life.woken == ["p"]

    Life().run(conversation)
