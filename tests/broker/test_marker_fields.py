"""The bytes of the markers that a broker writes."""

import asyncio
import struct

from kio.schema.errors import ErrorCode

from stablelog.batch.header import headers_in
from stablelog.batch.records import decode_records
from stablelog.log.partition import Isolation
from tests.broker.desk import batch, opened


def test_a_commit_marker_holds_group_and_sequence_and_a_reserved_minus_one():
    """Whoever has a transaction open besides; decision 15 says why no low watermark stands there."""

    async def conversation():
        async with opened() as desk:
            for name in ("open-before", "one"):
                producer = await desk.init(name)
                assert await desk.add(name, producer, ("t", 0)) == [ErrorCode.none]
                records = batch(b"value", producer=producer, sequence=0)
                assert (await desk.produce(records, transactional_id=name)).error_code is ErrorCode.none
            assert (await desk.commit("one", producer)).error_code is ErrorCode.none
            await desk.durable()
            partition = desk.broker.partitions.require("t", 0)
            log = b"".join(partition.read(0, 1 << 20, Isolation.LOG_END).buffers)
            (marker,) = [decode_records(log, at) for at, header in headers_in(log) if header.is_control]
            assert marker[0].value[6:] == struct.pack(">hqq", 0, 1, -1)

    asyncio.run(conversation())
