"""What was committed and when, and how far behind each reader is."""

import statistics
import threading
import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Sight:
    """What one reader has seen.

    Attributes:
        record_count: of all transactions.
        doomed_count: of them, those of transactions that were not to be committed.
        delays_s: from a commit to when its last record was seen, for each transaction that the reader has whole.
    """

    record_count: int = 0
    doomed_count: int = 0
    delays_s: list[float] = field(default_factory=list)
    # Transactions that are committed and not all seen, in the order of their commits: when, and how many are left.
    waiting: dict[str, tuple[float, int]] = field(default_factory=dict)
    # A record may be seen before its writer is told of the commit.
    early: dict[str, int] = field(default_factory=dict)

    def median_delay_s(self) -> float:
        """Of the transactions that it has whole."""
        return statistics.median(self.delays_s) if self.delays_s else 0.0


@dataclass(frozen=True, slots=True)
class Moment:
    """How things stood at a time.

    Attributes:
        at_s: seconds since the first record.
        committed_count: records.
        read_counts: records that each reader has seen.
        behind_s: for how long the oldest of the transactions that each reader lacks has been committed.
    """

    at_s: float
    committed_count: int
    read_counts: dict[str, int]
    behind_s: dict[str, float]

    def behind_count(self, reader: str) -> int:
        """Records that are committed, and that this reader has not seen."""
        return max(0, self.committed_count - self.read_counts[reader])


class Ledger:
    """What writers and readers tell, and several threads ask."""

    def __init__(self, readers: tuple[str, ...]) -> None:
        self._lock = threading.Lock()
        self.began_at = time.time()
        self.sights = {reader: Sight() for reader in readers}
        self.committed_count = self.commit_count = self.abort_count = 0
        self.opened_at_s: float | None = None  # the long transaction
        self.closed_at_s: float | None = None
        self.moments: list[Moment] = []

    def begin(self) -> None:
        """The first record is about to be written."""
        self.began_at = time.time()

    def now_s(self) -> float:
        """Seconds since the first record."""
        return time.time() - self.began_at

    def opened(self) -> None:
        """The long transaction has written its records."""
        self.opened_at_s = self.now_s()

    def closed(self) -> None:
        """The long transaction is committed."""
        self.closed_at_s = self.now_s()

    def open_for_s(self) -> float:
        """For how long the long transaction was or has been open."""
        if self.opened_at_s is None:
            return 0.0
        return (self.now_s() if self.closed_at_s is None else self.closed_at_s) - self.opened_at_s

    def committed(self, name: str, record_count: int) -> None:
        """A commit was acknowledged."""
        with self._lock:
            now_s = self.now_s()
            self.committed_count += record_count
            self.commit_count += 1
            for sight in self.sights.values():
                left = record_count - sight.early.pop(name, 0)
                if left:
                    sight.waiting[name] = now_s, left
                else:
                    sight.delays_s.append(0.0)

    def aborted(self) -> None:
        """A transaction was aborted on purpose."""
        with self._lock:
            self.abort_count += 1

    def saw(self, reader: str, name: str, *, doomed: bool) -> None:
        """A reader has a record of this transaction."""
        with self._lock:
            sight = self.sights[reader]
            sight.record_count += 1
            sight.doomed_count += doomed
            if name not in sight.waiting:
                sight.early[name] = sight.early.get(name, 0) + 1
                return
            committed_at_s, left = sight.waiting[name]
            if left > 1:
                sight.waiting[name] = committed_at_s, left - 1
                return
            del sight.waiting[name]
            sight.delays_s.append(self.now_s() - committed_at_s)

    def look(self) -> Moment:
        """How things stand. It is kept."""
        with self._lock:
            now_s = self.now_s()
            moment = Moment(
                now_s,
                self.committed_count,
                {reader: sight.record_count for reader, sight in self.sights.items()},
                {
                    reader: now_s - next(iter(sight.waiting.values()))[0] if sight.waiting else 0.0
                    for reader, sight in self.sights.items()
                },
            )
        self.moments.append(moment)
        return moment

    def is_all_read(self) -> bool:
        """Whether every reader has as many records as were committed."""
        with self._lock:
            return all(sight.record_count >= self.committed_count for sight in self.sights.values())
