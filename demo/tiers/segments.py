"""The segments of the topic over time: on the local disk, in the object store, or in both."""

import contextlib
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from demo.flights import AIRPORTS
from demo.tasks import Task
from demo.tiers import TOPIC
from stablelog.embedded import EmbeddedBroker

SAMPLE_S = 0.1
METRICS_TIMEOUT_S = 2.0
ADDRESS = re.compile(r"metrics are served at (\S+)")
SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
PARTITION = re.compile(rf'partition="(\d+)",topic="{TOPIC}"')


class Tier(Enum):
    """Where a segment is."""

    GROWING = "local, still growing"
    LOCAL = "local, not copied yet"
    BOTH = "local and in the store"
    STORE = "only in the store"
    LOST = "lost with the disk"


@dataclass(frozen=True, slots=True)
class Stay:
    """The time that a segment spent in a tier, in seconds since the start of the scene."""

    tier: Tier
    start_s: float
    end_s: float


@dataclass(slots=True)
class Segment:
    """A segment of the topic.

    Attributes:
        partition: the number of its partition.
        base_offset: its first offset.
        stays: where it was and when, without gaps.
    """

    partition: int
    base_offset: int
    stays: list[Stay] = field(default_factory=list)

    @property
    def tier(self) -> Tier:
        """Where it was last."""
        return self.stays[-1].tier

    def note(self, tier: Tier, at_s: float) -> None:
        """Record where it is."""
        if not self.stays:
            self.stays.append(Stay(tier, at_s, at_s))
            return
        last = self.stays[-1]
        self.stays[-1] = Stay(last.tier, last.start_s, at_s)
        if last.tier is not tier:
            self.stays.append(Stay(tier, at_s, at_s))


def tier_of(base_offset: int, local: Sequence[int], remote_end: int) -> Tier:
    """Return where a segment is.

    Args:
        base_offset: of the segment.
        local: the base offsets of the partition's segments on the local disk, in order.
        remote_end: the first offset of the partition that is not in the store.
    """
    is_copied = base_offset < remote_end
    if base_offset not in local:
        return Tier.STORE if is_copied else Tier.LOST
    if is_copied:
        return Tier.BOTH
    return Tier.GROWING if base_offset == local[-1] else Tier.LOCAL


class Metrics:
    """The metrics of a broker, as it serves them over HTTP."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._log = broker.log_path

    def read(self) -> dict[tuple[str, int | None], float]:
        """Return the samples of the topic by metric and partition, and those of metrics without labels.

        Raises:
            OSError: the broker does not answer.
        """
        addresses = ADDRESS.findall(self._log.read_text())
        if not addresses:
            raise ConnectionError("the broker has not said where it serves metrics")
        with urllib.request.urlopen(addresses[-1], timeout=METRICS_TIMEOUT_S) as answer:  # noqa: S310 - of our own broker
            content = answer.read().decode()
        found: dict[tuple[str, int | None], float] = {}
        for name, labels, value in SAMPLE.findall(content):
            partition = PARTITION.search(labels)
            if partition is not None or not labels:
                found[name, None if partition is None else int(partition[1])] = float(value)
        return found

    def fetched_size(self) -> int:
        """Return the bytes of all fetches since the start of the broker."""
        return int(self.read()["stablelog_fetched_bytes_total", None])

    def copy_lag(self) -> int:
        """Return how many segments of the topic wait for their copy."""
        found = self.read()
        return int(
            sum(value for (name, _), value in found.items() if name == "stablelog_remote_copy_lag_segments")
        )


class Fetched:
    """The bytes that a broker has returned to fetches since this object was made."""

    def __init__(self, broker: EmbeddedBroker | None) -> None:
        self._broker = broker
        self._before = 0 if broker is None else Metrics(broker).fetched_size()

    def sizes(self) -> tuple[int, int]:
        """Return the bytes from the local disk, and those from the store.

        The reader has read the topic to its end once. It therefore has every byte of the local segments from the disk.
        """
        if self._broker is None:
            return 0, 0
        size = Metrics(self._broker).fetched_size() - self._before
        local_size = min(size, local_size_of(self._broker.data))
        return local_size, size - local_size


class Watch(Task):
    """Samples where each segment is, also while no broker runs."""

    def __init__(self) -> None:
        super().__init__("the watch of segments")
        self._begun_s = time.monotonic()
        self._lock = threading.Lock()
        self._segments: dict[tuple[int, int], Segment] = {}
        self._remote_ends = [0] * len(AIRPORTS)
        self._data: Path | None = None
        self._metrics: Metrics | None = None

    def now_s(self) -> float:
        """Seconds since the start of the scene."""
        return time.monotonic() - self._begun_s

    def follow(self, broker: EmbeddedBroker) -> None:
        """Sample this broker's data directory from now on."""
        self._data, self._metrics = broker.data, Metrics(broker)

    def work(self) -> None:
        """Sample until the scene ends."""
        while not self.stopping.wait(SAMPLE_S):
            self.look()

    def look(self) -> None:
        """Take a sample."""
        if self._data is None or self._metrics is None:
            return
        with self._lock:
            # The list of local segments is read first: each segment that is missing from it was copied before.
            local = {place: local_segments(self._data, place) for place in range(len(AIRPORTS))}
            with contextlib.suppress(OSError):
                self._update_ends(self._metrics.read())
            at_s = self.now_s()
            for partition, offsets in local.items():
                for base_offset in offsets:
                    key = partition, base_offset
                    self._segments.setdefault(key, Segment(*key))
            for (partition, base_offset), segment in self._segments.items():
                segment.note(tier_of(base_offset, local[partition], self._remote_ends[partition]), at_s)

    def _update_ends(self, samples: Mapping[tuple[str, int | None], float]) -> None:
        for (name, partition), value in samples.items():
            if name == "stablelog_remote_end_offset" and partition is not None:
                self._remote_ends[partition] = int(value)

    @property
    def remote_ends(self) -> tuple[int, ...]:
        """The first offset of each partition that was not in the store at the last sample."""
        with self._lock:
            return tuple(self._remote_ends)

    def segments(self) -> list[Segment]:
        """Return all segments up to now, by partition, in the order in which they began."""
        with self._lock:
            found = [Segment(one.partition, one.base_offset, [*one.stays]) for one in self._segments.values()]
        return sorted(found, key=lambda one: (one.partition, one.base_offset))

    def count(self, tier: Tier) -> int:
        """Return how many segments are in a tier."""
        return sum(segment.tier is tier for segment in self.segments())


def local_segments(data: Path, partition: int) -> list[int]:
    """Return the base offsets of a partition's segments on the local disk, in order."""
    return sorted(int(path.stem) for path in (data / f"{TOPIC}-{partition}").glob("*.log"))


def local_size_of(data: Path) -> int:
    """Return the size of the topic's log files on the local disk, in bytes."""
    return sum(path.stat().st_size for path in data.glob(f"{TOPIC}-*/*.log"))
