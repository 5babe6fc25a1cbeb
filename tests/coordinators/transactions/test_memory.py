"""What a coordinator remembers takes little memory, and no more with time."""

import gc
import tracemalloc
from collections.abc import Callable

import pytest

from stablelog.coordinators.record_fields import Record
from stablelog.coordinators.transactions.config import TransactionConfig
from stablelog.coordinators.transactions.coordinator import TransactionCoordinator
from stablelog.coordinators.transactions.idle_ids import DECODED_MAX
from stablelog.coordinators.transactions.joint.answers import ChildShown
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.coordinators.transactions.transaction import TransactionMetadata
from stablelog.wire.extension.children import JointName, child_id

IDLE_SIZE_MAX = 250  # bytes of memory for a transactional id without an open transaction
ATTEMPTS_SIZE_MAX = 10_000_000 // 35  # bytes that 10,000 attempts leave, if 350,000 a day leave 10 MB
WARM_UP = 41  # micro-batches of 100 tasks: the cache of parsed child ids, of a fixed size, is full then


def a_coordinator() -> TransactionCoordinator:
    return TransactionCoordinator(TransactionConfig(), marker_barrier=lambda: lambda: True)


def growth(work: Callable[[], object], warm_up: Callable[[], object] = lambda: None) -> int:
    """Bytes of memory that are in use after the work and were not before. The warm-up precedes the work."""
    gc.collect()
    tracemalloc.start()
    try:
        warm_up()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def idle(number: int) -> TransactionMetadata:
    """The state of an id that has committed transactions in the second dialect."""
    return TransactionMetadata(
        10_000 + number,
        number % 30_000,
        60_000,
        TransactionState.COMPLETE_COMMIT,
        update_ms=1_760_000_000_000 + number,
        start_ms=1_760_000_000_000 + number,
        previous_producer_id=10_000 + number,
        last_producer_epoch=number % 30_000 - 1,
        transaction_version=2,
        commit_sequence=number,
    )


def log_of(count: int) -> list[Record]:
    coordinator, records = a_coordinator(), []
    for number in range(count):
        made: list[Record] = []
        coordinator.table.put(f"my-application-{number:06d}", idle(number), made)
        records += made
    return records


@pytest.mark.extended
@pytest.mark.parametrize("count", [10_000, pytest.param(30_000, marks=pytest.mark.night)])
def test_an_idle_transactional_id_takes_at_most_250_bytes(count: int) -> None:
    records = log_of(count)
    found = []

    def start() -> None:
        coordinator = a_coordinator()
        for key, value in records:
            coordinator.table.replay(key, None if value is None else bytes(bytearray(value)))
        coordinator.finish_replay(10**15)
        coordinator.table.partitions_opened()
        found.append(coordinator)

    size = growth(start)
    assert len(found[0].table) == count
    assert size / count <= IDLE_SIZE_MAX, f"{size / count:.0f} bytes"


@pytest.mark.extended
def test_what_only_the_opening_of_partitions_needs_is_given_back() -> None:
    count = 1000
    records = log_of(count)

    def started(*, are_open: bool) -> int:
        found = []

        def start() -> None:
            coordinator = a_coordinator()
            for record in records:
                coordinator.table.replay(*record)
            coordinator.finish_replay(10**15)
            if are_open:
                coordinator.table.partitions_opened()
            found.append(coordinator)

        return growth(start)

    assert started(are_open=True) < started(are_open=False) - 50 * count


@pytest.mark.night
def test_so_it_does_in_a_broker_that_has_not_restarted() -> None:
    count = 30_000
    coordinator = a_coordinator()

    def work() -> None:
        for number in range(count):
            coordinator.table.put(f"my-application-{number:06d}", idle(number), [])

    size = growth(work)
    decoded = 1000 * DECODED_MAX  # which do not grow with the number of ids
    assert (size - decoded) / count <= IDLE_SIZE_MAX, f"{size / count:.0f} bytes"


@pytest.mark.night
def test_attempts_of_tasks_leave_nothing_that_grows() -> None:
    """100 micro-batches of 100 tasks, each of which writes to a partition."""
    coordinator = a_coordinator()
    name = JointName("", "k")

    def micro_batch(version: int) -> None:
        shown = []
        for part in range(100):
            transactional_id = child_id("k", version, "run", part, 0)
            answer = coordinator.producers.init_producer_id(
                transactional_id, 60_000, api_version=5, now_ms=version
            ).answer
            who = answer.producer_id, answer.producer_epoch
            coordinator.add_partitions(
                transactional_id,
                *who,
                [("t", part % 4)],
                api_version=12,
                transaction_version=2,
                now_ms=version,
            )
            shown.append(ChildShown(transactional_id, *who))
        decision = coordinator.joint.commit(name, version, shown, run="run", now_ms=version)
        for order in decision.markers:
            coordinator.markers_done(
                order.transactional_id, order.producer_id, order.producer_epoch, now_ms=version
            )

    def micro_batches(versions: range) -> None:
        for version in versions:
            micro_batch(version)

    size = growth(lambda: micro_batches(range(WARM_UP, WARM_UP + 100)), lambda: micro_batches(range(WARM_UP)))
    assert len(coordinator.table) == 0
    plain = coordinator.producers.init_producer_id("plain", 60_000, api_version=5, now_ms=WARM_UP + 100)
    assert plain.answer.producer_id == 100, "the ids below it are as many as there were tasks at one time"
    assert size < ATTEMPTS_SIZE_MAX, f"{size} bytes"
