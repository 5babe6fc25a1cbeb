"""Rules of health: whether a broker is alive, and whether it is ready for clients, with the reasons if it is not.

Only the state of the event loop decides whether the broker is alive, because a restart is the answer to a broker that is
not. A broker that is not ready may become ready without a restart.
"""

from typing import Final, NamedTuple

# The event loop of a broker that is alive answers within this number of seconds.
SILENCE_S_MAX: Final = 5.0


class HealthFacts(NamedTuple):
    """The state of a broker at one time.

    Attributes:
        partition_count: the number of partitions of all topics.
        opening_count: the number of those that are not open yet.
        offline_count: the number of those that could not be opened or have failed.
        is_disk_full: whether the broker refuses clients' writes because the disk is full.
        is_stopping: whether the broker has begun to stop.
    """

    partition_count: int
    opening_count: int
    offline_count: int
    is_disk_full: bool
    is_stopping: bool = False


class ReadyQuestion(NamedTuple):
    """What a client of the broker needs.

    Attributes:
        writes: whether it writes. A full disk counts only then.
        every_partition: whether it needs every partition. Offline partitions count only then, because a restart does
            not mend them.
    """

    writes: bool = True
    every_partition: bool = False


def reasons_not_alive(silence_s: float) -> list[str]:
    """Return why a broker is not alive; empty if it is.

    Args:
        silence_s: for how many seconds the event loop has not answered; 0 if it has answered the last question.
    """
    if silence_s <= SILENCE_S_MAX:
        return []
    return [f"the event loop has not answered for {silence_s:.0f} s"]


def reasons_not_ready(facts: HealthFacts, question: ReadyQuestion) -> list[str]:
    """Return why a broker is not ready for a client; empty if it is."""
    count = facts.partition_count
    reasons = {
        "stopping": facts.is_stopping,
        f"opening {facts.opening_count} of {count} partitions": facts.opening_count > 0,
        "disk full": facts.is_disk_full and question.writes,
        f"{facts.offline_count} of {count} partitions are offline": facts.offline_count > 0
        and question.every_partition,
    }
    return [reason for reason, holds in reasons.items() if holds]


def parse_ready_question(query: str) -> ReadyQuestion:
    """Parse the query of a URL: parameters with `&` between them, each at most once.

    Raises:
        ValueError: the query has another parameter, or another value. The message names those that there are.
    """
    given = query.split("&") if query else []
    known = {"writes=0", "writes=1", "partitions=all", "partitions=open"}
    names = [one.partition("=")[0] for one in given]
    if not known.issuperset(given) or len({*names}) < len(names):
        raise ValueError("the parameters are writes=0 or writes=1, and partitions=all or partitions=open")
    return ReadyQuestion(writes="writes=0" not in given, every_partition="partitions=all" in given)
