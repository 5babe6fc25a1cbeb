"""Faults that a test sets for the next requests of clients: to which requests a fault applies, and what happens to
these requests.

This module only chooses the requests and counts them. `stablelog.testing.fault_proxy` delays, drops, duplicates or
fails them.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.errors import UsageError, did_you_mean
from stablelog.testing.error_responses import WITHOUT_ERRORS, error_named
from stablelog.wire.api import API_KEYS, ApiKey

__all__ = ["Fault", "Faults"]

WAIT_S: Final = 30.0
OWN_CLIENT_ID: Final = "stablelog-testing"  # Requests of the test tools; no fault applies to them.


class FaultKind(Enum):
    """What happens to a request to which a fault applies."""

    DELAY = auto()
    DROP = auto()
    DUPLICATE = auto()
    FAIL = auto()


def api_named(name: str) -> ApiKey:
    """Return the API key of an API's name, such as "Produce", "EndTxn" or "end_txn".

    Raises:
        UsageError: there is no API of this name; the message proposes the most similar one.
    """
    known = {api.message_name: api for api in ApiKey}
    spellings = {spelling.lower().replace("_", ""): api for spelling, api in known.items()}
    found = spellings.get(name.lower().replace("_", ""))
    if found is None:
        raise UsageError(f"the broker has no API {name!r}{did_you_mean(name, known)}")
    return found


@dataclass(eq=False, repr=False)
class Fault:
    """A fault that a test has set, by a method of `Faults`, for the next requests of an API.

    Attributes:
        kind: what happens to the requests.
        api: the API of the requests.
        count: to how many requests the fault applies.
        client_id: the client id of the requests; None for every client.
        seconds: for a DELAY: how long each request is held; None to hold it until `release`.
        is_delivered: for a DROP: whether the broker gets the request, so that only the response is lost.
        error: for a FAIL: the error code in the response.
        happened: to how many requests the fault has happened.
    """

    kind: FaultKind
    api: ApiKey
    count: int
    client_id: str | None
    seconds: float | None = None
    is_delivered: bool = True
    error: ErrorCode = ErrorCode.none
    happened: int = 0
    _taken: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _released: threading.Event = field(default_factory=threading.Event)

    def __str__(self) -> str:
        of_client = f" of client {self.client_id!r}" if self.client_id is not None else ""
        return f"{self.kind.name.lower()} {self.api.message_name}{of_client}"

    def __repr__(self) -> str:
        return f"<Fault: {self}, happened to {self.happened} of {self.count} requests>"

    def wait(self, timeout_s: float = WAIT_S, *, count: int | None = None) -> None:
        """Wait until the fault has happened to all its requests. A delay has happened to a request when the request
        arrives, and not only at the end of the delay.

        Args:
            timeout_s: how long to wait, in seconds.
            count: wait only until the fault has happened to this many of its requests.

        Raises:
            TimeoutError: fewer requests came within `timeout_s`.
            UsageError: the fault applies to fewer requests than `count`, or `count` is less than 1.
        """
        wanted = self.count if count is None else count
        _check_count(wanted)
        if wanted > self.count:
            raise UsageError(
                f"count={count} is not valid: the fault '{self}' applies to {self.count} requests"
            )
        with self._changed:
            if not self._changed.wait_for(lambda: self.happened >= wanted, timeout_s):
                raise TimeoutError(
                    f"the fault '{self}' has happened to {self.happened} of {wanted} requests within "
                    f"{timeout_s:g} s"
                )

    def release(self) -> None:
        """End a delay: the held requests continue, and later ones are not held. May be called before any request comes."""
        self._released.set()

    def take_request(self, api_key: int, client_id: str | None) -> bool:
        """Return True if the fault applies to a request. The request then counts as one of the `count` requests of the
        fault, so that the fault applies to fewer later ones.

        Args:
            api_key: the API of the request.
            client_id: the client id in the request.
        """
        if api_key != self.api or self._taken >= self.count or client_id == OWN_CLIENT_ID:
            return False
        if self.client_id is not None and client_id != self.client_id:
            return False
        self._taken += 1
        return True

    def hold_request(self) -> None:
        """Block the calling thread, which has a delayed request, for the time of the delay or until `release`."""
        self._released.wait(self.seconds)

    def add_happened(self) -> None:
        """Record that the fault has happened to one more request."""
        with self._changed:
            self.happened += 1
            self._changed.notify_all()


class Faults:
    """The faults that a test has set. If several faults apply to a request, it gets the one that was set first.

    The arguments of all methods:

    - `api`: the API of the requests by its name in Kafka's protocol, such as "Produce", "Fetch" or "EndTxn".
    - `count`: the fault applies to this many requests, beginning with the next one.
    - `client_id`: only requests with this client id count; None for every client.

    All methods raise UsageError if there is no such API. They return the `Fault`; its `wait` waits until the fault has
    happened.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._counts: dict[int, int] = {}

    def delay(
        self, api: str, seconds: float | None = None, *, count: int = 1, client_id: str | None = None
    ) -> Fault:
        """Hold requests before the broker gets them, for some seconds or until `Fault.release` is called. Later
        requests of the same connection wait, too.
        """
        return self._add(Fault(FaultKind.DELAY, api_named(api), count, client_id, seconds=seconds))

    def drop(
        self, api: str, *, is_delivered: bool = True, count: int = 1, client_id: str | None = None
    ) -> Fault:
        """Lose requests: close the client's connection instead of a response. `is_delivered` says whether the broker
        gets the request: if so, only the response is lost.
        """
        return self._add(Fault(FaultKind.DROP, api_named(api), count, client_id, is_delivered=is_delivered))

    def duplicate(self, api: str, *, count: int = 1, client_id: str | None = None) -> Fault:
        """Deliver each request to the broker twice, one after the other on the same connection. The client gets the
        first response.
        """
        return self._add(Fault(FaultKind.DUPLICATE, api_named(api), count, client_id))

    def fail(self, api: str, error: str, *, count: int = 1, client_id: str | None = None) -> Fault:
        """Respond with an error, such as "NOT_LEADER_OR_FOLLOWER", for each topic, partition or other entry of a
        request. The broker does not get the request. A Produce request with acks=0 has no response: its connection is
        closed.

        Raises:
            UsageError: there is no such error, or the responses of this API have no field for an error.
        """
        api_key = api_named(api)
        if api_key in WITHOUT_ERRORS:
            raise UsageError(
                f"a response of {api_key.message_name} cannot report an error: drop the response instead"
            )
        return self._add(Fault(FaultKind.FAIL, api_key, count, client_id, error=error_named(error)))

    def _add(self, fault: Fault) -> Fault:
        _check_count(fault.count)
        with self._lock:
            self._faults.append(fault)
        return fault

    def take_fault(self, api_key: int, client_id: str | None) -> Fault | None:
        """Count a request for `requests`, and return the fault that applies to it; None if no fault does. The request
        also counts as one of the `count` requests of the fault.

        Args:
            api_key: the API of the request.
            client_id: the client id in the request. `requests` does not count those of the test tools themselves.
        """
        with self._lock:
            if client_id != OWN_CLIENT_ID:
                self._counts[api_key] = self._counts.get(api_key, 0) + 1
            return next((fault for fault in self._faults if fault.take_request(api_key, client_id)), None)

    def requests(self) -> Mapping[str, int]:
        """Return how many requests of each API have come since the last `clear`, such as {"Produce": 3}. Requests that
        the test tools send, such as to create topics, are left out.
        """
        with self._lock:
            return {_name(api_key): count for api_key, count in self._counts.items()}

    def clear(self) -> None:
        """Cancel all faults, let delayed requests continue, and set the counts of `requests` to 0. The broker gets the
        delayed requests even if their clients have gone.
        """
        with self._lock:
            faults, self._faults = self._faults, []
            self._counts = {}
        for fault in faults:
            fault.release()


def _check_count(count: int) -> None:
    if count < 1:
        raise UsageError(f"count={count} is not valid: the count must be 1 or more")


def _name(api_key: int) -> str:
    return ApiKey(api_key).message_name if api_key in API_KEYS else f"API {api_key}"
