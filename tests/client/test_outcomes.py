"""What a program is told after a failure, by call and failure: the table of docs/reference/client.md, row by row, and its loops."""

import re

import pytest
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode

from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.producer import BlockingProducer
from stablelog.client.core.outcomes import Committed
from stablelog.errors import (
    DataLossError,
    OutcomeUnknownError,
    RefusedError,
    TransactionAbortedError,
    UnavailableError,
    UsageError,
)
from stablelog.testing.faulty_broker import FaultyBroker
from tests import documented
from tests.client.transactions import create, flush, visible, writing_of

PAGE = documented.page("client.md")
BRIEF_S, LOOP_S, LONG_S, MANY = 0.05, 0.3, 60, 1_000_000


@pytest.fixture(scope="module")
def broker():
    with FaultyBroker() as broker:
        yield broker


@pytest.fixture
def case(broker, face):
    broker.reset()
    with face.connect(broker.bootstrap, LONG_S) as client:
        yield Case(broker, client)
    broker.reset()


class Case:
    """A transaction that has written two records, before something fails."""

    def __init__(self, broker, client):
        self.broker, self.client = broker, client
        self.topic = create(broker.bootstrap)
        self.txn = client.transaction(timeout=LONG_S)
        self.written = 0

    def set_deadline(self, seconds):
        writing_of(self.txn).cluster.deadline_s = seconds

    def write(self, topic=None, value=b"v", **more):
        future = self.txn.write(topic or self.topic, value, **more)
        self.written += topic is None
        return future

    def lose(self, api, *, is_delivered=False):
        """From now on, the requests of this API are lost, or the responses to them."""
        self.set_deadline(BRIEF_S)
        self.broker.faults.drop(api, count=MANY, is_delivered=is_delivered)

    def is_well_again(self):
        self.broker.faults.clear()
        self.set_deadline(LONG_S)

    def fails(self, error, call=None):
        """The call raises this error, and none that means something else to a program."""
        with pytest.raises(error) as raised:
            (call or self.txn.commit)()
        for other in (UnavailableError, TransactionAbortedError):
            assert issubclass(raised.type, other) == issubclass(error, other)
        return raised.value

    def in_doubt(self, api="CommitJoint", *, is_delivered=False, is_fatal=False):
        """The commit is in doubt; the error has the transaction. Then all is well again."""
        self.write()
        flush(self.txn)
        self.lose(api, is_delivered=is_delivered)
        future = self.write()
        self.set_deadline(LONG_S)
        flush(self.txn)
        self.set_deadline(BRIEF_S)
        raised = self.fails(OutcomeUnknownError)
        assert raised.transaction in (self.txn, getattr(self.txn, "inner", None))
        assert "Call commit() of this transaction again" in str(raised)
        assert not future.done()
        if not is_fatal:
            self.is_well_again()

    def fence(self):
        with BlockingCluster(self.broker.bootstrap) as cluster:
            BlockingProducer(cluster, writing_of(self.txn).transactional_id).begin()

    def is_open(self):
        """The transaction commits what it has."""
        self.is_well_again()
        self.write()
        self.commits()

    def commits(self):
        assert self.txn.commit().commit_sequence > 0
        self.reads(self.written)

    def is_aborted(self):
        self.is_well_again()
        with pytest.raises(RefusedError):
            self.txn.commit()
        self.reads(0)

    def reads(self, count):
        assert len(visible(self.broker.bootstrap, self.topic)) == count


def no_topic_answer(case):
    case.lose("Metadata")
    case.fails(UnavailableError, case.write)
    case.written = 0
    case.is_open()


def no_topic(case):
    case.fails(RefusedError, lambda: case.write("nope"))
    case.fails(RefusedError, lambda: case.write(case.topic, partition=2))
    case.is_open()


def no_bytes(case):
    case.fails(TypeError, lambda: case.write(case.topic, 7))
    case.is_open()


def no_time(case):
    case.fails(UsageError, lambda: case.write(case.topic, timestamp_ms=-1))
    case.is_open()


def has_ended(case):
    case.txn.abort()
    case.fails(TransactionAbortedError, case.write)
    case.is_aborted()


def cannot_begin(case):
    case.write()
    case.lose("InitProducerId")
    case.fails(TransactionAbortedError)
    case.is_aborted()


def not_acknowledged(case):
    case.write()
    case.lose("Produce")
    case.fails(TransactionAbortedError)
    case.is_aborted()


def fenced(case):
    case.write()
    flush(case.txn)
    case.fence()
    case.write()
    assert case.fails(TransactionAbortedError).code in (
        ErrorCode.invalid_producer_epoch,
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_id_mapping,
    )
    case.is_aborted()


def too_large(case):
    case.write(value=bytes(2 << 20))
    assert case.fails(RefusedError).code == ErrorCode.message_too_large
    case.is_aborted()


def timed_out(case):
    case.write()
    writing_of(case.txn).deadline = 0
    case.fails(TransactionAbortedError)
    case.is_aborted()


def request_lost(case):
    case.in_doubt()
    case.reads(0)
    case.commits()


def answer_lost(case):
    case.in_doubt(is_delivered=True)
    case.reads(2)
    case.commits()


def positions_lost(case):
    case.in_doubt("DescribeCommits")
    case.reads(2)
    case.commits()


def topic_deleted(case):
    case.in_doubt("DescribeCommits", is_fatal=True)
    admin = AdminClient({"bootstrap.servers": case.broker.bootstrap})
    admin.delete_topics([case.topic])[case.topic].result(30)
    case.is_well_again()
    case.fails(DataLossError)
    case.fails(DataLossError)


def had_committed(case):
    case.in_doubt(is_delivered=True)
    assert isinstance(case.txn.commit(), Committed)
    case.commits()


def had_not_received(case):
    case.in_doubt()
    case.commits()


def aborted_meanwhile(case):
    case.in_doubt()
    case.fence()
    case.fails(TransactionAbortedError)
    case.is_aborted()


def abort_without_a_broker(case):
    case.write()
    flush(case.txn)
    case.lose("AbortJoint")
    case.txn.abort()
    case.is_aborted()


def abort_in_doubt(case):
    case.in_doubt(is_delivered=True)
    case.lose("AbortJoint")
    assert case.fails(OutcomeUnknownError, case.txn.abort).transaction is not None
    case.is_well_again()
    case.commits()


def abort_of_a_committed_one(case):
    case.in_doubt(is_delivered=True)
    case.fails(RefusedError, case.txn.abort)
    case.commits()


def abort_of_a_lost_commit(case):
    case.in_doubt()
    case.txn.abort()
    case.is_aborted()


def no_reading(case):
    case.write()
    case.commits()
    case.broker.faults.drop("Metadata", count=MANY)
    with type(case.client).connect(case.broker.bootstrap, BRIEF_S) as client:
        case.fails(UnavailableError, lambda: next(iter(client.read(case.topic, wait=0))))


ROWS = {
    ("`write`", "no broker answers when the client asks for the topic"): no_topic_answer,
    ("`write`", "the topic or the partition does not exist"): no_topic,
    (
        "`write`",
        "a key, value or header is neither bytes nor text, or another argument has a wrong type",
    ): no_bytes,
    (
        "`write`",
        "no record can have the timestamp, no topic the name, or UTF-8 cannot encode a text",
    ): no_time,
    ("`write`", "the transaction has already ended"): has_ended,
    ("`write` or `commit`", "the producer cannot begin: no broker answers"): cannot_begin,
    ("`write` or `commit`", "no broker acknowledges a batch within the deadline"): not_acknowledged,
    (
        "`write` or `commit`",
        "the broker has aborted the transaction, or another producer has fenced it",
    ): fenced,
    (
        "`write` or `commit`",
        "the broker refuses a record, for example because it is too large",
    ): too_large,
    ("`commit`", "the timeout of the transaction has passed"): timed_out,
    ("`commit`", "the request for the commit is lost"): request_lost,
    ("`commit`", "the response to the commit is lost"): answer_lost,
    ("`commit`", "the commit succeeds, and the positions do not arrive"): positions_lost,
    ("`commit`", "the commit succeeds, and the topic is deleted before the positions arrive"): topic_deleted,
    ("`commit` again", "the broker had committed the transaction"): had_committed,
    (
        "`commit` again",
        "the broker had not received the request, and the transaction is open",
    ): had_not_received,
    ("`commit` again", "the broker has aborted the transaction meanwhile"): aborted_meanwhile,
    ("`abort`", "no broker answers"): abort_without_a_broker,
    ("`abort` after `commit`", "the transaction is in doubt, and no broker answers"): abort_in_doubt,
    (
        "`abort` after `commit`",
        "the transaction is in doubt, and the broker had committed it",
    ): abort_of_a_committed_one,
    ("`abort` after `commit`", "the broker had not received the request"): abort_of_a_lost_commit,
    ("`read`", "no broker answers within the deadline"): no_reading,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: ROWS[row].__name__)
def test_each_row_of_the_table_is_true(case, row):
    ROWS[row](case)


def test_the_table_has_these_rows_and_no_other():
    table = PAGE.partition("| failure | call | error | state |\n")[2].partition("\n\n")[0]
    assert [tuple(line[2:].split(" | ")[1::-1]) for line in table.splitlines()[1:]] == list(ROWS)


LOOPS = documented.take("python-service.md", "write_once")
LOSSES = {
    "the response to the commit": ("CommitJoint", True),
    "the request for the commit": ("CommitJoint", False),
    "the positions": ("DescribeCommits", True),
    "the records": ("Produce", False),
    "the beginning": ("InitProducerId", True),
    "the topic": ("Metadata", False),
}


@pytest.mark.parametrize("snippet", LOOPS, ids=["threads", "asyncio"])
@pytest.mark.parametrize("lost", LOSSES)
def test_the_loop_of_the_page_writes_once(broker, snippet, lost):
    """Whatever is lost until the first call has failed: the loop's pause is the moment at which all is well again."""
    broker.reset()
    topic, paused = create(broker.bootstrap), []

    def pause(_seconds):
        paused.append(1)
        broker.faults.clear()

    async def async_pause(seconds):
        pause(seconds)

    program = snippet.replace('"localhost:9092"', f'"{broker.bootstrap}", deadline={LOOP_S}')
    program = program.replace('"orders"', f'"{topic}"')
    names = {"__name__": "page", "pause": async_pause if "asyncio" in snippet else pause}
    api, is_delivered = LOSSES[lost]
    broker.faults.drop(api, count=MANY, is_delivered=is_delivered)
    exec(re.sub(r"\b(time|asyncio)\.sleep\(1\)", "pause(1)", program), names)
    assert paused
    assert len(visible(broker.bootstrap, topic)) == 1


def test_the_page_has_a_loop_for_each_client():
    assert ["asyncio" in snippet for snippet in LOOPS] == [False, True]
