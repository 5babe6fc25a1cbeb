"""A simulated object store: it delays requests, loses responses, and carries writes out late.

The store guarantees what `stablelog.env.objects` promises of an object store (its contract), and nothing more. The
tests of this contract run against this store and the real ones. Time is simulated, too: each request advances it, and
so does `sleep`, which a test passes to `ObjectStore` for its pauses.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from stablelog.env.disk import Buffer
from stablelog.env.objects.attempts import (
    ExistsError,
    MissingError,
    RejectedError,
    SlowError,
    StoredObject,
    TooShortError,
    UnclearError,
    UploadPace,
)
from stablelog.env.objects.window import IDLE_S
from stablelog.testing.sim_faults import SimulatedCrash


@dataclass(frozen=True, slots=True)
class StoreFaults:
    """How often each fault occurs: the share of the requests with this fault, from 0 to 1.

    Attributes:
        refused: the store answers with status 503, and does not carry the request out.
        unanswered: the store carries the request out, and its answer is lost.
        late: the answer is lost, and if the request is a write, the store carries it out up to `late_s_max` later.
        wrong_exists: the store answers the creation of an object with "the key exists", even if it does not exist, and
            creates nothing (as S3 may do, with status 409).
        late_s_max: the longest delay of a write that is applied late, in seconds.
        latency_s: the mean simulated time that a request takes, in seconds.
    """

    refused: float = 0.0
    unanswered: float = 0.0
    late: float = 0.0
    wrong_exists: float = 0.0
    late_s_max: float = 40.0
    latency_s: float = 0.03


HOSTILE = StoreFaults(refused=0.05, unanswered=0.05, late=0.04, wrong_exists=0.02)


@dataclass(slots=True)
class _Late:
    due_s: float
    apply: Callable[[], bool]


@dataclass
class SimObjects:
    """A simulated object store. It is not safe for several threads.

    Attributes:
        seed: the seed of the random generator.
        faults: how often each fault occurs. A test may replace the object at any time.
        objects: the contents by key.
        written_s: by key, the simulated time in seconds at which the object was written.
        between: a function that is called before each request with the name and the key of the request. In it, a test can
            act as another writer.
        is_rejecting: whether all requests are rejected, as with wrong credentials.
        stop_at: the machine of the caller stops during the request with this number; 1 is the next request. None for
            never. If the request is a write, the store carries it out at once, later or never.
        rate: how many bytes a second cross the link to the store; None for no limit.
        moved_size: how many bytes have crossed the link, with those of requests that have failed.
        url: the address of the store.
    """

    seed: int = 0
    faults: StoreFaults = field(default_factory=StoreFaults)
    objects: dict[str, bytes] = field(default_factory=dict)
    written_s: dict[str, float] = field(default_factory=dict)
    between: Callable[[str, str], None] = lambda _call, _key: None
    is_rejecting: bool = False
    stop_at: int | None = None
    rate: float | None = None
    moved_size: int = 0
    url: str = "sim://store"

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._now_s = 0.0
        self._late: list[_Late] = []

    def now_s(self) -> float:
        """The simulated time, in seconds."""
        return self._now_s

    def sleep(self, seconds: float) -> None:
        """Advance the simulated time by some seconds. Carry out the writes that a fault has delayed and whose time has
        then come.
        """
        self._now_s += seconds
        due = sorted((late for late in self._late if late.due_s <= self._now_s), key=lambda late: late.due_s)
        self._late = [late for late in self._late if late.due_s > self._now_s]
        for late in due:
            late.apply()

    def create(self, key: str, content: Buffer) -> None:
        """Create an object. If one with this key exists, change nothing and raise ExistsError."""
        content = bytes(content)
        self.send(len(content), len(content), IDLE_S)

        def apply() -> bool:
            if key not in self.objects:
                self.written_s[key] = self._now_s
            return self.objects.setdefault(key, content) is content

        if not self._write("create", key, apply):
            raise ExistsError(key)

    def upload(self, key: str, pieces: Iterable[Buffer], pace: UploadPace) -> None:
        """Write an object, or replace it. `pace` says how large the parts of the upload are, how many are sent at the
        same time, and how long one may take.
        """
        content = b"".join(pieces)
        self.send(len(content), min(pace.part_size * pace.parts_at_once, len(content)), pace.limit_s)

        def apply() -> bool:
            self.objects[key] = content
            self.written_s[key] = self._now_s
            return True

        self._write("upload", key, apply)

    def get(self, key: str) -> bytes:
        """Return the content of an object."""
        self._read("get", key)
        if key not in self.objects:
            raise MissingError(key)
        self.receive(len(self.objects[key]))
        return self.objects[key]

    def get_range(self, key: str, start: int, size: int) -> bytes:
        """Return `size` bytes of an object, from byte `start` on."""
        self._read("get_range", key)
        if key not in self.objects:
            raise MissingError(key)
        found = self.objects[key][start : start + size]
        if len(found) < size:
            raise TooShortError(key)
        self.receive(size)
        return found

    def list_after(self, directory: str, after: str) -> Iterator[StoredObject]:
        """Return an iterator of the objects whose keys begin with `directory/` and are greater than `after`, in the
        order of their keys.
        """
        self._read("list_after", directory)
        return iter(
            StoredObject(key, len(content), round(self.written_s.get(key, 0.0) * 1000))
            for key, content in sorted(self.objects.items())
            if key.startswith(f"{directory}/") and key > after
        )

    def directories(self, directory: str) -> Iterator[str]:
        """Return an iterator of the names of the directories that are directly in a directory, without its path. An
        empty `directory` stands for the whole store.
        """
        self._read("directories", directory)
        start = f"{directory}/" if directory else ""
        rest = (key.removeprefix(start) for key in self.objects if key.startswith(start))
        return iter({key.partition("/")[0] for key in rest if "/" in key})

    def delete(self, key: str) -> None:
        """Delete an object."""

        def apply() -> bool:
            self.objects.pop(key, None)
            return True

        self._write("delete", key, apply)

    # -- the link ----------------------------------------------------------------------------------------------

    def send(self, size: int, under_way: int, limit_s: float) -> None:
        """Advance the simulated time by the time that the bytes of a write take on the link to the store.

        Args:
            size: the bytes of this write, which may be one part of an upload.
            under_way: the bytes of all parts that are sent at the same time and share the speed of the link.
            limit_s: the time within which a part must be sent, in seconds.

        Raises:
            SlowError: the link is too slow for this time limit.
        """
        if self.rate is None:
            return
        if under_way / self.rate > limit_s:
            self.moved_size += round(limit_s * self.rate)
            self.sleep(limit_s)
            raise SlowError("a part was not sent within its time limit")
        self.moved_size += size
        self.sleep(size / self.rate)

    def receive(self, size: int) -> None:
        """Advance the simulated time by the time that the bytes of a read take on the link."""
        if self.rate is not None:
            self.moved_size += size
            self.sleep(size / self.rate)

    # -- faults ------------------------------------------------------------------------------------------------

    def _read(self, call: str, key: str) -> None:
        if self._begin(call, key):
            raise SimulatedCrash(f"{call} {key}")
        if self._random.random() < self.faults.refused + self.faults.unanswered + self.faults.late:
            raise UnclearError("503")

    def _write(self, call: str, key: str, apply: Callable[[], bool]) -> bool:
        if self._begin(call, key):
            end = self._random.choice((apply, lambda: self._later(apply), lambda: None))
            end()
            raise SimulatedCrash(f"{call} {key}")
        faults, drawn = self.faults, self._random.random()
        for share, fault in (
            (faults.refused, self._refuse),
            (faults.unanswered, self._lose_the_answer),
            (faults.late, self._apply_late),
            (faults.wrong_exists if call == "create" else 0.0, self._answer_exists),
        ):
            if drawn < share:
                fault(apply)
            drawn -= share
        return apply()

    def _begin(self, call: str, key: str) -> bool:
        """Begin a request: advance the simulated time, and call the test's function `between`. Return True if the
        machine of the caller is to stop during this request (`stop_at`), and False otherwise.

        Args:
            call: the name of the request.
            key: the key of the request.

        Raises:
            RejectedError: the test has set `is_rejecting`, so the store rejects all requests.
        """
        self.sleep(self._random.expovariate(1 / self.faults.latency_s) if self.faults.latency_s else 0.0)
        self.between(call, key)
        if self.is_rejecting:
            raise RejectedError("403 Forbidden")
        if self.stop_at is None:
            return False
        self.stop_at -= 1
        return self.stop_at <= 0

    def _refuse(self, _apply: Callable[[], bool]) -> None:
        raise UnclearError("503 Slow Down")

    def _lose_the_answer(self, apply: Callable[[], bool]) -> None:
        apply()
        raise UnclearError("the connection was lost")

    def _later(self, apply: Callable[[], bool]) -> None:
        due_s = self._now_s + self._random.uniform(0, self.faults.late_s_max)
        self._late.append(_Late(due_s, apply))

    def _apply_late(self, apply: Callable[[], bool]) -> None:
        self._later(apply)
        raise UnclearError("the store has not answered within the time limit")

    def _answer_exists(self, _apply: Callable[[], bool]) -> None:
        raise ExistsError("409 Conflict")
