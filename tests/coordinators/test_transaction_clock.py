"""Deadlines: right answers, and memory that follows the ids."""

from stablelog.coordinators.transactions.clock import Deadlines


def test_what_is_due_comes_out_once_and_in_order() -> None:
    deadlines = Deadlines()
    for name, at_ms in (("c", 30), ("a", 10), ("b", 20)):
        deadlines.watch(name, at_ms)

    assert deadlines.due(9, 10) == []
    assert deadlines.due(20, 10) == ["a", "b"]
    assert deadlines.due(20, 10) == []
    assert deadlines.due(30, 10) == ["c"]


def test_one_look_takes_out_only_so_many() -> None:
    deadlines = Deadlines()
    for i in range(100):
        deadlines.watch(f"{i:02}", 0)
    assert len(deadlines.due(0, 30)) == 30
    assert len(deadlines.due(0, 100)) == 70


def test_an_earlier_time_counts_and_a_later_one_waits() -> None:
    deadlines = Deadlines()
    deadlines.watch("a", 50)
    deadlines.watch("a", 20)
    deadlines.watch("a", 80)  # whoever looks at 20 sees that it is not yet time, and watches again
    assert deadlines.due(20, 10) == ["a"]
    assert deadlines.due(100, 10) == []


def test_memory_follows_the_ids_not_their_transactions() -> None:
    deadlines = Deadlines()
    for at_ms in range(60, 100_000):
        deadlines.watch("a", at_ms)
        if at_ms % 60 == 0:
            for name in deadlines.due(at_ms, 10):
                deadlines.watch(name, at_ms + 60)
    assert len(deadlines) <= 2


def test_a_forgotten_id_does_not_come_up_and_takes_no_memory() -> None:
    deadlines = Deadlines()
    deadlines.watch("kept", 500_000)
    for number in range(10_000):
        deadlines.watch(f"{number}", 1_000_000 + number)
        deadlines.forget(f"{number}")
    assert len(deadlines) <= 100
    assert deadlines.due(2_000_000, 100) == ["kept"]
