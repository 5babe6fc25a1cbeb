"""Fetch (1): return batches.

Behaviour: the response waits until there are `min_bytes`, or until `max_wait` is over; if a partition is refused, the
response is sent at once. A partition that is opening or offline counts as one without records: if its error code were
sent at once, Java's consumer would repeat the fetch without a pause until metadata names another leader. The response
also waits, without an error code, while the batch headers of a segment must first be checked (the *proof* of the
segment). A read-committed fetch ends at the last stable offset, and its response lists exactly the aborted transactions
of the returned records. The records of one partition end after ABORTED_COUNT_MAX abort markers, and the response is
then sent even if it has fewer than `min_bytes`. A read-uncommitted fetch ends at the high watermark, and its response
lists no aborted transactions. At least one whole batch is returned, however large. Version notes: v4 isolation; v5 log
start; v7 sessions (KIP-227); v12 the last fetched epoch; v13 topic ids.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from errno import EIO

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import Broker, Context, Operation, ResourceType, ServedApi, error_code_for
from stablelog.broker.apis.leader_epochs import check_leader_epoch
from stablelog.broker.fetch.long_polls import LongPoll
from stablelog.broker.fetch.sessions import (
    FINAL_EPOCH,
    FULL_FETCH_EPOCH,
    NO_SESSION,
    FetchSession,
    SessionPartition,
)
from stablelog.broker.loop.threads import in_thread
from stablelog.broker.loop.turns import Turn, free_in_turns, in_turns
from stablelog.broker.network.long_messages import ENTRY_COUNT_MAX
from stablelog.broker.topics.partition_state import COMMON, PARTITION_ERRORS, PartitionCodes, PartitionState
from stablelog.env.disk import Buffer
from stablelog.env.pages import is_in_memory, populate
from stablelog.errors import DiskError, NotLoadedError, RefusedError, UnprovenError
from stablelog.log.partition import Isolation, Partition
from stablelog.log.read import ABORTED_COUNT_MAX
from stablelog.security.api_rights import on_topic
from stablelog.security.principal import Principal
from stablelog.types import TopicPartition
from stablelog.wire.api import ApiKey
from stablelog.wire.fetch import (
    FetchedPartition,
    FetchedTopic,
    FetchRequest,
    ForgottenTopic,
    WantedTopic,
    encode_fetch_response,
)

PARTITION_CODES = COMMON._replace(unknown_id=ErrorCode.unknown_topic_id, storage_error_since=6)
API = ServedApi(
    ApiKey.FETCH,
    first_version=4,
    last_version=17,
    is_long_poll=True,
    is_heavy=True,
    rights=(on_topic(Operation.READ),),
    codes={"": PARTITION_CODES},
)

# For fewer bytes of records than this, the broker does not check whether their pages are in memory.
COLD_SIZE_MIN = 64 << 10
# The number of bytes that a response has besides the records, for the whole and for each partition.
RESPONSE_OVERHEAD = 18
PARTITION_OVERHEAD = 38
# If a topic id is unknown, this prefix and the id stand for the name of the topic. No topic name begins with this
# character.
UNKNOWN_ID_PREFIX = "?"


def _topic_name(broker: Broker, topic: WantedTopic | ForgottenTopic) -> str:
    return topic.name or broker.topics.name_of(topic.topic_id) or f"{UNKNOWN_ID_PREFIX}{topic.topic_id}"


async def _find_session(broker: Broker, request: FetchRequest, owner: Principal) -> FetchSession:
    """Return the fetch session of this request (KIP-227): a new one for a full fetch, or for an incremental fetch the
    one that it names.

    Raises:
        RefusedError: the session does not exist any more, or its epoch does not match.
    """
    wanted: OrderedDict[TopicPartition, SessionPartition] = OrderedDict()
    turn = Turn()
    async for topic in in_turns(request.topics, turn=turn):
        name = _topic_name(broker, topic)
        async for asked in in_turns(topic.partitions, turn=turn):
            wanted[name, asked.partition] = SessionPartition(
                asked.fetch_offset, asked.size_max, asked.current_leader_epoch, topic.topic_id
            )
    sessions = broker.fetch_sessions
    if request.session_epoch in (FULL_FETCH_EPOCH, FINAL_EPOCH):
        if request.session_id != NO_SESSION:
            sessions.end_session(request.session_id, owner)
        return sessions.begin_session(wanted, owner, keep=request.session_epoch == FULL_FETCH_EPOCH)
    forgotten = []
    async for gone in in_turns(request.forgotten, turn=turn):
        name = _topic_name(broker, gone)
        forgotten += [(name, index) for index in gone.partitions]
    return sessions.resume_session(request.session_id, request.session_epoch, owner, wanted, forgotten)


def _may_read(context: Context, name: str) -> bool:
    if context.access is None or name.startswith(UNKNOWN_ID_PREFIX):
        return True
    return context.allows(Operation.READ, ResourceType.TOPIC, name)


def _read_partition(
    broker: Broker,
    key: TopicPartition,
    wanted: SessionPartition,
    isolation: Isolation,
    size_left: int,
    codes: PartitionCodes,
    *,
    at_least_one: bool,
) -> tuple[FetchedPartition, Partition | None]:
    name, index = key
    try:
        if name.startswith(UNKNOWN_ID_PREFIX):
            raise codes.refusal(
                PartitionState.UNKNOWN_ID,
                f"there is no topic with the id {name.removeprefix(UNKNOWN_ID_PREFIX)}",
            )
        partition = broker.partitions.require(name, index, codes)
        check_leader_epoch(partition, wanted.current_leader_epoch)
        # Take the partition's offsets before the read, so that the response does not name a high watermark to which
        # the partition moved only after the read.
        answer = FetchedPartition(
            index,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.known_start(isolation),
            aborted=() if isolation is Isolation.READ_COMMITTED else None,
        )
        size_max = max(min(wanted.size_max, size_left), 0)
        try:
            read = partition.read(wanted.fetch_offset, size_max, isolation, at_least_one=at_least_one)
        except NotLoadedError as missing:
            broker.tiering.reads.start_loads(partition, missing)
            return answer, None
        except UnprovenError as unproven:
            broker.proofs.request(partition, unproven)
            # The segment is not checked (proven) yet. Return an error code: a response without records and without an
            # error would tell the client that compaction has removed all records here.
            raise codes.refusal(PartitionState.OPENING, str(unproven)) from unproven
        ahead = partition.log.segments.unproven_ahead(read.end_offset)
        if ahead is not None:
            broker.proofs.request(partition, ahead)
        broker.tiering.read_ahead(partition, read)
    except PARTITION_ERRORS as error:
        return FetchedPartition(index, error=error_code_for(broker, error, codes)), None
    answer.records = read.buffers
    if read.aborted is not None and read.buffers:
        answer.aborted = [(txn.producer_id, txn.first_offset) for txn in read.aborted]
    return answer, partition


@dataclass(slots=True)
class SessionRead:
    """What a read of all partitions of a fetch session has found.

    Attributes:
        answers: the part of the response for each partition.
        seen: each open partition, with the end offset up to which the reader can see records.
        loading: partitions whose records are being loaded from the object store.
        refused: whether a partition has an error that ends the wait of the fetch. A partition that is opening or
            offline, or whose records must first be loaded or checked, does not end the wait.
        size: bytes of all records that were read.
        aborted_count: the number of aborted transactions that the response lists.
    """

    answers: dict[TopicPartition, FetchedPartition] = field(default_factory=dict)
    seen: list[tuple[Partition, int]] = field(default_factory=list)
    loading: list[TopicPartition] = field(default_factory=list)
    refused: bool = False
    size: int = 0
    aborted_count: int = 0


async def _read_all(
    broker: Broker,
    session: FetchSession,
    context: Context,
    isolation: Isolation,
    size_max: int,
    codes: PartitionCodes,
    poll: LongPoll,
) -> SessionRead:
    """Read every partition of the session, and return what was found. If the session has many partitions, other tasks
    of the event loop run between two of them.

    The client's right to read a topic is checked directly before each read, because ACLs and the partitions of the
    session may change while the request waits. A partition that cannot be read yet, because it is not open or its
    records must first be loaded, is registered with `poll`. A later wait of `poll` then ends when the partition can be
    read.
    """
    found = SessionRead()
    # Copy the keys only: a copy of the items would make so many tuples at once that several garbage collections run.
    async for key in in_turns(list(session.partitions)):
        wanted = session.partitions.get(key)
        if wanted is None:
            continue  # Another request has removed the partition from the session.
        if not _may_read(context, key[0]):
            found.answers[key] = FetchedPartition(key[1], error=ErrorCode.topic_authorization_failed)
            found.refused = True
            continue
        answer, partition = _read_partition(
            broker, key, wanted, isolation, size_max - found.size, codes, at_least_one=found.size == 0
        )
        found.answers[key] = answer
        found.size += answer.size
        found.aborted_count += len(answer.aborted or ())
        if partition is not None:
            is_committed = isolation is Isolation.READ_COMMITTED
            found.seen.append(
                (partition, answer.last_stable_offset if is_committed else answer.high_watermark)
            )
        elif answer.error is ErrorCode.none:
            found.loading.append(key)
            poll.wait_for_partition(key)
        elif answer.error in (codes.opening, codes.offline):
            poll.wait_for_partition(key)
        else:
            found.refused = True
    return found


async def _load_pages(broker: Broker, found: SessionRead, codes: PartitionCodes) -> None:
    """Load the memory pages that contain the records from the log files into memory, in a thread.

    If the event loop read a page that is not in memory, it would wait for the disk, and so would all clients. If the
    pages of a partition cannot be read, its entry in `found` is replaced by one without records and with the error code
    of an offline partition.
    """
    for key, answer in found.answers.items():
        for records in answer.records:
            view = memoryview(records)
            if len(view) < COLD_SIZE_MIN or is_in_memory(view):
                continue
            try:
                await in_thread(broker.read_threads, populate, view)
            except OSError as error:
                failed = DiskError(f"reading {key[0]}-{key[1]} failed", error.errno or EIO)
                found.answers[key] = FetchedPartition(key[1], error=error_code_for(broker, failed, codes))
                break


async def _topics_of(
    session: FetchSession, answers: dict[TopicPartition, FetchedPartition], *, incremental: bool
) -> list[FetchedTopic]:
    topics: dict[str, FetchedTopic] = {}
    async for key, answer in in_turns(answers.items()):
        wanted = session.partitions.get(key)
        if wanted is None:
            continue
        offsets = (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset)
        if (
            incremental
            and not answer.records
            and answer.error is ErrorCode.none
            and wanted.last_sent == offsets
        ):
            continue
        wanted.last_sent = offsets if answer.error is ErrorCode.none else None
        name = key[0]
        if name not in topics:
            topics[name] = FetchedTopic(name, wanted.topic_id, [])
        topics[name].partitions.append(answer)
    if session.session_id != NO_SESSION:
        # Move partitions with records to the end of the session, so that the next response begins with the other
        # partitions.
        async for key, answer in in_turns(answers.items()):
            if answer.records and key in session.partitions:
                session.partitions.move_to_end(key)
    return list(topics.values())


async def handle(broker: Broker, request: FetchRequest, context: Context) -> list[Buffer]:
    """Read the partitions of the request, wait if they have fewer bytes than `min_bytes`, and return the encoded
    response.
    """
    version, correlation_id = context.api_version, context.correlation_id
    try:
        session = await _find_session(broker, request, context.session.principal)
    except RefusedError as refused:
        throttle_ms = 0 if context.throttle is None else context.throttle.charge_time()
        code = ErrorCode(refused.code)
        return encode_fetch_response(version, correlation_id, code, NO_SESSION, (), throttle_ms)
    incremental = request.session_epoch not in (FULL_FETCH_EPOCH, FINAL_EPOCH)
    isolation = Isolation.READ_COMMITTED if request.is_committed else Isolation.READ_UNCOMMITTED
    size_max = min(request.size_max, broker.config["fetch.max.bytes"])
    if context.throttle is not None:
        size_max = min(size_max, context.throttle.fetch_size_max())
    size_min = min(request.size_min, size_max)
    codes = PARTITION_CODES.for_version(version)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + request.wait_ms_max / 1000
    while True:
        with broker.long_polls.begin_poll() as poll:
            found = await _read_all(broker, session, context, isolation, size_max, codes, poll)
            if (
                found.refused
                or found.size >= size_min
                # A read has ended at this number although more records are there.
                or found.aborted_count >= ABORTED_COUNT_MAX
                or not session.partitions
                or loop.time() >= deadline
            ):
                break
            left_s = deadline - loop.time()
            if not await broker.long_polls.wait_for_more(poll, found.seen, isolation, left_s):
                deadline = loop.time()
        # Free the responses of the last read one after another. If `found` were assigned first, Python would free them
        # all at once, and block the event loop.
        await free_in_turns(found.answers, found.seen)
    if not found.size:
        # These partitions wait for the object store. If the response has no records at all, it must not look as if
        # compaction had removed all records of these partitions. If it has records of other partitions, the client
        # fetches again at once, and needs no error for that.
        for key in found.loading:
            found.answers[key].error = codes.opening or ErrorCode.none
    if found.size >= COLD_SIZE_MIN:
        await _load_pages(broker, found, codes)
    throttle_ms = 0
    if context.throttle is not None:
        is_allowed = context.throttle.charge_fetch(await _response_size(found, incremental=incremental))
        throttle_ms = context.throttle.ms
        if not is_allowed:
            await free_in_turns(found.answers, found.seen)
            return _throttled_response(broker, request, session, version, correlation_id, throttle_ms)
    broker.metrics.fetched_size += found.size
    topics = await _topics_of(session, found.answers, incremental=incremental)
    answer = (version, correlation_id, ErrorCode.none, session.session_id, topics, throttle_ms)
    if sum(len(topic.partitions) for topic in topics) + found.aborted_count > ENTRY_COUNT_MAX:
        buffers = await in_thread(broker.message_threads, encode_fetch_response, *answer)
        await _free(request, found, topics, session)
        return buffers
    return encode_fetch_response(*answer)


async def _response_size(found: SessionRead, *, incremental: bool) -> int:
    """Return the number of bytes of a response, without the names of topics and those fields of a partition whose size
    varies.

    Args:
        found: what was read.
        incremental: whether the response leaves out partitions that have neither records nor an error.
    """
    count = len(found.answers)
    if incremental:
        count = 0
        async for answer in in_turns(found.answers.values()):
            count += bool(answer.records) or answer.error is not ErrorCode.none
    return RESPONSE_OVERHEAD + found.size + PARTITION_OVERHEAD * count


def _throttled_response(
    broker: Broker,
    request: FetchRequest,
    session: FetchSession,
    version: int,
    correlation_id: int,
    throttle_ms: int,
) -> list[Buffer]:
    """Return an encoded response without partitions, for a client that is above a quota.

    A session that this request has begun is ended, because the client does not get the offsets of its partitions. The
    client then begins another session.
    """
    session_id = session.session_id
    if request.session_epoch in (FULL_FETCH_EPOCH, FINAL_EPOCH):
        broker.fetch_sessions.end_session(session_id, session.owner)
        session_id = NO_SESSION
    return encode_fetch_response(version, correlation_id, ErrorCode.none, session_id, (), throttle_ms)


async def _free(
    request: FetchRequest, found: SessionRead, topics: list[FetchedTopic], session: FetchSession
) -> None:
    """Free the memory of the request and of the response in several turns of the event loop.

    Python needs so long to free the objects of many partitions at once that the event loop would serve no other client
    meanwhile.
    """
    wanted = (topic.partitions for topic in request.topics)
    answered = (topic.partitions for topic in topics)
    # A session without an id ends with this request, so its partitions can be freed, too.
    own = [session.partitions] if session.session_id == NO_SESSION else []
    await free_in_turns(found.answers, found.seen, *wanted, *answered, *own)
