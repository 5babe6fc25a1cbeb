"""An object store with retries within a time limit. After a create without a clear response, it finds out whether the
object was created. It adapts the size and the number of its requests to the speed of the link (`window`).
"""

import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from stablelog.env.disk import Buffer
from stablelog.env.objects.attempts import (
    ExistsError,
    MissingError,
    RejectedError,
    SlowError,
    StoredObject,
    StoreRequests,
    TooShortError,
    UnclearError,
    UploadPace,
    check_key,
)
from stablelog.env.objects.window import MIB, TransferWindow
from stablelog.errors import DamageError, ObjectExistsError, ObjectMissingError, StoreError

Answer = TypeVar("Answer")
PART_SIZE = 16 << 20  # The size of one part of an upload, in bytes. Stores allow 10,000 parts.
PART_SIZE_MIN = 5 << 20  # S3 accepts no smaller part, except the last one.
PARTS_AT_ONCE = 4
RANGE_SIZE_MIN = 64 << 10
READS = ("get", "get_range")  # The calls that raise ObjectMissingError for a missing object and do not retry.
WRITES = ("create", "upload", "delete")


class Patience(NamedTuple):
    """How long a call to an object store retries its request, and how long it waits between two attempts.

    Attributes:
        limit_s: the time in seconds after which no further attempt begins.
        pause_s: the pause after the first attempt; it doubles up to `pause_s_max`.
        pause_s_max: the longest pause.
    """

    limit_s: float = 30.0
    pause_s: float = 0.05
    pause_s_max: float = 5.0


class _Source:
    """The pieces of an upload, produced by the caller's code. If this code raises an exception, the upload ends with
    that exception. Without this class, the exception would count as a failure of the store, and the upload would be
    retried.

    Args:
        pieces: returns an iterable over the content from its beginning. The upload calls it once for each attempt.

    Attributes:
        error: the exception that the caller's code has raised; None if it has raised none.
    """

    def __init__(self, pieces: Callable[[], Iterable[Buffer]]) -> None:
        self._pieces = pieces
        self.error: Exception | None = None

    def pieces(self) -> Iterator[Buffer]:
        """Yield the pieces of the content from its beginning. An exception in the caller's code is kept in `error`;
        every later call then raises RejectedError, so that the store does not retry the upload.
        """
        if self.error is not None:
            raise RejectedError("the content of the upload cannot be read")
        try:
            yield from self._pieces()
        except Exception as error:
            self.error = error
            raise


class ObjectStore:
    """An object store with retries. Every call blocks, and any thread may make it.

    Args:
        requests: the store without retries: each of its calls makes one attempt.
        patience: how long a call repeats its attempts.
        now_s: returns the time in seconds of a clock that is never set back.
        sleep: waits for the given number of seconds.

    Attributes:
        counts: the number of attempts that were made, by the name of the call.
    """

    def __init__(
        self,
        requests: StoreRequests,
        patience: Patience | None = None,
        *,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._requests = requests
        self._patience = patience or Patience()
        self._now_s = now_s
        self._sleep = sleep
        self.counts: Counter[str] = Counter()
        self._last_s = math.inf  # No attempt begins after this time.
        self._downloads = TransferWindow(RANGE_SIZE_MIN, 16 * MIB, 256 * MIB, now_s)
        self._uploads = TransferWindow(
            PART_SIZE_MIN, PARTS_AT_ONCE * PART_SIZE, 16 * PARTS_AT_ONCE * PART_SIZE, now_s
        )

    @property
    def url(self) -> str:
        """The address of the store, without credentials."""
        return self._requests.url

    def give_up_after(self, seconds: float) -> None:
        """Begin no attempt later than `seconds` from now. A call that is in progress then ends with its current
        attempt.
        """
        self._last_s = self._now_s() + seconds

    def create(self, key: str, content: bytes) -> None:
        """Create an object. Durable on return.

        Args:
            key: the key.
            content: the content. It must differ from the content of every other writer of this key, unless it does not
                matter which writer creates the object.

        Raises:
            ObjectExistsError: an object with this key and another content exists. While it exists, no reader sees the
                new content.
            StoreError: it is unknown whether the object was created. It may also be created later.
        """

        def attempt() -> None:
            try:
                self._requests.create(key, content)
            except (ExistsError, UnclearError) as unclear:
                self.counts["get"] += 1
                try:
                    found = self._requests.get(key)
                except (
                    MissingError
                ):  # No object exists, even if the store has answered ExistsError: try again.
                    raise UnclearError(*unclear.args) from unclear
                if found != content:
                    raise

        try:
            self._retry("create", key, attempt)
        except ExistsError:
            raise ObjectExistsError(
                f"the object {self.url}/{key} exists already, and has another content"
            ) from None

    def upload(self, key: str, pieces: Callable[[], Iterable[Buffer]], size: int) -> None:
        """Write an object of any size. Durable on return, and visible as a whole or not at all.

        Args:
            key: the key. No other writer may use it.
            pieces: returns the content from its beginning, once for each attempt. An exception in it ends this call.
            size: the size of the content in bytes.

        Raises:
            StoreError: it is unknown whether the object was written. It may also be written later.
        """
        source = _Source(pieces)

        def attempt() -> None:
            part_size, parts_at_once = self._part_sizes()
            under_way = min(part_size * parts_at_once, size)
            with self._uploads.reserve(under_way, lambda: self._last_s, total=size) as timed_out:
                pace = UploadPace(part_size, parts_at_once, self._uploads.limit_s(under_way))
                try:
                    self._requests.upload(key, source.pieces(), pace)
                except SlowError:
                    timed_out()
                    raise

        try:
            self._retry("upload", key, attempt)
        except StoreError:
            if source.error is not None:
                raise source.error from None
            raise

    def _part_sizes(self) -> tuple[int, int]:
        """Return a pair that suits the speed of the link: the size in bytes of the parts of an upload, and how many of
        them to send at the same time.
        """
        size = self._uploads.size
        if size < PART_SIZE:
            return max(size, PART_SIZE_MIN), 1
        return PART_SIZE, min(size // PART_SIZE, PARTS_AT_ONCE)

    def get(self, key: str) -> bytes:
        """Return the content of an object.

        Raises:
            ObjectMissingError: there is no object of this key.
            StoreError: the store did not answer in time, or rejects the request.
        """
        return self._retry("get", key, lambda: self._requests.get(key))

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        """Return `size` bytes of an object, at least one, from `start` on.

        Raises:
            ObjectMissingError: there is no object of this key.
            DamageError: the object ends before the end of this range.
            StoreError: the store did not answer in time, or rejects the request.
        """
        assert start >= 0
        assert size > 0
        found: list[Buffer] = []
        position, end, size_max = start, start + size, size

        def attempt() -> Buffer:
            nonlocal size_max
            wanted = min(end - position, size_max, self._downloads.size)
            with self._downloads.reserve(wanted, lambda: self._last_s) as timed_out:
                try:
                    return self._requests.get_range(key, position, wanted)
                except UnclearError as error:
                    # What was received of this range is lost. The next range is smaller, so that less is lost.
                    size_max = max(wanted // 2, RANGE_SIZE_MIN)
                    if isinstance(error, SlowError):
                        timed_out()
                    raise

        while position < end:
            try:
                found.append(self._retry("get_range", key, attempt))
            except TooShortError:
                raise DamageError(f"the object {self.url}/{key} has fewer than {end} bytes") from None
            position += len(found[-1])
        return found[0] if len(found) == 1 else b"".join(found)

    def list_after(self, directory: str, after: str = "") -> list[StoredObject]:
        """Return the objects whose keys begin with `directory/` and come after the key `after`, in the order of keys.

        Raises:
            StoreError: the store did not answer in time, or rejects the request.
        """
        listed = self._retry(
            "list_after", directory, lambda: list(self._requests.list_after(directory, after))
        )
        if any(one.key >= other.key for one, other in itertools.pairwise(listed)):
            raise StoreError(f"{self.url} does not list keys in the order of their bytes", is_rejected=True)
        return listed

    def directories(self, directory: str = "") -> list[str]:
        """Return the names of the directories in a directory, in the order of their bytes.

        A directory is a part of a key that a slash follows. Without an argument, return the directories at the top.

        Raises:
            StoreError: the store did not answer in time, or rejects the request.
        """
        return self._retry("directories", directory, lambda: sorted(self._requests.directories(directory)))

    def delete(self, key: str) -> None:
        """Delete an object; no error if it is missing.

        Raises:
            StoreError: it is unknown whether the object was deleted.
        """
        self._retry("delete", key, lambda: self._requests.delete(key))

    def _retry(self, call: str, key: str, attempt: Callable[[], Answer]) -> Answer:
        if key or call != "directories":
            check_key(key)
        end_s = self._now_s() + self._patience.limit_s
        may_be_applied = False
        if self._now_s() > self._last_s:
            raise StoreError(
                f"the request '{call}' for {self.url}/{key} was not sent, because the broker stops"
            )
        for pause_s in self._pauses():
            self.counts[call] += 1
            try:
                return attempt()
            except RejectedError as error:
                # A write whose earlier attempt had no clear answer may have been applied, although this one was not.
                raise StoreError(
                    f"the request '{call}' for {self.url}/{key} was rejected: {error}",
                    is_rejected=not may_be_applied,
                ) from error
            except (UnclearError, ExistsError, MissingError) as error:
                if isinstance(error, MissingError) and call in READS:
                    raise ObjectMissingError(f"{self.url} has no object {key}") from None
                if isinstance(error, ExistsError) and call == "create":
                    raise
                may_be_applied = call in WRITES
                if self._now_s() + pause_s > min(end_s, self._last_s):
                    limit_s = f" in {self._patience.limit_s:g} s" if end_s <= self._last_s else ""
                    what = f"{call} of {self.url}/{key} had no clear answer{limit_s}"
                    raise StoreError(f"{what}: {error}") from error
            self._sleep(pause_s)
        raise AssertionError("the pauses do not end")

    def _pauses(self) -> Iterator[float]:
        """Yield the pauses between attempts in seconds. Each is shortened by a random amount of up to a half, so that
        many writers do not retry at the same moment.
        """
        pause_s = self._patience.pause_s
        while True:
            yield pause_s * random.uniform(0.5, 1)
            pause_s = min(2 * pause_s, self._patience.pause_s_max)
