"""Which transactions a micro-batch holds, against a list of transactions and a greedy choice from it."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.client.blocking.commits import Commit
from stablelog.spark.source import ranges as source_ranges
from stablelog.spark.source.micro_batch_end import TriggerLimits, count_up_to, micro_batch_end


def whole(place, start, end):
    return source_ranges.whole(source_ranges.Range(place, start, end))


PLACES = [("a", 0), ("a", 1), ("b", 0)]
counts = st.integers(1, 6)
transactions = st.dictionaries(st.sampled_from(PLACES), counts, max_size=3)
events = st.lists(
    st.one_of(transactions, st.tuples(st.sampled_from(PLACES), counts, st.booleans())), max_size=12
)


@dataclass
class History:
    """What was committed, in order; each partition's records at growing positions with holes between."""

    commits: dict = field(default_factory=lambda: {place: [] for place in PLACES})
    transactions: dict = field(default_factory=dict)
    ends: dict = field(default_factory=lambda: dict.fromkeys(PLACES, 0))

    def add(self, event):
        if isinstance(event, dict):
            sequence = len(self.transactions) + 1
            self.transactions[sequence] = event
            for place, count in event.items():
                self._add(place, count, sequence, count + 1)  # where they were appended, and the marker
        else:
            place, count, after_hole = event
            self._add(place, count, -1, 3 if after_hole else 0)

    def _add(self, place, count, sequence, hole):
        start = self.ends[place] + hole
        self.commits[place].append(Commit(start, start + count, sequence, 0))
        self.ends[place] = start + count

    def left(self, positions):
        """What a stream that has come so far has before it: (sequence, place, count), as it is committed."""
        return [
            (commit.commit_sequence, place, commit.end_offset - max(commit.start_offset, positions[place]))
            for place in PLACES
            for commit in self.commits[place]
            if commit.end_offset > positions[place]
        ]


def of(history):
    made = History()
    for event in history:
        made.add(event)
    return made


def greedy(history, positions, limit):
    """How many records the next micro-batch has, and which transactions, by trying."""
    left = history.left(positions)
    sequences = sorted({sequence for sequence, _, _ in left if sequence > 0})

    def cost(up_to):
        """Of these transactions, with the runs that stand before them."""
        total = 0
        for place in PLACES:
            here = [one for one in left if one[1] == place]
            wanted = [n for n, one in enumerate(here) if 0 < one[0] <= up_to]
            total += sum(count for _, _, count in here[: wanted[-1] + 1]) if wanted else 0
        return total

    fitting = [sequence for sequence in sequences if cost(sequence) <= limit]
    if fitting and fitting[-1] != sequences[-1]:
        return cost(fitting[-1]), fitting
    if fitting or not sequences:
        all_left = sum(count for _, _, count in left)
        return min(all_left, limit), fitting
    first = sequences[0]
    runs = cost(first) - sum(history.transactions[first].values())
    return (min(runs, limit), []) if runs else (cost(first), [first])


def held(history, starts, ends):
    """What stands between: records, and the transactions with a part there."""
    count, parts = 0, {}
    for place in PLACES:
        for commit in history.commits[place]:
            inside = min(commit.end_offset, ends[place]) - max(commit.start_offset, starts[place])
            if inside > 0:
                count += inside
                if commit.commit_sequence > 0:
                    parts.setdefault(commit.commit_sequence, {})[place] = inside
    return count, parts


@pytest.mark.extended
@settings(deadline=None)
@given(events, st.integers(1, 12))
def test_micro_batches_are_whole_transactions_and_as_many_as_fit(history, limit):
    history = of(history)
    positions = dict.fromkeys(PLACES, 0)
    sequence, seen = 0, []
    while history.left(positions):
        expected = greedy(history, positions, limit)
        ranges = [whole(place, positions[place], end) for place, end in history.ends.items()]
        last = len(history.transactions)
        found = micro_batch_end(ranges, history.commits, last, TriggerLimits(limit))
        count, parts = held(history, positions, found.ends)
        assert (count, sorted(parts)) == expected
        assert count > 0
        for one, part in parts.items():
            assert part == history.transactions[one]
        assert sequence <= found.commit_sequence <= last
        seen += sorted(parts)
        assert seen == [n for n, txn in history.transactions.items() if txn and n <= found.commit_sequence]
        positions, sequence = found.ends, found.commit_sequence
    assert seen == [n for n, txn in history.transactions.items() if txn]
    assert positions == history.ends or not history.commits


@settings(deadline=None)
@given(events, st.integers(1, 12))
def test_bytes_are_records_of_an_average_size(history, limit):
    history = of(history)
    ranges = [whole(place, 0, end) for place, end in history.ends.items()]
    sizes = dict.fromkeys(PLACES, 100.0)
    by_count = micro_batch_end(ranges, history.commits, len(history.transactions), TriggerLimits(limit))
    by_size = TriggerLimits(size_max=limit * 100 + 50, record_sizes=sizes)
    assert micro_batch_end(ranges, history.commits, len(history.transactions), by_size) == by_count


@pytest.mark.extended
@settings(deadline=None)
@given(events, st.integers(0, 20))
def test_records_are_counted_as_far_as_it_matters(history, enough):
    history = of(history)
    ranges = [whole(place, 0, end) for place, end in history.ends.items()]
    total = sum(count for _, _, count in history.left(dict.fromkeys(PLACES, 0)))
    found = count_up_to(ranges, history.commits, enough)
    assert found == total if total < enough else found >= enough


def test_what_is_left_of_a_run_that_was_cut_comes_next():
    history = of([(("a", 0), 5, False)])
    found = micro_batch_end([whole(("a", 0), 2, 5)], history.commits, 0, TriggerLimits(2))
    assert found == (0, {("a", 0): 4})


def test_the_children_of_a_joint_commit_are_never_parted():
    """Tasks of a sink write to one partition, and their transactions have one commit sequence."""
    place = PLACES[0]
    children = [Commit(0, 3, 1, 0), Commit(3, 6, 1, 0), Commit(7, 9, 2, 0)]
    for limit in (1, 3, 4, 6, 7):
        found = micro_batch_end([whole(place, 0, 10)], {place: children}, 2, TriggerLimits(limit))
        assert found == (1, {place: 6})
