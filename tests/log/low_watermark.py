"""A model of producer state that a low watermark prunes, and every history of it up to some length.

The low watermark of a transaction group is the least producer id with an open transaction at a decision. Markers carry
it to partitions. The model has one partition, one coordinator, one idempotent producer (id 0) and two transactional
producers (ids 1 and 2) of TV1: all their transactions have one epoch, so a partition tells old batches by sequence.

A network may deliver a request late and twice, and may hold a marker back. Each client waits for the answers to its
batches before it ends a transaction. The coordinator verifies a batch: the producer has a transaction open.

Run `python -m tests.log.low_watermark` to print the shortest history that breaks each rule.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

IDEMPOTENT, TRANSACTIONAL = 0, (1, 2)
SEQUENCE_END = 2  # batches of one producer
TRANSACTION_MAX = 2
NEXT_ID = 3  # the low watermark when no transaction is open


@dataclass(frozen=True)
class Request:
    """A batch on its way: of one record, which its producer and its sequence identify."""

    producer_id: int
    sequence: int
    transaction: int  # which one of its producer; 0 of the idempotent one


@dataclass(frozen=True)
class Marker:
    """A decision on its way to the partition."""

    producer_id: int
    commits: bool
    low_watermark: int


@dataclass(frozen=True)
class State:
    """Everything there is.

    Attributes:
        sent: requests, each of which may arrive at any time and more than once.
        answered: those of them whose client has the answer.
        begun: how many transactions each producer has begun.
        live: producers whose transaction is open, by the coordinator.
        markers: decided and not written yet, in any order.
        last: the last sequence that the partition knows of each producer.
        open: producers whose transaction is open, by the partition.
        log: what was appended, in order; a pair (request, transaction that it joined).
        fates: (producer, transaction) to whether it was decided as a commit.
        shown: the same by the partition.
        mark: the greatest low watermark that a marker has brought.
        error: what went wrong; the history ends there.
    """

    sent: frozenset[Request] = frozenset()
    answered: frozenset[Request] = frozenset()
    begun: tuple[int, int, int] = (0, 0, 0)
    live: frozenset[int] = frozenset()
    markers: frozenset[Marker] = frozenset()
    last: frozenset[tuple[int, int]] = frozenset()
    open: frozenset[tuple[int, int]] = frozenset()
    log: tuple[Request, ...] = ()
    fates: frozenset[tuple[int, int, bool]] = frozenset()
    shown: frozenset[tuple[int, int, bool]] = frozenset()
    mark: int = -1
    error: str = ""


Prune = Callable[[State], State]


@dataclass(frozen=True)
class Rule:
    """What a partition does with the low watermark.

    Attributes:
        prune: called when a marker was written.
        refuses_below: whether batches of producers below the mark are refused.
    """

    prune: Prune = lambda state: state
    refuses_below: bool = False


def _forget(state: State) -> State:
    """Forget producers below the mark that have no open transaction here."""
    opened = {producer_id for producer_id, _ in state.open}
    kept = {(one, last) for one, last in state.last if one >= state.mark or one in opened}
    return replace(state, last=frozenset(kept))


def _forget_transactional(state: State) -> State:
    """The same, but for producers that never begin a transaction."""
    kept = {(one, last) for one, last in state.last if one == IDEMPOTENT}
    return replace(state, last=_forget(state).last | kept)


def _end_leftovers(state: State) -> State:
    """Abort what is open here and lies below the mark, as Apache Pulsar does."""
    ended = {(one, transaction, False) for one, transaction in state.open if one < state.mark}
    kept = {(one, transaction) for one, transaction in state.open if one >= state.mark}
    return replace(state, shown=state.shown | ended, open=frozenset(kept))


NO_LOW_WATERMARK = Rule()
MUTANTS = {
    "forget producers below the mark": Rule(prune=_forget),
    "forget transactional producers below the mark": Rule(prune=_forget_transactional),
    "abort what is open below the mark": Rule(prune=_end_leftovers),
    "refuse batches below the mark": Rule(refuses_below=True),
}


def _begin(state: State, producer_id: int) -> State | None:
    if producer_id in state.live or state.begun[producer_id] == TRANSACTION_MAX:
        return None
    begun = list(state.begun)
    begun[producer_id] += 1
    return replace(state, live=state.live | {producer_id}, begun=(begun[0], begun[1], begun[2]))


def _may_write(state: State, producer_id: int) -> bool:
    """What the coordinator says of a producer: it has a transaction open, and that is not decided."""
    is_decided = any(marker.producer_id == producer_id for marker in state.markers)
    return producer_id == IDEMPOTENT or (producer_id in state.live and not is_decided)


def _send(state: State, producer_id: int) -> State | None:
    """A client sends its next batch. It has one on its way at most."""
    own = [one for one in state.sent if one.producer_id == producer_id]
    if not _may_write(state, producer_id) or len(own) == SEQUENCE_END or not state.answered.issuperset(own):
        return None
    request = Request(producer_id, len(own), state.begun[producer_id])
    return replace(state, sent=state.sent | {request})


def _deliver(state: State, request: Request, rule: Rule) -> State | None:
    one = request.producer_id
    is_transactional = one != IDEMPOTENT
    if not _may_write(state, one):
        return None
    if rule.refuses_below and one < state.mark:
        fresh = request not in state.answered and request.transaction == state.begun[one]
        return replace(state, error="a batch that must be taken is refused") if fresh else None
    last = dict(state.last)
    if one in last and request.sequence <= last[one]:
        opened = not is_transactional or (one, request.transaction) in state.open
        return replace(state, answered=state.answered | {request}) if opened else None
    if one in last and request.sequence != last[one] + 1:
        return None
    last[one] = request.sequence
    error = ""
    if request in state.log:
        error = "a record stands in the log twice"
    elif request.transaction != state.begun[one]:
        error = "a record of an ended transaction joins the next one"
    joined = {(one, state.begun[one])} if is_transactional else set()
    return replace(
        state,
        last=frozenset(last.items()),
        open=state.open | joined,
        log=(*state.log, request),
        answered=state.answered | {request},
        error=error,
    )


def _decide(state: State, producer_id: int, *, commits: bool) -> State | None:
    own = {one for one in state.sent if one.producer_id == producer_id}
    if producer_id == IDEMPOTENT or not _may_write(state, producer_id) or not own <= state.answered:
        return None
    marker = Marker(producer_id, commits, min(state.live, default=NEXT_ID))
    decided = (producer_id, state.begun[producer_id], commits)
    # Open until its marker is written: the next transaction of this producer waits for it.
    return replace(state, markers=state.markers | {marker}, fates=state.fates | {decided})


def _write_marker(state: State, marker: Marker, rule: Rule) -> State:
    one = marker.producer_id
    open_here = {(who, transaction) for who, transaction in state.open if who == one}
    written = replace(
        state,
        markers=state.markers - {marker},
        live=state.live - {one},
        open=state.open - open_here,
        shown=state.shown | {(who, transaction, marker.commits) for who, transaction in open_here},
        mark=max(state.mark, marker.low_watermark),
    )
    after = rule.prune(written)
    for who, transaction, commits in after.shown:
        if not commits and (who, transaction, True) in after.fates:
            return replace(after, error="committed records are hidden")
        if (who, transaction, True) not in after.fates and (who, transaction, False) not in after.fates:
            return replace(after, error="a live transaction is aborted")
    return after


def _steps(state: State, rule: Rule) -> Iterator[tuple[str, State | None]]:
    for one in TRANSACTIONAL:
        yield f"producer {one} begins", _begin(state, one)
        for commits in (True, False):
            yield f"producer {one} {'commits' if commits else 'aborts'}", _decide(state, one, commits=commits)
    for one in (IDEMPOTENT, *TRANSACTIONAL):
        yield f"producer {one} sends", _send(state, one)
    for request in sorted(state.sent, key=lambda request: (request.producer_id, request.sequence)):
        told = f"batch {request.sequence} of producer {request.producer_id} arrives"
        yield told, _deliver(state, request, rule)
    for marker in sorted(state.markers, key=lambda marker: marker.producer_id):
        told = f"the marker of producer {marker.producer_id} is written, low watermark {marker.low_watermark}"
        yield told, _write_marker(state, marker, rule)


def shortest_failure(rule: Rule, length_max: int) -> tuple[str, list[str]] | None:
    """The shortest history, of at most so many steps, that breaks a promise: what broke, and its steps; None if none."""
    reached: dict[State, tuple[State, str] | None] = {State(): None}
    front = [State()]
    for _ in range(length_max):
        following = []
        for state in front:
            for told, after in _steps(state, rule):
                if after is None or after in reached:
                    continue
                reached[after] = (state, told)
                following.append(after)
                if after.error:
                    return after.error, _history(reached, after)
        front = following
    return None


def _history(reached: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    told: list[str] = []
    while (came := reached[state]) is not None:
        state = came[0]
        told.append(came[1])
    return told[::-1]


if __name__ == "__main__":
    for name, rule in {"no low watermark": NO_LOW_WATERMARK, **MUTANTS}.items():
        failure = shortest_failure(rule, 11)
        sys.stdout.write(
            f"{name}: {'holds in all histories of 11 steps' if failure is None else failure[0]}\n"
        )
        sys.stdout.writelines(f"    {step}\n" for step in (failure[1] if failure else ()))
