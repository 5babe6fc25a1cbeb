"""A broker that is killed with -9 at a named place (docs/decisions/0022-tiered-storage.md, "What a crash leaves").

The S3 server holds a request, before or after it is applied. The test kills the broker meanwhile, and starts it again.
For a place that only the local disk shows, the test watches the directory, and looks at what the kill has left.

After each kill a consumer reads every committed record and no other, every manifest names only objects that exist, and
neither the log start offset nor the last stable offset has gone back.
"""

import contextlib
from dataclasses import dataclass, replace

import pytest

from stablelog.testing.s3 import S3Fault, S3Hold
from tests.broker.tiering.life import RECORD_SIZE, lived
from tests.waiting import until

OWN, COMMITS = r"t\.t/", r"t\.__transaction_state/"
START, CREATE, COPY, TAKE_OVER = "start", "create", "copy", "take-over"
BEFORE, AFTER = False, True
UPLOAD = "put|complete"  # The request that makes a log file, or an object of indexes, visible.
LARGE = {"log_segment_bytes": 20_000_000, "message_max_bytes": 10_000_000}
LARGE_RECORD_SIZE = 900_000


def link(epoch, number=r"\d{12}"):
    """The end of a key of a chain."""
    return rf".*/manifest/{epoch:010}-{number}$"


@dataclass(frozen=True)
class Row:
    """A place at which the broker is killed: while a request waits.

    Attributes:
        name: what the broker does.
        kind: the kind of the request.
        key: a regular expression of its key.
        stage: START: the first start; CREATE: the first manifest of the topic; COPY: a later copy; TAKE_OVER: the first copy
            after another start.
        number: which of the requests.
        faults: faults of earlier requests.
        is_large: whether segments are so large that they are uploaded in parts.
    """

    name: str
    kind: str
    key: str
    stage: str = COPY
    number: int = 1
    faults: tuple[S3Fault, ...] = ()
    is_large: bool = False

    @property
    def creates(self):
        """Whether the request creates the object of the key."""
        return self.kind in ("put", "complete", UPLOAD)

    @property
    def record_size(self):
        return LARGE_RECORD_SIZE if self.is_large else RECORD_SIZE

    def hold(self, s3, is_applied):
        """Let the server hold the request."""
        for fault in self.faults:
            s3.fail(replace(fault))
        return s3.hold(S3Hold(self.kind, self.key, is_applied=is_applied, number=self.number))


ROWS = [
    Row("the object of the cluster", "put", "/cluster$", START),
    Row("the first broker epoch", "put", "/epoch/0{9}1$", START),
    Row("the next broker epoch", "put", "/epoch/0{9}2$", TAKE_OVER),
    Row("the first claim", "put", OWN + link(1, "0{12}"), CREATE),
    Row("the next claim", "put", OWN + link(2, "0{12}"), TAKE_OVER),
    Row("the fence", "put", OWN + link(1), TAKE_OVER),
    Row("the log file", UPLOAD, OWN + r".*\.log$"),
    Row("the second log file", UPLOAD, OWN + r".*\.log$", number=2),
    Row("the indexes", UPLOAD, OWN + r".*\.indexes$"),
    Row("the manifest", "put", OWN + link(1)),
    Row("the manifest of the next epoch", "put", OWN + link(2, "0{11}1"), TAKE_OVER),
    Row("the log file of a commit log", UPLOAD, COMMITS + r".*\.log$"),
    Row("the indexes of a commit log", UPLOAD, COMMITS + r".*\.indexes$"),
    Row("the manifest of a commit log", "put", COMMITS + link(1)),
    Row("the fence of a commit log", "put", COMMITS + link(1), TAKE_OVER),
    Row("the begin of parts", "begin", OWN, is_large=True),
    Row("the first part", "part", OWN, is_large=True),
    Row("the last part", "part", OWN, number=2, is_large=True),
    Row("the end of parts", "complete", OWN, is_large=True),
]
BY_DAY = {("the log file", AFTER), ("the manifest", AFTER), ("the fence", AFTER)}


def requests_for(s3, key):
    """How many requests for a key the server has handled."""
    return sum(s3.keys[kind, key] for kind in UPLOAD.split("|"))


def places(rows=ROWS, by_day=BY_DAY):
    """Each row before and after the request is applied."""
    for row in rows:
        for is_applied in (BEFORE, AFTER):
            name = f"{'after' if is_applied else 'before'} {row.name}"
            marks = [] if (row.name, is_applied) in by_day else [pytest.mark.night]
            yield pytest.param(row, is_applied, id=name.replace(" ", "-"), marks=marks)


@contextlib.contextmanager
def killed(row, directory, monkeypatch, *, is_applied):
    """A broker that was killed while the request waits, and has started again.

    Yields the broker's life, the hold, and the log start offset and the last stable offset from before the kill.
    """
    holds, before = [], (0, 0)

    def hold(s3):
        holds.append(row.hold(s3, is_applied))

    settings = LARGE if row.is_large else {}
    first = hold if row.stage == START else (lambda _s3: None)
    with lived(directory, monkeypatch, before=first, **settings) as life:
        if row.stage != START:
            if row.stage == CREATE:
                hold(life.s3)
            life.create()
            if row.stage != CREATE:
                life.write(row.record_size)
                life.wait_until_remote()
                hold(life.s3)
            if row.stage == TAKE_OVER:
                life.kill()
            life.write(row.record_size)
            life.writer.begin()
            before = life.bounds()
        key = holds[0].wait()
        if row.creates:
            assert (key in life.s3.objects) is is_applied, "the request waits at the named place"
        life.broker.kill()
        life.broker.start()
        if row.stage == START:
            life.create()
            life.write(row.record_size)
            life.writer.begin()
        life.writer.end()
        yield life, holds[0], before


@pytest.mark.extended
@pytest.mark.parametrize(("row", "is_applied"), list(places()))
def test_a_kill_during_a_request(row, is_applied, tmp_path, monkeypatch):
    with killed(row, tmp_path, monkeypatch, is_applied=is_applied) as (life, hold, before):
        hold.drop()
        life.wait_until_remote()
        life.check(before)


@pytest.mark.night
@pytest.mark.parametrize("row", [row for row in ROWS if row.creates], ids=lambda row: row.name)
def test_a_request_of_a_killed_broker_that_is_applied_late(row, tmp_path, monkeypatch):
    """The network keeps the request while the next start takes over. The request then changes nothing that counts."""
    with killed(row, tmp_path, monkeypatch, is_applied=BEFORE) as (life, hold, before):
        life.wait_until_remote()
        life.check(before)
        key, objects = hold.wait(), dict(life.s3.objects)
        handled = requests_for(life.s3, key)
        hold.release()
        until(lambda: requests_for(life.s3, key) > handled, "the request is not applied")
        if key in objects:
            assert life.s3.objects[key] == objects[key], "an object is never replaced"
        for _ in range(2):
            before = life.bounds()
            life.write(row.record_size)
            life.wait_until_remote()
            life.check(before)
            life.kill()


@pytest.mark.night
@pytest.mark.parametrize("is_created", [False, True])
def test_a_kill_while_an_unclear_answer_is_read_back(is_created, tmp_path, monkeypatch):
    """The store answers the creation of a manifest with 503. The broker asks for the manifest, and is killed."""
    fault = S3Fault("put", OWN + link(1), status=503, is_applied=is_created)
    row = Row("the read-back", "get", OWN + link(1), faults=(fault,))
    with killed(row, tmp_path, monkeypatch, is_applied=BEFORE) as (life, hold, before):
        hold.drop()
        life.wait_until_remote()
        life.check(before)
