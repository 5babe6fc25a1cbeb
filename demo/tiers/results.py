"""What the scene has found: its phases, and what each reader read, from where and with which requests."""

from collections import Counter
from dataclasses import dataclass, field

from demo.tiers.proof import Verdict
from demo.tiers.segments import Segment
from demo.tiers.store import GET_INDEXES, GET_LOG

KAFKA_INDEXES = (
    3  # RemoteIndexCache of Apache Kafka 4.2 fetches the offset, time and transaction index of a segment
)

DISK_LOST, SPARK = "disk lost, restored", "Spark, no broker"  # the names of two phases


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the scene, in seconds since its start."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Read:
    """A read of the topic from its first record to its last.

    Attributes:
        name: who read.
        phase: the number of the phase, from 1 on.
        scope: which flights the reader has to find, such as "written by then".
        expected_count: how many these are.
        verdict: the records beside the source.
        seconds: by the clock.
        local_size: bytes of log files that the reader got from the broker's disk.
        store_size: bytes of log files that it got from the store.
        requests: requests to the store by kind. If a broker serves the reader, only requests for records count, because
            the broker's copies go on at the same time.
        segment_count: segments that have to be read from the store.
    """

    name: str
    phase: int
    scope: str
    expected_count: int
    verdict: Verdict
    seconds: float
    local_size: int
    store_size: int
    requests: Counter[str]
    segment_count: int

    @property
    def kafka_requests(self) -> Counter[str]:
        """The fewest requests of Apache Kafka 4.2 for the same read, computed from its code."""
        return Counter({GET_LOG: self.segment_count, GET_INDEXES: KAFKA_INDEXES * self.segment_count})


@dataclass(slots=True)
class Results:
    """All of the scene.

    Attributes:
        flight_count: rows of the source file.
        aborted_count: transactions that were aborted on purpose.
        aborted_record_count: their records.
        lost_count: flights that were only on the disk when it was lost.
        phases: in their order.
        reads: in their order.
        segments: where each segment was and when.
        requests: all requests to the store by kind.
        segment_size: the largest size of a segment, in bytes.
        transaction_count: transactions that were committed.
        delay_ms: the time before the store handles a request.
    """

    flight_count: int
    aborted_count: int = 0
    aborted_record_count: int = 0
    lost_count: int = 0
    phases: list[Phase] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    segment_size: int = 0
    transaction_count: int = 0
    delay_ms: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether every reader has found what it has to find."""
        return bool(self.reads) and all(read.verdict.is_good for read in self.reads)
