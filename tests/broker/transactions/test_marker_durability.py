"""The markers that are not durable yet are looked through a few at a time."""

from types import SimpleNamespace

from stablelog.broker.transactions import marker_durability
from stablelog.broker.transactions.marker_durability import MarkerDurability


class Marked:
    """A partition, and how often its high watermark was asked for."""

    def __init__(self, end_offset):
        self.end_offset = end_offset
        self.durable = 0
        self.asked = 0

    @property
    def high_watermark(self):
        self.asked += 1
        return self.durable


def with_commit(partitions, sequences=(1,)):
    noted = MarkerDurability(
        SimpleNamespace(is_in_use=lambda partition: not hasattr(partition, "is_deleted"))
    )
    for partition in partitions:
        noted.add_markers(partition, list(sequences))
    return noted


def test_only_so_many_markers_are_forgotten_at_once(monkeypatch):
    monkeypatch.setattr(marker_durability, "FORGOTTEN_AT_ONCE", 3)
    partitions = [Marked(5) for _ in range(10)]
    noted = with_commit(partitions, [1, 1, 1])
    for partition in partitions:
        partition.durable, partition.asked = 5, 0
    counts = []
    while len(noted):
        noted.forget_durable()
        counts.append(sum(partition.asked for partition in partitions))
    assert counts == [3, 6, 9, 10], "each marker is looked at once, and those of one partition count once"


def test_a_commit_is_awaited_until_its_last_marker_is_durable():
    first, second = Marked(5), Marked(7)
    noted = with_commit([first, second])
    noted.add_markers(second, [2])
    assert noted.undurable_commits() == {1: [(first, 5), (second, 7)], 2: [(second, 7)]}
    second.durable = 7
    noted.forget_durable()
    assert noted.undurable_commits() == {1: [(first, 5)]}
    first.durable = 4
    noted.forget_durable()
    assert len(noted) == 1
    first.is_deleted = True
    assert (noted.undurable_commits(), len(noted)) == ({}, 0)


def test_what_is_durable_is_not_looked_at_again():
    partitions = [Marked(5) for _ in range(10)]
    noted = with_commit([*partitions, Marked(1)])
    for partition in partitions:
        partition.durable = 5
    assert len(noted.undurable_commits()[1]) == 1
    asked = sum(partition.asked for partition in partitions)
    assert len(noted.undurable_commits()[1]) == 1
    assert sum(partition.asked for partition in partitions) == asked
