"""Each API asks for the rights that `stablelog.security.api_rights` lists, and for no others.

A case is one request and the rights that it needs. Without one of them the answer is an authorization error, the same
whether the resource exists or not, and nothing changes. With exactly these rights there is no such error.
"""

import asyncio
import dataclasses
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import Context, describe_transactions
from stablelog.broker.security.access import Access
from stablelog.errors import StablelogError
from stablelog.security.principal import Principal
from stablelog.wire.acls import (
    CLUSTER_NAME,
    AclBinding,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)
from stablelog.wire.api import ApiKey
from stablelog.wire.messages import message_class
from tests.broker.apis.rights_cases import (
    CASES,
    CLUSTER,
    DESCRIBE,
    GROUP,
    NOT_IN_CASES,
    OPEN_APIS,
    READ,
    SUBSCRIBED,
    TOPIC,
    TXN,
    WRITE,
    Case,
    Names,
    Need,
    T,
    joint,
    one,
    produced,
)
from tests.broker.desk import batch, filled, opened
from tests.broker.test_any_request import made
from tests.declared_apis import APIS, RIGHTS

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ROOT, ALICE = Principal("User", "root"), Principal("User", "alice")
DENIED = {
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.transactional_id_authorization_failed,
}


# A client that may describe or delete a group learns whether there is one.
KNOWING_GROUPS = {ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.OFFSET_DELETE}


def resource(names: Names, field: str) -> str:
    derived = {
        "": CLUSTER_NAME,
        "new_topic": "new-" + names.topic,
        "new_group": "new-" + names.group,
        "consumers": "consumers-" + names.group,
    }
    return derived[field] if field in derived else getattr(names, field)


def rules(names: Names, needs: tuple[Need, ...], principal: Principal = ALICE) -> list[AclBinding]:
    return [
        AclBinding(Pattern(kind, resource(names, field)), str(principal), "*", operation, Permission.ALLOW)
        for operation, kind, field in needs
    ]


def error_codes(value: object) -> list[ErrorCode]:
    if isinstance(value, ErrorCode):
        return [value]
    if dataclasses.is_dataclass(value):
        return [
            code for field in dataclasses.fields(value) for code in error_codes(getattr(value, field.name))
        ]
    if isinstance(value, tuple | list):
        return [code for item in value for code in error_codes(item)]
    return []


def entries(value: Any) -> list[object]:
    """The items of all lists of an answer."""
    # The states that a client asks for and that do not exist are in the request.
    fields = [field.name for field in dataclasses.fields(value) if field.name != "unknown_state_filters"]
    found = [getattr(value, name) for name in fields]
    return [item for items in found if isinstance(items, tuple) for item in items]


def state(broker: Any) -> object:
    """All that a request can change."""
    return (
        {topic.name: (topic.partition_count, dict(topic.configs)) for topic in broker.topics},
        {(one.topic, one.index): (one.start_offset, one.end_offset) for one in broker.partitions},
        dict(broker.config.dynamic),
        dict(broker.config.dynamic_defaults),
        set(broker.acls.authorizer.index),
        dict(broker.users.credentials.users),
    )


ZOE = AclBinding(Pattern(TOPIC, "zoe"), "User:zoe", "*", READ, Permission.ALLOW)


async def furnish(desk: Any) -> Names:
    """Make the resources that are here."""
    desk.stranger.session.principal = ROOT
    desk.broker.acls.authorizer.change(added=[ZOE])
    names = Names("here")
    producer = await desk.init(names.txn)
    names = Names("here", producer)
    await desk.produce(batch(b"secret"), topic=names.topic)
    await desk.add(names.txn, producer, (names.topic, 1))
    await desk.produce(
        batch(b"open", producer=producer, sequence=0),
        topic=names.topic,
        partition=1,
        transactional_id=names.txn,
    )
    for case in CASES:
        if case.api is ApiKey.OFFSET_COMMIT:
            await desk.ask_with(case.api, case.version, case.values(names))
    heartbeat = {
        **SUBSCRIBED,
        "group_id": "consumers-" + names.group,
        "subscribed_topic_names": (names.topic,),
        "subscribed_topic_regex": None,
    }
    await desk.ask_with(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, heartbeat)
    await desk.durable()
    desk.stranger.session.principal = ALICE
    return names


async def ask(desk: Any, api: ApiKey, version: int, values: dict[str, Any]) -> Any:
    """Ask as ALICE."""
    if api is not ApiKey.DESCRIBE_TRANSACTIONS:
        return await desk.ask_with(api, version, values)
    # The library kio does not read the start time of a transaction that has not begun.
    request = filled(message_class(api, version, "request"), values)
    access = desk.broker.acls.access_of_client(str(ALICE), "nowhere", api.message_name)
    return await describe_transactions.handle(
        desk.broker,
        request,
        Context(version, 1, None, asyncio.Lock(), desk.stranger.session, access),
    )


async def settled(desk: Any) -> None:
    """Let what a request has begun come to its end."""
    for _ in range(20):
        await asyncio.sleep(0)
    await desk.durable()


def conversation(talk: Callable[[Any, Names], Any]) -> None:
    async def talking() -> None:
        async with opened(
            topics=("topic-here",),
            authorizer_class_name=AUTHORIZER,
            super_users="User:root",
        ) as desk:
            names = await furnish(desk)
            await talk(desk, names)

    asyncio.run(asyncio.wait_for(talking(), 120))


def ids(case: Case) -> str:
    needs = "+".join(f"{need[0].name}_{need[1].name}".lower() for need in case.needs)
    return f"{case.api.snake_name}-{case.version}-{needs}"


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_without_one_of_its_rights_a_request_is_refused_and_with_them_it_is_not(case: Case) -> None:
    async def talk(desk: Any, names: Names) -> None:
        authorizer = desk.broker.acls.authorizer

        async def ask_with(names: Names, needs: tuple[Need, ...]) -> Any:
            added = rules(Names("here"), needs) + rules(Names("gone"), needs)
            authorizer.change(added=added)
            answer = await ask(desk, case.api, case.version, case.values(names))
            await settled(desk)
            authorizer.change(removed=added)
            return answer

        gone = Names("gone", names.producer)
        before = state(desk.broker)
        for count in range(len(case.needs)):
            for needs in itertools.combinations(case.needs, count):
                answer = await ask_with(names, needs)
                codes = error_codes(answer)
                missing = [need for need in case.needs if need not in needs]
                if case.is_filter:
                    assert entries(answer) in ([], entries(answer)[:1])
                    assert "here" not in repr(answer)
                elif case.api is ApiKey.CREATE_TOPICS and missing == [case.needs[1]]:
                    assert answer.topics[0].topic_config_error_code == ErrorCode.topic_authorization_failed
                    assert answer.topics[0].configs == ()
                    return  # The topic was created, and only its settings are not in the answer.
                else:
                    assert DENIED & set(codes), (missing, answer)
                    assert set(codes) <= DENIED | {ErrorCode.none}, (missing, answer)
                    if not needs or case.api not in KNOWING_GROUPS:
                        # The answer does not say whether the resources exist.
                        assert repr(answer).replace("here", "gone") == repr(await ask_with(gone, needs))
                assert state(desk.broker) == before, missing
        answer = await ask_with(names, case.needs)
        assert not DENIED & set(error_codes(answer)), answer
        if case.is_filter:
            assert "here" in repr(answer)

    conversation(talk)


def test_every_api_has_a_case_or_is_open() -> None:
    assert {case.api for case in CASES} | NOT_IN_CASES == set(APIS)
    assert set(RIGHTS) == {ApiKey(key) for key in APIS}


@pytest.mark.extended
def test_handlers_ask_for_the_rights_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, set[tuple[Operation, ResourceType]]] = {}
    allows, allows_some = Access.allows, Access.allows_some

    def noted(
        access: Access, operation: Operation, kind: ResourceType, name: str, *, is_logged: bool
    ) -> bool:
        asked.setdefault(access.api, set()).add((operation, kind))
        return allows(access, operation, kind, name, is_logged=is_logged)

    def noted_some(access: Access, operation: Operation, kind: ResourceType) -> bool:
        asked.setdefault(access.api, set()).add((operation, kind))
        return allows_some(access, operation, kind)

    monkeypatch.setattr(Access, "allows", noted)
    monkeypatch.setattr(Access, "allows_some", noted_some)

    async def ask_for(desk: Any, names: Names, case: Case) -> None:
        authorizer = desk.broker.acls.authorizer
        for needs in (case.needs, case.needs[:1], (), case.needs[1:]):
            added = rules(names, needs)
            authorizer.change(added=added)
            values = case.values(names)
            for named_by_id in values.get("topics") or () if case.api is ApiKey.DELETE_TOPICS else ():
                topic = desk.broker.topics.get(named_by_id["name"])
                if topic is not None and not needs:
                    named_by_id |= {"name": None, "topic_id": topic.topic_id}
            await ask(desk, case.api, case.version, values)
            authorizer.change(removed=added)

    describe_cluster = {
        "include_cluster_authorized_operations": True,
        "endpoint_type": 1,
        "include_fenced_brokers": False,
    }
    # A topic is deleted only after the request without rights that names it by its id.
    for case in [*CASES, Case(ApiKey.DESCRIBE_CLUSTER, 1, lambda _n: describe_cluster, ())]:
        asked_once = case._replace(needs=() if case.api is ApiKey.DELETE_TOPICS else case.needs)
        conversation(lambda desk, names, case=asked_once: ask_for(desk, names, case))
    for api, rights in RIGHTS.items():
        listed = {(right.operation, right.kind) for right in rights}
        found = asked.get(api.message_name, set())
        # The transactions that a cut waits for, and the topics of a transaction, need more than one request.
        allowed_to_lack = {(DESCRIBE, TXN)} if api is ApiKey.DESCRIBE_CUT else set()
        assert found <= listed, (api, found - listed)
        assert listed - found <= allowed_to_lack, (api, listed - found)


@pytest.mark.sampled(18)
@pytest.mark.parametrize("api_key", sorted(APIS), ids=lambda key: ApiKey(key).snake_name)
def test_no_api_answers_a_client_without_rights(api_key: int) -> None:
    """Whatever is asked, the answer has errors only, or nothing in it; and nothing changes."""
    chance = random.Random(api_key)

    async def talk(desk: Any, names: Names) -> None:
        desk.broker.config.set_dynamic({}, {})
        before = state(desk.broker)
        answered = 0
        for _ in range(60):
            version = chance.choice(APIS[api_key].served_versions)
            request = made(message_class(api_key, version, "request"), chance)
            fields = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
            fields = {name: named(value, names, chance) for name, value in fields.items()}
            try:
                async with asyncio.timeout(2):
                    desk.router.prepare_api(APIS[api_key], version)
                    if api_key == ApiKey.DESCRIBE_TRANSACTIONS:
                        answer = await ask(desk, ApiKey(api_key), version, fields)
                    else:
                        answer = await desk.ask(api_key, version, **fields)
            except StablelogError:
                continue  # The connection is closed.
            if answer is None:
                continue
            answered += 1
            if ApiKey(api_key) not in OPEN_APIS:
                told = repr(answer)
                for secret in (b"secret", str(desk.broker.topics.named(names.topic).topic_id)):
                    assert str(secret) not in told
                no_error = ErrorCode.none in error_codes(answer)
                assert not no_error or not told_about(answer), (request, answer)
        await settled(desk)
        assert state(desk.broker) == before
        assert answered

    conversation(talk)


def named(value: Any, names: Names, chance: random.Random) -> Any:
    """The value with the names of resources that exist in the place of some texts."""
    if isinstance(value, str) and chance.random() < 0.6:
        return chance.choice((names.topic, names.group, names.txn))
    if isinstance(value, tuple):
        return tuple(named(item, names, chance) for item in value)
    if dataclasses.is_dataclass(value):
        return dataclasses.replace(
            value,  # type: ignore[type-var]
            **{
                field.name: named(getattr(value, field.name), names, chance)
                for field in dataclasses.fields(value)
                if field.init
            },
        )
    return value


def told_about(value: Any) -> list[object]:
    """The entries of an answer that tell of something, without an error."""
    found: list[object] = []
    for item in entries(value):
        if not dataclasses.is_dataclass(item):
            found.append(item)
            continue
        codes = error_codes(item)
        own = [getattr(item, field.name) for field in dataclasses.fields(item)]
        if any(code in DENIED for code in codes) or (codes and ErrorCode.none not in codes):
            continue
        if not codes and type(item).__name__ == "MetadataResponseBroker":
            continue  # Where the brokers are: everyone is told so.
        if any(isinstance(field, tuple) for field in own) and not told_about(item):
            continue
        found.append(item)
    return found


def test_a_prefixed_rule_allows_a_joint_commit_and_its_children() -> None:
    async def talk(desk: Any, names: Names) -> None:
        desk.broker.acls.authorizer.change(
            added=[
                AclBinding(
                    Pattern(TXN, "joint:key-here:", PatternType.PREFIXED),
                    str(ALICE),
                    "*",
                    WRITE,
                    Permission.ALLOW,
                ),
                AclBinding(Pattern(TOPIC, names.topic), str(ALICE), "*", WRITE, Permission.ALLOW),
            ]
        )
        child = await desk.init("joint:key-here:1:r:0:0")
        assert (await desk.ask(ApiKey.BEGIN_JOINT, 0, **joint(names))).error_code is ErrorCode.none
        other = await desk.ask(ApiKey.BEGIN_JOINT, 0, **{**joint(names), "key": "other"})
        assert other.error_code is ErrorCode.transactional_id_authorization_failed
        values = {
            **joint(names),
            "children": [
                {
                    "transactional_id": "joint:key-here:1:r:0:0",
                    "producer_id": child[0],
                    "producer_epoch": child[1],
                }
            ],
        }
        answer = await desk.ask_with(ApiKey.ABORT_JOINT, 0, values)
        assert answer.error_code is ErrorCode.none

    conversation(talk)


def test_a_partly_authorized_request_is_answered_partly() -> None:
    async def talk(desk: Any, names: Names) -> None:
        desk.broker.acls.authorizer.change(added=rules(names, ((WRITE, TOPIC, T),)))
        values = produced(names, None, batch(b"v"))
        values["topic_data"] += one("other", partition_data=[{"index": 0, "records": batch(b"v")}])
        answer = await desk.ask_with(ApiKey.PRODUCE, 9, values)
        codes = {
            topic.name: [partition.error_code for partition in topic.partition_responses]
            for topic in answer.responses
        }
        assert codes == {names.topic: [ErrorCode.none], "other": [ErrorCode.topic_authorization_failed]}

    conversation(talk)


def test_authorized_operations_are_those_of_the_principal() -> None:
    async def talk(desk: Any, names: Names) -> None:
        desk.broker.acls.authorizer.change(
            added=rules(names, ((READ, TOPIC, T), (READ, GROUP, "group"), (DESCRIBE, CLUSTER, "")))
        )
        metadata = await desk.ask_with(
            ApiKey.METADATA,
            12,
            {
                "topics": one(names.topic, topic_id=None),
                "allow_auto_topic_creation": False,
                "include_topic_authorized_operations": True,
            },
        )
        assert metadata.topics[0].topic_authorized_operations == 1 << READ | 1 << DESCRIBE
        groups = await desk.ask_with(
            ApiKey.DESCRIBE_GROUPS, 5, {"groups": (names.group,), "include_authorized_operations": True}
        )
        assert groups.groups[0].authorized_operations == 1 << READ | 1 << DESCRIBE
        cluster = await desk.ask_with(
            ApiKey.DESCRIBE_CLUSTER, 0, {"include_cluster_authorized_operations": True}
        )
        assert cluster.cluster_authorized_operations == 1 << DESCRIBE
        desk.broker.acls.authorizer.change(removed=rules(names, ((DESCRIBE, CLUSTER, ""),)))
        cluster = await desk.ask_with(
            ApiKey.DESCRIBE_CLUSTER, 0, {"include_cluster_authorized_operations": True}
        )
        assert cluster.cluster_authorized_operations == 0

    conversation(talk)
