"""A producer of whole batches over a broker in memory: each batch is appended once, whatever is lost."""

import itertools

import pytest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i16, i64

from stablelog.batch.records import Record, encode_batch
from stablelog.client.core.cluster import Cluster
from stablelog.client.core.producer import BatchProducer
from stablelog.errors import RefusedError, UnavailableError
from stablelog.wire.api import ApiKey
from tests.client import model_broker
from tests.client.model_broker import ADDRESS, NO_TIME, TOPIC, ModelBroker, ModelShell


class Broker(ModelBroker):
    """A broker that ends transactions.

    Attributes:
        ended: (producer id, epoch, whether it is a commit) of each end.
    """

    def __init__(self):
        super().__init__()
        self.ended = []

    def end_txn(self, request, response):
        self.ended.append((request.producer_id, request.producer_epoch, request.committed))
        return response(
            throttle_time=NO_TIME,
            error_code=ErrorCode.none,
            producer_id=i64(request.producer_id),
            producer_epoch=i16(request.producer_epoch + 1),
        )


@pytest.fixture(autouse=True)
def with_ends(monkeypatch):
    monkeypatch.setitem(model_broker.SERVED, ApiKey.END_TXN, 5)


@pytest.fixture
def shell():
    return ModelShell(Broker())


def producer_of(shell, **options):
    acknowledged = []
    producer = BatchProducer(
        Cluster(ADDRESS, deadline_s=3),
        "x",
        deadline_s=3,
        on_acknowledged=lambda number, offset: acknowledged.append((number, offset)),
        **options,
    )
    shell.run(producer.begin())
    return producer, acknowledged


def batch(*values):
    return bytearray(encode_batch([Record(0, 0, None, value) for value in values or (b"v",)]))


def test_a_producer_begins_with_an_id_and_an_epoch_and_the_next_one_fences_it(shell):
    first, _ = producer_of(shell)
    second, _ = producer_of(shell)
    assert (first.producer_id, second.producer_id) == (0, 0)
    assert second.producer_epoch > first.producer_epoch
    with pytest.raises(RefusedError) as refused:
        shell.run(first.append(TOPIC, 0, batch()))
        shell.run(first.flush())
    assert refused.value.code is ErrorCode.invalid_producer_epoch


def test_batches_are_numbered_and_acknowledged_once_they_are_flushed(shell):
    producer, acknowledged = producer_of(shell)
    assert [shell.run(producer.append(TOPIC, number % 2, batch(b"a", b"b"))) for number in range(4)] == [
        0,
        1,
        2,
        3,
    ]
    shell.run(producer.flush())
    assert sorted(number for number, _ in acknowledged) == [0, 1, 2, 3]
    assert producer.record_count == 8
    shell.run(producer.flush())
    assert len(acknowledged) == 4


def test_batches_of_several_partitions_are_sent_in_one_request_if_more_follow(shell):
    producer, _ = producer_of(shell)
    shell.run(producer.append(TOPIC, 0, batch(), more=True))
    assert ApiKey.PRODUCE not in shell.broker.asked
    shell.run(producer.append(TOPIC, 1, batch()))
    shell.run(producer.flush())
    assert shell.broker.asked.count(ApiKey.PRODUCE) == 1


@pytest.mark.parametrize("fate", ["request", "answer"])
@pytest.mark.parametrize("lost_at", range(1, 4))
def test_a_lost_request_or_response_neither_loses_nor_repeats_a_batch(fate, lost_at):
    numbers = itertools.count()
    shell = ModelShell(
        Broker(), lambda key: fate if key == ApiKey.PRODUCE and next(numbers) == lost_at else None
    )
    producer, acknowledged = producer_of(shell)
    for number in range(4):
        shell.run(producer.append(TOPIC, 0, batch()))
        if number == 0:
            shell.run(producer.flush())
    shell.run(producer.flush())
    assert [number for number, _ in acknowledged] == [0, 1, 2, 3]
    assert producer.record_count == 4


def test_without_a_broker_batches_are_given_up_at_the_deadline(shell):
    producer, acknowledged = producer_of(shell)
    down = ModelShell(shell.broker, lambda key: "request" if key == ApiKey.PRODUCE else None)
    with pytest.raises(UnavailableError):
        down.run(producer.append(TOPIC, 0, batch()))
        down.run(producer.flush())
    assert acknowledged == []
    assert down.now <= 4


def test_a_transaction_without_a_batch_needs_no_end(shell):
    producer, _ = producer_of(shell)
    assert not producer.has_begun
    shell.run(producer.end(commit=True))
    assert shell.broker.ended == []


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_is_ended_with_the_id_and_the_epoch_of_its_batches(shell, commit):
    producer, _ = producer_of(shell)
    known = producer.producer_id, producer.producer_epoch
    shell.run(producer.append(TOPIC, 0, batch()))
    shell.run(producer.flush())
    assert producer.is_tv2
    assert producer.has_begun
    shell.run(producer.end(commit=commit))
    assert shell.broker.ended == [(*known, commit)]
    assert not producer.has_begun
    assert producer.record_count == 0


def test_a_commit_gives_the_next_epoch_and_after_an_abort_the_producer_begins_again(shell):
    producer, _ = producer_of(shell)
    epoch = producer.producer_epoch
    shell.run(producer.append(TOPIC, 0, batch()))
    shell.run(producer.flush())
    shell.run(producer.end(commit=True))
    assert producer.producer_epoch == epoch + 1
    shell.run(producer.append(TOPIC, 0, batch()))
    shell.run(producer.end(commit=False))
    assert producer.producer_id == -1


def test_an_open_transaction_of_another_process_can_be_ended(shell):
    producer, _ = producer_of(shell)
    producer.resume(41, 7)
    shell.run(producer.end(commit=True))
    assert shell.broker.ended == [(41, 7, True)]


def test_a_timeout_that_is_too_long_is_refused_with_the_setting(shell):
    shell.broker.init_producer_id = lambda _request, response: response(
        throttle_time=NO_TIME,
        error_code=ErrorCode.invalid_transaction_timeout,
        producer_id=i64(-1),
        producer_epoch=i16(-1),
    )
    with pytest.raises(
        RefusedError,
        match=r"^the transaction timeout of 5000 ms is greater than transaction\.max\.timeout\.ms",
    ):
        producer_of(shell, transaction_timeout_ms=5000)
