"""From frame to handler to frame."""

import asyncio
from types import SimpleNamespace

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.network.long_messages import RequestDecoder
from stablelog.broker.network.session import Session
from stablelog.errors import RefusedError
from stablelog.wire.messages import PREFIX
from tests.broker.desk import batch, frame, opened, produce_fields, read_answer
from tests.declared_apis import APIS

STRANGER = SimpleNamespace(
    host="nowhere", appending=asyncio.Lock(), decoding=RequestDecoder(), session=Session(host="nowhere")
)


def at_desk(conversation):
    async def work():
        async with opened() as desk:
            await conversation(desk)

    asyncio.run(asyncio.wait_for(work(), 100))


@pytest.mark.parametrize(
    "data",
    [
        PREFIX.pack(999, 0, 1),
        PREFIX.pack(-1, 0, 1),
        PREFIX.pack(3, 99, 1) + b"\xff\xff\0",
        PREFIX.pack(3, -1, 1) + b"\xff\xff\0",
        PREFIX.pack(0, 2, 1) + b"\xff\xff",
        PREFIX.pack(3, 1, 1),
        PREFIX.pack(3, 1, 1) + b"\x7f\xffabc",
        PREFIX.pack(26, 3, 1) + b"\xff\xff\0\xff\xff\xff\xff\x0f",
    ],
    ids=[
        "no api",
        "below",
        "too new",
        "too old",
        "before batches",
        "no client id",
        "half a client id",
        "a lie",
    ],
)
def test_what_is_no_request_is_refused(data):
    async def conversation(desk):
        with pytest.raises(RefusedError):
            await desk.router.respond(STRANGER, data)

    at_desk(conversation)


@pytest.mark.parametrize("version", [-1, 5, 99])
def test_any_version_of_api_versions_is_answered_so_that_the_client_can_choose(version):
    async def conversation(desk):
        data = PREFIX.pack(18, version, 77) + b"whatever a newer client has to say"
        answer, correlation_id = read_answer(18, 0, b"".join(await desk.router.respond(STRANGER, data)))
        assert (correlation_id, answer.error_code) == (77, ErrorCode.unsupported_version)
        spoken = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        assert spoken == {key: (api.first_version, api.last_version) for key, api in APIS.items()}

    at_desk(conversation)


def test_a_write_without_acknowledgement_is_not_answered_and_a_refused_one_closes():
    async def conversation(desk):
        fields = produce_fields(9, "t", 0, batch(b"x"), acks=0)
        assert await desk.router.respond(STRANGER, frame(0, 9, **fields)) is None
        assert desk.broker.partitions.require("t", 0).end_offset == 1
        with pytest.raises(RefusedError, match="acks=0"):
            await desk.router.respond(STRANGER, frame(0, 9, **produce_fields(9, "t", 9, batch(b"x"), acks=0)))

    at_desk(conversation)


def test_bytes_behind_a_request_are_passed_over():
    async def conversation(desk):
        data = frame(3, 1, topics=None) + b"\0\0\0"
        answer, _ = read_answer(3, 1, b"".join(await desk.router.respond(STRANGER, data)))
        assert {topic.name for topic in answer.topics} >= {"t"}

    at_desk(conversation)
