"""The transactions of one partition in the order of their commits, and the wait for the next ones."""

import uuid
from dataclasses import replace
from types import MappingProxyType

import pytest
from kio.static.primitive import i64

from stablelog.client.core import transaction_stream
from stablelog.client.core.cluster import Cluster
from stablelog.client.core.long_poll import WAIT_MAX_S
from stablelog.client.core.read_position import UNKNOWN, Mark
from stablelog.client.core.transaction_stream import PAUSE_MAX_S, ReaderWait, TransactionStream
from stablelog.errors import DamageError, DataLossError, UnavailableError
from stablelog.wire.api import ApiKey
from tests.client.core.test_transaction_reader import by, reader
from tests.client.model_broker import ADDRESS, TOPIC, ModelBroker, ModelShell

NEW = Mark(UNKNOWN, 0)


@by
def test_what_is_resolved_late_is_asked_for_at_short_intervals_and_then_no_more(cut):
    broker = ModelBroker()
    shell = ModelShell(broker)
    shell.planned = [
        (1, lambda: broker.commit({0: [b"late"]}, resolved=False)),
        (5, broker.unresolved.clear),
    ]
    shell.run(reader(Cluster(ADDRESS), cut=cut, wait_s=60))
    ((at, _),) = shell.given
    assert 5 <= at <= 5 + PAUSE_MAX_S if cut else at == 1
    assert len(broker.asked) <= 2 * 66 / WAIT_MAX_S + 4 / PAUSE_MAX_S + 30


def test_partitions_at_their_end_are_looked_at_together_while_another_is_read():
    broker = ModelBroker()
    shell = ModelShell(broker)
    for number in range(1000):
        broker.commit({0: [b"%d" % number]})
    shell.run(reader(Cluster(ADDRESS), cut=False, wait_s=0))
    assert len(shell.given) == 1000
    assert broker.asked.count(ApiKey.DESCRIBE_COMMITS) < 20


# -- one partition ---------------------------------------------------------------------------------------------------


class OddBroker(ModelBroker):
    """A broker whose responses to DescribeCommits have other values in some fields."""

    odd = MappingProxyType({})

    def describe_commits(self, request, response):
        return replace(super().describe_commits(request, response), **self.odd)


class Stream:
    """The transactions of the first partition, which has these commits."""

    def __init__(self, *values, mark=NEW, known_id=None, **odd):
        self.broker = OddBroker()
        self.broker.odd = odd
        for value in values:
            self.broker.commit({0: [value]})
        self.shell = ModelShell(self.broker)
        self.core = TransactionStream(Cluster(ADDRESS, deadline_s=3), (TOPIC, 0), mark, known_id)

    def peek(self, up_to=None):
        found = self.shell.run(self.core.peek_transaction(up_to))
        return None if found is None else found.commit_sequence

    def take(self):
        return [one.value for one in self.shell.run(self.core.take_transaction())]


def test_a_stream_begins_after_the_commit_sequence_of_its_mark_and_moves_the_mark():
    stream = Stream(b"a", b"b", b"c", mark=Mark(UNKNOWN, 1))
    assert stream.peek() == 2
    assert stream.core.end is None
    assert stream.take() == [b"b"]
    assert stream.core.mark == Mark(2, 2, UNKNOWN, 2)
    assert stream.peek() == 3
    stream.take()
    assert stream.core.mark == Mark(3, 3, UNKNOWN, 3)
    assert stream.core.end == 3


def test_at_its_end_a_stream_asks_again_only_when_something_was_fetched():
    stream = Stream(b"a", mark=Mark(UNKNOWN, 1))
    assert [stream.peek() for _ in range(3)] == [None] * 3
    assert stream.broker.asked.count(ApiKey.DESCRIBE_COMMITS) == 1
    stream.broker.commit({0: [b"b"]})
    stream.core.apply_fetched(None)
    assert stream.peek() == 2


def test_up_to_a_commit_sequence_a_stream_asks_once():
    stream = Stream(b"a", b"b")
    assert [stream.peek(1), stream.peek(1)] == [1, 1]
    stream.take()
    assert [stream.peek(1), stream.peek(1)] == [None, None]
    assert stream.peek(2) == 2
    assert stream.broker.asked.count(ApiKey.DESCRIBE_COMMITS) == 1
    stream.take()
    assert [stream.peek(2), stream.peek(3), stream.peek(3)] == [None] * 3
    assert stream.broker.asked.count(ApiKey.DESCRIBE_COMMITS) == 3


def test_the_children_of_a_joint_commit_are_one_transaction_also_over_two_responses(monkeypatch):
    monkeypatch.setattr(transaction_stream, "LISTED_MAX", 1)
    stream = Stream(b"a")
    stream.broker.commit({0: [b"b"]}, is_child=True)
    stream.broker.commit({0: [b"c"]})
    assert stream.peek() == 1
    assert stream.take() == [b"a", b"b"]
    assert stream.peek() == 2
    assert stream.take() == [b"c"]
    assert stream.peek() is None


@pytest.mark.parametrize(
    ("mark", "odd", "message"),
    [
        (Mark(3, 0), {"end_offset": i64(2)}, f"{TOPIC}-0 ends at 2 and was read up to 3"),
        (Mark(1, 0), {"log_start_offset": i64(2)}, f"{TOPIC}-0 begins at 2 and was read up to 1"),
        (
            NEW,
            {"topic_id": uuid.UUID(int=8)},
            f"{TOPIC} was deleted and created again: {TOPIC}-0 of the deleted",
        ),
    ],
    ids=["end", "start", "topic"],
)
def test_records_that_are_gone_before_they_were_read_are_a_loss(mark, odd, message):
    stream = Stream(
        b"a", b"b", b"c", mark=mark, known_id=uuid.UUID(int=7) if "topic_id" in odd else None, **odd
    )
    with pytest.raises(DataLossError, match=message):
        stream.peek()


@pytest.mark.parametrize(
    ("mark", "odd"),
    [
        (Mark(3, 3), {}),
        (Mark(2, 2), {"log_start_offset": i64(2)}),
        (NEW, {"log_start_offset": i64(2)}),
        (NEW, {"topic_id": uuid.UUID(int=8)}),
    ],
    ids=["end", "start", "beginning", "topic"],
)
def test_what_a_reader_has_not_read_is_no_loss(mark, odd):
    Stream(b"a", b"b", b"c", mark=mark, **odd).peek()


def test_a_damaged_batch_is_told_when_the_batches_before_it_are_read():
    stream = Stream(b"a", b"b")
    stream.broker.change(0, 1, lambda batch: batch[:-1] + bytes([batch[-1] ^ 1]))
    assert stream.peek() == 1
    assert stream.take() == [b"a"]
    with pytest.raises(DamageError):
        stream.take()


# -- the wait --------------------------------------------------------------------------------------------------------


def test_without_a_partition_to_read_a_reader_pauses_until_it_is_cancelled():
    cluster, shell = Cluster(ADDRESS), ModelShell(ModelBroker())
    wait = ReaderWait(cluster, lambda: None)
    assert shell.run(wait.wait_for_change({}, {}))
    assert shell.now == PAUSE_MAX_S
    cluster.cancel_retries()
    with pytest.raises(
        UnavailableError, match="waiting for the next transaction did not succeed: the call was cancelled"
    ):
        shell.run(wait.wait_for_change({}, {}))


def test_the_time_limit_counts_from_the_first_wait_after_an_item():
    shell = ModelShell(ModelBroker())
    wait = ReaderWait(Cluster(ADDRESS), lambda: 0.3)
    assert [shell.run(wait.wait_for_change({}, {})) for _ in range(3)] == [True, True, False]
    assert shell.now == pytest.approx(0.3)
    shell.run(wait.emit_item("item"))
    assert shell.run(wait.wait_for_change({}, {}))
