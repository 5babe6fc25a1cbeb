"""Fetch sessions: the broker stores which partitions a client fetches, so that a fetch need not name them (KIP-227).

A session stores the partitions that a client fetches, and for each the offsets in the last response. An incremental
fetch names only partitions that are new, changed or removed. Its response contains only partitions with new records,
new offsets or an error. The number of stored partitions is limited, for one session and for all together. A session
belongs to the principal that has begun it. A request of another principal gets the error for an unknown session. A
session's id cannot be guessed from other ids.
"""

import random
import uuid
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from stablelog.broker.topic_names import NAME_SIZE_MAX
from stablelog.errors import RefusedError
from stablelog.security.principal import Principal
from stablelog.types import TopicPartition

NO_SESSION = 0
FULL_FETCH_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1
# The maximum number of partitions in one fetch session. A request may change all of them in one step of the event loop,
# which takes about 10 ms. The default of `stablelog.max.partitions` is 10,000.
SESSION_PARTITIONS_MAX = 12_000
# The maximum number of partitions in all fetch sessions together: about 100 MB of memory, and at most 300 MB with the
# longest names.
PARTITIONS_MAX = 500_000


@dataclass(slots=True)
class SessionPartition:
    """One partition of a fetch session: what the client wants of it, and the offsets that it was last sent.

    Attributes:
        fetch_offset: the offset to read from.
        size_max: the largest number of bytes to return.
        current_leader_epoch: the leader epoch that the client knows; -1 if it names none.
        topic_id: the id by which the request names the topic; None if it uses the name.
        last_sent: (high watermark, last stable offset, log start offset) in the last response; None before the first
            one, and after an error.
    """

    fetch_offset: int
    size_max: int
    current_leader_epoch: int = -1
    topic_id: uuid.UUID | None = None
    last_sent: tuple[int, int, int] | None = None


@dataclass(slots=True, eq=False)
class FetchSession:
    """One client's fetch session.

    The next fetch of the session must come from the principal `owner` and contain the number `epoch`. The number grows
    by one with each request, so another number shows that a request was lost in between.
    """

    session_id: int
    owner: Principal
    epoch: int = 1
    partitions: "OrderedDict[TopicPartition, SessionPartition]" = field(default_factory=OrderedDict)


class FetchSessions:
    """The fetch sessions of a broker. If a new session would exceed the limits, the least recently used session is
    removed.

    Args:
        count_max: the largest number of sessions; 0 for no sessions.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._partition_count = 0
        self._random = random.SystemRandom()

    def begin_session(
        self, wanted: "OrderedDict[TopicPartition, SessionPartition]", owner: Principal, *, keep: bool
    ) -> FetchSession:
        """Begin a fetch session for a full fetch (a fetch that names all its partitions), and return the session.

        The session is stored for later fetches only if `keep` is true, it does not have too many partitions, and each
        of its topic names has a valid length and only ASCII characters. Otherwise the id of the returned session is
        NO_SESSION, and the client must name all partitions again in its next fetch. The least recently used sessions
        are removed to make room.

        Args:
            wanted: the partitions of the fetch.
            owner: the principal of the client.
            keep: whether the client asks for a session.
        """
        if not keep or not self._count_max or len(wanted) > SESSION_PARTITIONS_MAX or _has_long_name(wanted):
            return FetchSession(NO_SESSION, owner, FULL_FETCH_EPOCH, wanted)
        self._partition_count += len(wanted)
        while self._sessions and (
            len(self._sessions) >= self._count_max or self._partition_count > PARTITIONS_MAX
        ):
            self._remove(next(iter(self._sessions)))
        session_id = self._random.randint(1, EPOCH_MAX)
        while session_id in self._sessions:
            session_id = self._random.randint(1, EPOCH_MAX)
        session = FetchSession(session_id, owner, 1, wanted)
        self._sessions[session_id] = session
        return session

    def resume_session(
        self,
        session_id: int,
        epoch: int,
        owner: Principal,
        changed: "OrderedDict[TopicPartition, SessionPartition]",
        forgotten: list[TopicPartition],
    ) -> FetchSession:
        """Apply an incremental fetch to its session, and return the session.

        Args:
            session_id: the id of the session.
            epoch: the epoch in the request, which grows by one with each request.
            owner: the principal of the client.
            changed: partitions to add or to change.
            forgotten: partitions to remove.

        Raises:
            RefusedError: `owner` has no such session any more; or the epoch shows that a request was lost; or the
                session would have too many partitions. The client then begins again with a full fetch.
        """
        session = self._sessions.get(session_id)
        if session is None or session.owner != owner:
            raise RefusedError(
                ErrorCode.fetch_session_id_not_found,
                f"there is no fetch session {session_id}, or it belongs to another client: begin a new "
                "session with a full fetch",
            )
        if epoch != session.epoch:
            raise RefusedError(
                ErrorCode.invalid_fetch_session_epoch,
                f"the next request of fetch session {session_id} must have epoch {session.epoch}, not "
                f"{epoch}: a request was lost. Begin a new session with a full fetch",
            )
        if len(changed) > SESSION_PARTITIONS_MAX:
            raise self._too_large_error(session_id)
        if _has_long_name(changed):
            self._remove(session_id)
            raise RefusedError(
                ErrorCode.fetch_session_id_not_found,
                f"fetch session {session_id} was ended, because the request has a name that no topic can have",
            )
        self._sessions.move_to_end(session_id)
        count_before = len(session.partitions)
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        for key, wanted in changed.items():
            known = session.partitions.get(key)
            if known is not None:
                wanted.last_sent = known.last_sent
            session.partitions[key] = wanted
        for key in forgotten:
            session.partitions.pop(key, None)
        self._partition_count += len(session.partitions) - count_before
        if len(session.partitions) > SESSION_PARTITIONS_MAX or self._partition_count > PARTITIONS_MAX:
            raise self._too_large_error(session_id)
        return session

    def _too_large_error(self, session_id: int) -> RefusedError:
        """Remove a fetch session that would have too many partitions, because its client can only continue with a new
        session. Return the error that tells the client so.
        """
        self._remove(session_id)
        return RefusedError(
            ErrorCode.fetch_session_id_not_found,
            f"fetch session {session_id} was ended, because it would have too many partitions: "
            "begin a new session with a full fetch",
        )

    def end_session(self, session_id: int, owner: Principal) -> None:
        """Remove a fetch session, if `owner` has one with this id."""
        session = self._sessions.get(session_id)
        if session is not None and session.owner == owner:
            self._remove(session_id)

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id)
        self._partition_count -= len(session.partitions)

    def __len__(self) -> int:
        return len(self._sessions)


def _has_long_name(partitions: Iterable[TopicPartition]) -> bool:
    """Return whether a name in the partitions of a fetch is too long for a topic, or is not ASCII. Such names could
    take much memory, so they are not stored.
    """
    # There are many partitions and few topic names. To collect the names in a set takes less time than to check the
    # name of each partition.
    return any(len(name) > NAME_SIZE_MAX or not name.isascii() for name in {name for name, _ in partitions})
