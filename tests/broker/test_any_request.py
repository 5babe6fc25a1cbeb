"""Whatever a well-formed request says, it is answered or refused: no handler fails on it."""

import asyncio
import dataclasses
import random
import typing
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from kio.schema.errors import ErrorCode

from stablelog.errors import StablelogError
from stablelog.wire.api import ApiKey
from stablelog.wire.messages import message_class
from stablelog.wire.versions import required
from tests.broker.desk import batch, frame, opened
from tests.declared_apis import APIS

NAMES = ("t", "a", "g", "", "__consumer_offsets", "__transaction_state", "x" * 300, "nobody", "ä", "1")
NUMBERS = {
    "int8": (-128, -1, 0, 1, 2, 127),
    "int16": (-(2**15), -1, 0, 1, 2, 2**15 - 1),
    "int32": (-(2**31), -2, -1, 0, 1, 2, 5, 2**31 - 1),
    "int64": (-(2**63), -2, -1, 0, 1, 2, 5, 2**62, 2**63 - 1),
}
BYTES = (b"", b"\0", batch(b"x"), batch(b"x", producer=(0, 0), sequence=0), batch(b"x")[:40], bytes(200))
PASSING = {1: 1, 11: 3, 14: 1}  # long polls: how many of them are tried


def made(message, chance):
    """A message with any content."""
    return message(
        **{
            field.name: _content(field.type, field.metadata.get("kafka_type"), chance)
            for field in dataclasses.fields(message)
            if "tag" not in field.metadata or chance.random() < 0.5
        }
    )


def _content(annotation, kafka_type, chance):
    inner = required(annotation)
    if inner is not annotation and chance.random() < 0.2:
        return None
    if typing.get_origin(inner) is tuple:
        item = typing.get_args(inner)[0]
        return tuple(_content(item, kafka_type, chance) for _ in range(chance.choice((0, 1, 1, 2, 3))))
    if dataclasses.is_dataclass(inner):
        return made(inner, chance)
    simple = {
        "bool": lambda: chance.random() < 0.5,
        "string": lambda: chance.choice(NAMES),
        "uuid": lambda: uuid.UUID(int=chance.randrange(1, 5)),
        "float64": lambda: chance.choice((0.0, -1.5, 1e300)),
        "error_code": lambda: ErrorCode.none,
        "datetime_i64": lambda: datetime.fromtimestamp(chance.choice((0, 10**9)), UTC),
        "uint16": lambda: 1,
        "uint32": lambda: 1,
        "uint64": lambda: 1,
    }
    if kafka_type in NUMBERS:
        return chance.choice(NUMBERS[kafka_type])
    if kafka_type in ("bytes", "records"):
        return chance.choice(BYTES)
    if kafka_type.startswith("timedelta"):
        return timedelta(milliseconds=chance.choice((-1, 0, 1, 10, 60_000)))
    return simple[kafka_type]()


@pytest.mark.parametrize("api_key", sorted(APIS), ids=lambda key: ApiKey(key).snake_name)
def test_any_content_is_answered_or_refused(api_key):
    chance = random.Random(api_key)
    refused = []

    async def conversation():
        async with opened(stablelog_max_partitions=50) as desk:
            who = await desk.init("a")
            await desk.add("a", who, ("t", 0))
            await desk.produce(batch(b"1", producer=who, sequence=0), transactional_id="a")
            for _ in range(60):
                version = chance.choice(APIS[api_key].served_versions)
                request = made(message_class(api_key, version, "request"), chance)
                fields = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
                data = frame(api_key, version, **fields)
                try:
                    async with asyncio.timeout(0.2 if api_key in PASSING else 60):
                        await desk.router.respond(desk.stranger, data)
                except StablelogError as error:
                    refused.append(error)
                except TimeoutError:
                    assert api_key in PASSING, f"not answered: {request}"
            # Whatever was asked for, the broker goes on.
            assert (await desk.produce(batch(b"y"), topic="t", partition=1)).error_code in (
                ErrorCode.none,
                ErrorCode.unknown_topic_or_partition,
            )

    asyncio.run(asyncio.wait_for(conversation(), 250))
    assert len(refused) < 60, refused[:3]
