"""What each API answers for a partition that is opening, offline or unknown, in every version."""

import asyncio
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.topics.partition_state import PartitionState
from stablelog.errors import UnavailableError
from stablelog.testing.sim_disk import SimDisk
from stablelog.wire.api import ApiKey
from tests.broker.desk import ABORT, COMMIT, DATA, Gate, batch, init_fields, opened
from tests.declared_apis import APIS, CODES

NONE = ErrorCode.none
COMMIT_ORDER = {"stablelog.order": "commit"}
SECOND = timedelta(seconds=1)

# A topic for each state, so that APIs that name topics are asked as well. `failed` fails while the broker runs.
TARGETS = {
    "open": ("open", 0),
    "opening": ("opening", 0),
    "offline": ("offline", 0),
    "failed": ("failed", 0),
    "unknown topic": ("none", 0),
    "unknown index": ("open", 7),
}
STATES = {
    "open": PartitionState.OPEN,
    "opening": PartitionState.OPENING,
    "offline": PartitionState.OFFLINE,
    "failed": PartitionState.OFFLINE,
    "unknown topic": PartitionState.UNKNOWN,
    "unknown index": PartitionState.UNKNOWN,
}


def in_all_states(conversation):
    """A conversation with a broker that has a partition in each state, and a transaction open in all of them."""
    disk, gate, names = SimDisk(), Gate("opening"), ("open", "opening", "offline", "failed")
    me = []

    async def written():
        async with opened(disk, topics=()) as desk:
            me.append(await desk.init("me"))
            for name in names:
                desk.broker.topic_files.create(name, 1, COMMIT_ORDER)
                assert (await desk.produce(batch(b"v"), topic=name)).error_code is NONE
            assert set(await desk.add("me", me[0], *((name, 0) for name in names))) == {NONE}

    async def talk():
        async with opened(disk, topics=(), gate=gate, auto_create_topics_enable="false") as desk:
            (desk.me,), desk.gate = me, gate
            partitions = desk.broker.partitions
            fail(partitions.require("failed", 0))
            assert {case: partitions.state(*target) for case, target in TARGETS.items()} == STATES
            await conversation(desk)

    asyncio.run(asyncio.wait_for(written(), 100))
    disk.remove_dir(DATA / "offline-0")
    asyncio.run(asyncio.wait_for(talk(), 100))


def test_metrics_count_the_partitions_in_each_state():
    async def conversation(desk):
        own = sum(topic.partition_count for topic in desk.broker.topics if topic.is_internal)
        found = {sample.name: sample.value for sample in await desk.broker.metrics.read_samples()}
        assert found["stablelog_partitions"] == own + 4
        assert found["stablelog_offline_partitions"] == 2
        assert found["stablelog_opening_partitions"] == 1

    in_all_states(conversation)


def fail(partition):
    """Make a partition fail, as a write does that cannot be undone."""
    partition.availability.mark_failed(UnavailableError("the disk fails"))
    assert partition.failure is not None


class Case(NamedTuple):
    """How an API is asked for one partition, and where its answer holds the code.

    Attributes:
        key: of the API.
        values: for a desk, a topic and a partition index the values of a request.
        code: of an answer.
        targets: those that can be asked for; an API that names only topics has no unknown index.
        versions: those that are asked; None for all.
        ids_since: the version from which topics are named by id.
    """

    key: int
    values: Callable[[Any, str, int], dict[str, Any]]
    code: Callable[[Any], ErrorCode]
    targets: tuple[str, ...] = tuple(TARGETS)
    versions: range | None = None
    ids_since: int = 99


TOPICS = tuple(name for name in TARGETS if name != "unknown index")


def in_topics(**more):
    """A request for one partition, with these values of the partition beside its index."""

    def values(desk, topic, index):
        partition = {"partition": index, "partition_index": index, "index": index, **more}
        asked = {"name": topic, "topic": topic, "topic_id": topic_id(desk, topic), "partitions": (partition,)}
        return {**AROUND, "topics": (asked,)}

    return values


AROUND = {
    "replica_id": -1,
    "isolation_level": 0,
    "timeout": SECOND,
    "group_id": "g",
    "member_id": "",
    "max_wait": timedelta(0),
    "min_bytes": 1,
    "max_bytes": 1 << 20,
    "session_epoch": -1,
    "forgotten_topics_data": (),
    "rack_id": "",
}


def topic_id(desk, topic):
    found = desk.broker.topics.get(topic)
    return uuid.UUID(int=1) if found is None else found.topic_id


def first(answer):
    return answer.topics[0].partitions[0].error_code


def produce(_desk, topic, index):
    data = ({"index": index, "records": batch(b"v")},)
    topics = ({"name": topic, "partition_data": data},)
    return {"transactional_id": None, "acks": -1, "timeout": SECOND, "topic_data": topics}


def metadata(_desk, topic, _index):
    return {
        "topics": ({"name": topic, "topic_id": None},),
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }


def metadata_code(answer):
    """The code of the topic, or of its partition, which has no leader then."""
    (topic,) = answer.topics
    if topic.error_code is not NONE:
        return topic.error_code
    (partition,) = topic.partitions
    assert (partition.leader_id == -1) == (partition.error_code is not NONE)
    return partition.error_code


def elections(election_type):
    return lambda _desk, topic, index: {
        "election_type": election_type,
        "topic_partitions": ({"topic": topic, "partitions": (index,)},),
        "timeout": SECOND,
    }


def elected(answer):
    """The code of the election. An open partition needs none."""
    code = answer.replica_election_results[0].partition_result[0].error_code
    return NONE if code is ErrorCode.election_not_needed else code


def add(desk, topic, index, *, verify_only=False):
    topics = ({"name": topic, "partitions": (index,)},)
    shown = {"transactional_id": "me", "producer_id": desk.me[0], "producer_epoch": desk.me[1]}
    first_versions = {f"v3_and_below_{name}": value for name, value in {**shown, "topics": topics}.items()}
    return {**first_versions, "transactions": ({**shown, "verify_only": verify_only, "topics": topics},)}


def added(answer):
    first_versions = getattr(answer, "results_by_topic_v3_and_below", None)
    topics = first_versions or answer.results_by_transaction[0].topic_results
    return topics[0].results_by_partition[0].partition_error_code


def offsets(desk, topic, index):
    shown = {"transactional_id": "me", "producer_id": desk.me[0], "producer_epoch": desk.me[1]}
    return {**in_topics(committed_offset=0, committed_metadata="")(desk, topic, index), **shown}


def markers(_desk, topic, index):
    marker = {
        "producer_id": 77,
        "producer_epoch": 0,
        "transaction_result": False,
        "topics": ({"name": topic, "partition_indexes": (index,)},),
        "coordinator_epoch": 0,
    }
    return {"markers": (marker,)}


def joint(_desk, topic, index):
    asked = {"group_id": "g", "topic": topic, "partition_index": index, "committed_offset": 0}
    return {
        "group": "",
        "key": f"{topic}-{index}",
        "version": 0,
        "run": None,
        "retention_ms": -1,
        "digest": None,
        "children": (),
        "group_offsets": ({**asked, "committed_metadata": None},),
    }


CASES = {
    "Produce": Case(0, produce, lambda answer: answer.responses[0].partition_responses[0].error_code),
    "Fetch": Case(
        1,
        in_topics(fetch_offset=0, partition_max_bytes=1 << 20),
        lambda answer: answer.responses[0].partitions[0].error_code,
        ids_since=13,
    ),
    "ListOffsets": Case(2, in_topics(timestamp=-1), first),
    "Metadata": Case(3, metadata, metadata_code, TOPICS),
    "AlterReplicaLogDirs": Case(
        34,
        lambda _desk, topic, index: {
            "dirs": ({"path": str(DATA), "topics": ({"name": topic, "partitions": (index,)},)},)
        },
        lambda answer: answer.results[0].partitions[0].error_code,
    ),
    "ElectLeaders": Case(43, elections(0), elected),
    "ElectLeaders, unclean": Case(43, elections(1), elected, versions=range(1, 3)),
    "AlterPartitionReassignments": Case(
        45,
        lambda _desk, topic, index: {
            "timeout": SECOND,
            "allow_replication_factor_change": True,
            "topics": ({"name": topic, "partitions": ({"partition_index": index, "replicas": (1,)},)},),
        },
        lambda answer: answer.responses[0].partitions[0].error_code,
    ),
    "DescribeTopicPartitions": Case(
        75,
        lambda _desk, topic, _index: {
            "topics": ({"name": topic},),
            "response_partition_limit": 2000,
            "cursor": None,
        },
        metadata_code,
        TOPICS,
    ),
    "OffsetCommit": Case(8, offsets, first),
    "DeleteTopics": Case(
        20,
        lambda _desk, topic, _index: {
            "topics": ({"name": topic, "topic_id": None},),
            "topic_names": (topic,),
            "timeout": SECOND,
        },
        lambda answer: answer.responses[0].error_code,
        ("unknown topic",),
    ),
    "DeleteRecords": Case(21, in_topics(offset=0), first),
    "OffsetForLeaderEpoch": Case(23, in_topics(leader_epoch=0), first),
    "AddPartitionsToTxn": Case(24, add, added),
    "AddPartitionsToTxn, verifyOnly": Case(24, partial(add, verify_only=True), added, versions=range(4, 6)),
    "WriteTxnMarkers": Case(27, markers, lambda answer: first(answer.markers[0])),
    "TxnOffsetCommit": Case(28, offsets, first),
    "CreatePartitions": Case(
        37,
        lambda _desk, topic, _index: {
            "topics": ({"name": topic, "count": 2, "assignments": None},),
            "timeout": SECOND,
            "validate_only": True,
        },
        lambda answer: answer.results[0].error_code,
        TOPICS,
    ),
    "OffsetDelete": Case(47, in_topics(), first),
    "DescribeProducers": Case(
        61,
        lambda _desk, topic, index: {"topics": ({"name": topic, "partition_indexes": (index,)},)},
        first,
    ),
    "CommitJoint": Case(10002, joint, lambda answer: answer.error_code),
    "DescribeCut": Case(
        ApiKey.DESCRIBE_CUT,
        lambda _desk, topic, _index: {"group": None, "commit_sequence": -1, "topics": (topic,)},
        lambda answer: answer.error_code,
        TOPICS,
    ),
    "DescribeCommits": Case(
        ApiKey.DESCRIBE_COMMITS,
        lambda _desk, topic, index: {
            "topic": topic,
            "partition_index": index,
            "offset": 0,
            "commit_sequence": -1,
            "count_max": 1,
            "with_outside": False,
        },
        lambda answer: answer.error_code,
    ),
}


async def prepare(desk):
    """A group with offsets, whose log is part of the transaction."""
    asked = {
        "transactional_id": "me",
        "producer_id": desk.me[0],
        "producer_epoch": desk.me[1],
        "group_id": "g",
    }
    assert (await desk.ask_with(25, 3, asked)).error_code is NONE
    assert first(await desk.ask_with(8, 8, offsets(desk, "open", 0))) is NONE


def test_every_api_of_the_table_is_asked():
    assert set(CASES) == set(CODES)


@pytest.mark.parametrize("name", CASES)
def test_each_version_answers_by_the_table(name):
    case = CASES[name]
    versions = case.versions or APIS[case.key].served_versions

    async def conversation(desk):
        await prepare(desk)
        for version in versions:
            codes = CODES[name].for_version(version)
            for target in case.targets:
                state = STATES[target]
                if target == "unknown topic" and version >= case.ids_since:
                    state = PartitionState.UNKNOWN_ID
                answer = await desk.ask_with(case.key, version, case.values(desk, *TARGETS[target]))
                assert case.code(answer) is (codes.code_for_state(state) or NONE), (version, target)

    in_all_states(conversation)


def test_settings_that_change_while_a_partition_is_opening_hold_when_it_is_open():
    async def conversation(desk):
        opening = desk.broker.topics.get("opening")
        desk.broker.topic_files.configure(opening, {**COMMIT_ORDER, "retention.ms": "1234"})
        desk.gate.open()
        await desk.opened("opening")
        assert desk.broker.partitions.require("opening", 0).config.retention_ms == 1234

    in_all_states(conversation)


def test_only_open_partitions_are_listed_in_the_data_directory():
    async def conversation(desk):
        answer = await desk.ask_with(35, 4, {"topics": None})
        listed = {topic.name: len(topic.partitions) for topic in answer.results[0].topics}
        closed = dict.fromkeys(("opening", "offline", "failed"), 0)
        assert {name: listed[name] for name in ("open", *closed)} == {"open": 1, **closed}

    in_all_states(conversation)


def test_a_transaction_over_closed_partitions_ends_and_the_next_one_waits_for_the_markers():
    async def conversation(desk):
        assert (await desk.end("me", desk.me, COMMIT)).error_code is NONE
        assert await desk.add("me", desk.me, ("open", 0)) == [ErrorCode.concurrent_transactions]
        answer = await desk.ask(22, 4, **init_fields(4, "me"))
        assert answer.error_code is ErrorCode.concurrent_transactions

    in_all_states(conversation)


def test_a_transaction_that_was_refused_an_offline_partition_goes_on_or_is_aborted():
    """Java's client retries, in the transaction that is open; librdkafka aborts one that has not begun."""

    async def conversation(desk):
        offline, other = ("offline", 0), ("open", 0)
        storage, left_out = ErrorCode.kafka_storage_error, ErrorCode.operation_not_attempted
        assert await desk.add("me", desk.me, other, offline) == [left_out, storage]
        me = await desk.init("you")
        assert await desk.add("you", me, other, offline) == [left_out, storage]
        assert (await desk.end("you", me, ABORT)).error_code is NONE
        assert await desk.add("you", me, other) == [NONE]
        assert (
            await desk.produce(batch(b"x", producer=me, sequence=0), topic="open", transactional_id="you")
        ).error_code is NONE
        assert await desk.add("you", me, offline) == [storage]
        assert await desk.add("you", me, other) == [NONE]
        assert (await desk.end("you", me, COMMIT)).error_code is NONE
        await desk.durable()
        assert desk.values("open") == [b"v", b"x"]

    in_all_states(conversation)


@pytest.mark.parametrize("names", [("opening",), ("opening", "open")])
def test_a_fetch_of_an_opening_partition_waits_until_it_is_open(names):
    """Java's consumer asks again at once when it is refused, thousands of times a second while a log is recovered."""

    async def conversation(desk):
        # Read committed: of the open one nothing new can be seen.
        asked = [in_topics(fetch_offset=1, partition_max_bytes=1 << 20)(desk, name, 0) for name in names]
        values = {**asked[0], "topics": tuple(one["topics"][0] for one in asked)}
        answering = asyncio.create_task(desk.ask_with(1, 12, {**values, "max_wait": timedelta(seconds=60)}))
        for _ in range(20):  # turns of the loop: every chance to answer
            await asyncio.sleep(0)
        assert not answering.done()
        desk.gate.open()
        await desk.opened("opening")
        await desk.produce(batch(b"new"), topic="opening")
        codes = [topic.partitions[0].error_code for topic in (await answering).responses]
        assert codes == [NONE] * len(names)

    in_all_states(conversation)


@pytest.mark.parametrize("name", ["opening", "offline", "failed"])
def test_a_fetch_of_a_partition_that_does_not_open_is_refused_after_its_longest_wait(name):
    async def conversation(desk):
        loop = asyncio.get_running_loop()
        values = in_topics(fetch_offset=0, partition_max_bytes=1 << 20)(desk, name, 0)
        began_s = loop.time()
        answer = await desk.ask_with(1, 12, {**values, "max_wait": timedelta(milliseconds=50)})
        assert loop.time() - began_s >= 0.05
        assert CASES["Fetch"].code(answer) is CODES["Fetch"].code_for_state(STATES[name])

    in_all_states(conversation)


@pytest.mark.parametrize(("name", "version"), [("Metadata", 10), ("Metadata", 13), ("DeleteTopics", 6)])
def test_a_topic_id_that_no_topic_has_is_answered_by_the_table(name, version):
    case = CASES[name]

    async def conversation(desk):
        values = {**case.values(desk, "", 0), "topics": ({"name": None, "topic_id": uuid.UUID(int=1)},)}
        answer = await desk.ask_with(case.key, version, values)
        assert case.code(answer) is CODES[name].unknown_id

    in_all_states(conversation)
