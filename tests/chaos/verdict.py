"""Checks of a round of kills: whether what was read agrees with what the writers were told. Pure.

`stablelog.testing.history` finds records that are lost, repeated, torn, too early, out of order or changed. This module gives
it the places of a round, without the records that deletion may have removed, and has checks of its own for compacted places,
transformed records, cuts and committed offsets.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import zip_longest

from stablelog.testing.history import Fate, History, WrittenTransaction, check


@dataclass
class Found:
    """Content of all places after a round. A place is (topic, partition), a row (offset, key, value).

    Attributes:
        committed: of each place, what librdkafka's read-committed consumer gets.
        everything: of each place, every record, whatever became of its transaction.
        starts: first offset of each place.
        compacted: places that are compacted.
        in_commit_order: places whose committed readers get commit order.
        live: of each place, what a read-committed reader saw during the kills.
        watermarks: of each place.
    """

    committed: dict
    everything: dict
    starts: dict
    compacted: frozenset
    in_commit_order: frozenset
    live: dict = field(default_factory=dict)
    watermarks: dict = field(default_factory=dict)


def check_places(attempts, found):
    """Violations in places that are not compacted."""
    seen = {value for read in found.committed.values() for _, _, value in read}
    gone = {value for attempt in attempts for value in deleted(attempt, found)} - seen
    plain = [place for place in found.committed if place not in found.compacted]
    transactions, appended, placed = [], {}, {}
    for attempt in attempts:
        values = tuple(
            value for place, _, value in attempt.records if place not in found.compacted and value not in gone
        )
        transactions.append(WrittenTransaction(attempt.fate, values, attempt.writer, attempt.asked_s))
        for value in values:
            place, offset = attempt.placed.get(value) or attempt.appended.get(value) or (None, -1)
            if value in attempt.placed and place in found.in_commit_order:
                placed[value] = (place, offset)
            elif place is not None and offset >= found.starts[place]:
                appended[value] = (place, offset)
    history = History(
        transactions,
        {place: [(offset, value) for offset, _, value in found.committed[place]] for place in plain},
        found.watermarks,
        {
            place: [one for one in found.live.get(place, ()) if one.offset >= found.starts[place]]
            for place in plain
        },
        {place: [(offset, value) for offset, _, value in found.everything[place]] for place in plain},
        appended,
    )
    there = {(place, offset): value for place, read in history.reads.items() for offset, value in read}
    for value, where in placed.items():
        if there.get(where) != value:
            yield f"committed at {where} and not there: {value!r}; there is {there.get(where)!r}"
    yield from check(history)


def deleted(attempt, found):
    """Values that deletion may have removed, so that they need not be there.

    In an ordinary place deletion removes the records before its start. In commit order it removes whole transactions. A
    transaction's positions lie behind the offsets at which its records were appended: if one was appended at the start or
    behind it, all of the transaction's records of that place are still there.
    """
    by_place = defaultdict(list)
    for place, _, value in attempt.records:
        by_place[place].append(value)
    for place, values in by_place.items():
        start = found.starts[place]
        if start == 0:
            continue
        offsets = {
            value: (attempt.placed.get(value) or attempt.appended.get(value) or (place, -1))[1]
            for value in values
        }
        if place in found.in_commit_order and attempt.asked_s is not None:
            if max(offsets.values()) < start:
                yield from values
        else:
            yield from (value for value, offset in offsets.items() if offset < start)


def check_deleted(attempts, found, deleted_to):
    """A start lies where a deletion was acknowledged, or behind; a transaction in commit order is whole in each place."""
    for place, start in deleted_to.items():
        if found.starts[place] < start:
            yield f"{place}: records before {start} were deleted, and the log starts at {found.starts[place]}"
    seen = {value for read in found.committed.values() for _, _, value in read}
    for attempt in attempts:
        for place in {place for place, _, _ in attempt.records} & found.in_commit_order:
            values = [value for at, _, value in attempt.records if at == place]
            if 0 < sum(value in seen for value in values) < len(values):
                yield f"{place}: of {values} some are there and some are not"


def is_committed(attempt, seen):
    """Whether an attempt that writes compacted places is committed. Where the writer does not know, its witness tells."""
    if attempt.fate is Fate.UNKNOWN:
        return attempt.values[-1] in seen
    return attempt.fate is Fate.COMMITTED


def check_compacted(attempts, found):
    """Each key has the latest value that was committed, and nothing is there that was not committed.

    Each attempt's last record is its witness, in a place that is not compacted. Keys are one writer's own.
    """
    seen = {
        value
        for place, read in found.committed.items()
        if place not in found.compacted
        for _, _, value in read
    }
    wanted, allowed = {}, set()
    for attempt in attempts:
        if is_committed(attempt, seen):
            for place, key, value in attempt.records[:-1]:
                wanted[place, key] = value
                allowed.add((place, key, value))
    latest = {}
    for place in found.compacted:
        offset_before = -1
        for offset, key, value in found.committed[place]:
            latest[place, key] = value
            if (place, key, value) not in allowed:
                yield f"{place}: {key!r}={value!r} at {offset} was never committed"
            if offset <= offset_before:
                yield f"{place}: offset {offset} came after {offset_before}"
            offset_before = offset
    for (place, key), value in wanted.items():
        if latest.get((place, key)) != value:
            yield f"{place}: {key!r} was committed as {value!r}, and is {latest.get((place, key))!r}"
    told = {where: value for attempt in attempts for value, where in attempt.appended.items()}
    for place in found.compacted:
        for offset, _, value in found.everything[place]:
            at_least = told.get((place, offset), value)
            if at_least != value and value is not None:
                yield f"{place}: {at_least!r} was acknowledged at {offset}, and {value!r} is there"


def check_transformed(found, source, target, committed_offsets):
    """Each source record below the committed offset was transformed once, and no other."""
    made = Counter()
    for partition in {partition for _, partition in source}:
        for _, _, value in found.committed[target, partition]:
            made[tuple(map(int, value.split(b".")[3:5]))] += 1
    wanted = {
        (partition, offset)
        for topic, partition in source
        for offset, _, _ in found.committed[topic, partition]
        if offset < committed_offsets[topic, partition]
    }
    yield from (f"{source[0][0]}: record {one} was not transformed" for one in wanted - made.keys())
    yield from (
        f"{source[0][0]}: record {one} was transformed, and is not committed" for one in made.keys() - wanted
    )
    yield from (f"{source[0][0]}: record {one} was transformed {n} times" for one, n in made.items() if n > 1)


def check_cuts(attempts, topics, by_cut, live):
    """Each transaction is in one commit, whole, in the order of the commits, where its writer was told.

    Args:
        attempts: of all writers.
        topics: of one group.
        by_cut: what a reader by cut gets of them after the round.
        live: of each reader by cut, what it saw during the kills.
    """
    owner, wanted = {}, {}
    for attempt in attempts:
        values = sorted(value for place, _, value in attempt.records if place[0] in topics)
        wanted[attempt] = values
        owner |= dict.fromkeys(values, attempt)
    sequences = [txn.commit_sequence for txn in by_cut]
    if sequences != sorted(set(sequences)):
        yield f"{topics}: commits come in the order {sequences}"
    found = {}
    for txn in by_cut:
        values = sorted(record.value for record in txn.records)
        owners = {owner.get(value) for value in values}
        if len(owners) != 1 or wanted.get(attempt := owners.pop()) != values:
            yield f"{topics}: commit {txn.commit_sequence} holds {values}"
            continue
        if attempt in found:
            yield f"{topics}: {values} is in commits {found[attempt]} and {txn.commit_sequence}"
        found[attempt] = txn.commit_sequence
        if attempt.fate is Fate.ABORTED:
            yield f"{topics}: {values} was aborted, and is in commit {txn.commit_sequence}"
        if attempt.sequence is not None and attempt.sequence != txn.commit_sequence:
            yield f"{topics}: {values} was told to be commit {attempt.sequence}, and is {txn.commit_sequence}"
    for attempt, values in wanted.items():
        if values and attempt.fate is Fate.COMMITTED and attempt.asked_s is not None and attempt not in found:
            yield f"{topics}: {values} was committed, and is in no cut"
    for seen in live:
        if seen != by_cut[: len(seen)]:
            place, (saw, there) = next(
                (place, pair) for place, pair in enumerate(zip_longest(seen, by_cut)) if pair[0] != pair[1]
            )
            yield (
                f"{topics}: a reader by cut saw {len(seen)} transactions that are not the first ones of those that are "
                f"there: as number {place}, it saw {saw}, and there is {there}"
            )
