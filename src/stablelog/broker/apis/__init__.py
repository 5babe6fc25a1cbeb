"""One module per Kafka API: what is done with a request.

Each has `async def handle(broker, request, context)`, with request and answer in the newest shape of the API;
`stablelog.wire.messages` takes care of older ones. Which versions are spoken: docs/protocol.md.
"""

from datetime import timedelta

NO_THROTTLE = timedelta(0)
