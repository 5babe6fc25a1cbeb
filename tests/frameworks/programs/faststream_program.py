"""FastStream: writes each record of `in` to `out`, and acknowledges it afterwards. Arguments: broker, backend."""

import asyncio
import sys

from faststream import AckPolicy, FastStream

bootstrap, backend = sys.argv[1:]
if backend == "confluent":
    from faststream.confluent import KafkaBroker
else:
    from faststream.kafka import KafkaBroker

broker = KafkaBroker(bootstrap)


@broker.subscriber(
    "in",
    group_id="copying",
    auto_offset_reset="earliest",
    ack_policy=AckPolicy.NACK_ON_ERROR,
    session_timeout_ms=6000,  # a killed program shall be missed within seconds
    heartbeat_interval_ms=500,
)
@broker.publisher("out")
async def copy(body: bytes) -> bytes:
    return body


asyncio.run(FastStream(broker).run())
