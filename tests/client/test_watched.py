"""Objects that are told of a fork are not kept alive, and their deaths run no code that could swallow a signal."""

import gc
import weakref

import pytest

from stablelog import processes
from stablelog.client.blocking.cluster import BlockingCluster


class Forked:
    def after_fork(self):
        raise AssertionError("there is no fork")


def test_the_dead_are_forgotten_without_a_call():
    watched = processes.ForkWatch()
    kept = [Forked() for _ in range(10)]
    for one in kept:
        watched.add_object(one)
    for _ in range(20 * processes.PRUNE_MIN):
        watched.add_object(Forked())
    gc.collect()
    assert len(watched) <= 2 * len(kept) + 2 * processes.PRUNE_MIN
    assert {id(one) for one in watched} == {id(one) for one in kept}
    assert not any(weakref.getweakrefs(one)[0].__callback__ for one in kept)


@pytest.mark.extended
def test_a_cluster_is_told_of_a_fork_as_long_as_it_is_used():
    told = []

    class Told(BlockingCluster):
        def after_fork(self):
            told.append(self)

    cluster, _gone = Told("localhost:1"), Told("localhost:1")
    del _gone
    gc.collect()
    assert [one for one in processes.watched if isinstance(one, Told)] == [cluster]
