"""The batches of a producer that wait to be sent: of each partition the oldest goes first."""

import random

import pytest

from stablelog.client.core.batch_queue import BatchQueue, PendingBatch


def pending(index, partition=0, size=10):
    return PendingBatch(index, "t", partition, bytes(size), 0, 1)


@pytest.fixture
def queue():
    return BatchQueue()


def test_an_empty_queue_has_no_batch(queue):
    assert not queue
    assert (queue.size, queue.targets, queue.oldest_batches()) == (0, set(), [])


def test_the_oldest_batch_of_each_partition_is_next_the_oldest_of_all_first(queue):
    batches = [pending(1, 1), pending(2, 0), pending(3, 1), pending(4, 2)]
    for one in batches:
        queue.add_batch(one)
    assert queue.oldest_batches() == [batches[0], batches[1], batches[3]]
    assert queue.targets == {("t", 0), ("t", 1), ("t", 2)}
    queue.remove_oldest(batches[0])
    assert queue.oldest_batches() == [batches[1], batches[2], batches[3]]


def test_the_size_is_that_of_all_batches_in_the_queue(queue):
    batches = [pending(1, size=3), pending(2, size=4)]
    for one in batches:
        queue.add_batch(one)
    assert queue.size == 7
    queue.remove_oldest(batches[0])
    assert queue.size == 4
    queue.requeue_batches([batches[0]])
    assert queue.size == 7


def test_a_batch_waits_behind_an_older_one_of_its_partition_only(queue):
    queue.add_batch(pending(5, 0))
    assert queue.has_older(pending(6, 0))
    assert not queue.has_older(pending(4, 0))
    assert not queue.has_older(pending(6, 1))


@pytest.mark.parametrize("seed", range(3))
def test_batches_that_are_put_back_stand_at_their_places_again(queue, seed):
    chance = random.Random(seed)
    batches = [pending(number, number % 3) for number in range(12)]
    for one in batches:
        queue.add_batch(one)
    taken = []
    for _ in range(7):
        taken.append(chance.choice(queue.oldest_batches()))
        queue.remove_oldest(taken[-1])
    chance.shuffle(taken)
    queue.requeue_batches(taken)
    order = []
    while queue:
        order.append(queue.oldest_batches()[0])
        queue.remove_oldest(order[-1])
    assert order == batches
