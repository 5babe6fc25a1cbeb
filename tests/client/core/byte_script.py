"""A connection whose responses are bytes of a script, and a shell that runs its steps, in a time of its own."""

import io
from collections import deque
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.primitive import i16

from stablelog.client.core.connection import BrokerConnection
from stablelog.client.core.frames import SIZE
from stablelog.client.core.steps import Receive, Send
from stablelog.wire.api import ApiKey
from tests.client.stepping import ScriptedTime, run_steps


def encoded(response):
    """The body of a response, with the tagged fields of its header."""
    body = io.BytesIO()
    entity_writer(type(response))(body, response)
    has_tags = response.__flexible__ and response.__api_key__ != ApiKey.API_VERSIONS
    return (b"\0" if has_tags else b"") + body.getvalue()


def api_versions(versions, features=()):
    """The response of a broker that supports these versions of APIs: api key -> (first version, last version)."""
    from kio.schema.api_versions.v3.response import ApiVersion, ApiVersionsResponse, FinalizedFeatureKey

    return encoded(
        ApiVersionsResponse(
            error_code=ErrorCode.none,
            api_keys=tuple(
                ApiVersion(api_key=i16(key), min_version=i16(first), max_version=i16(last))
                for key, (first, last) in versions.items()
            ),
            throttle_time=timedelta(0),
            finalized_features=tuple(
                FinalizedFeatureKey(name=name, max_version_level=i16(level), min_version_level=i16(0))
                for name, level in features
            ),
        )
    )


class ScriptedConnection(BrokerConnection, ScriptedTime):
    """A connection to "h:1".

    Args:
        responses: the bodies of the responses, each for the next request; or an OSError in place of one.

    Attributes:
        sent: the frames of the requests.
        refuses: whether no request can be sent any more.
    """

    def __init__(self, responses=(), **options):
        super().__init__("h:1", **options)
        ScriptedTime.__init__(self)
        self.responses, self.sent, self.refuses = deque(responses), [], False
        self._unanswered = deque()
        self._unread = b""
        self._is_closed = False

    def close(self):
        self._is_closed = True

    def after_fork(self):
        self.close()

    @property
    def is_closed(self):
        return self._is_closed

    def perform(self, effect):
        match effect:
            case Send(_, pieces):
                if self.refuses:
                    raise BrokenPipeError("the broker is gone")
                self.sent.append(b"".join(pieces))
                return self._unanswered.append(self.sent[-1][8:12])
            case Receive(_, size):
                if not self._unread:
                    body = self.responses.popleft()
                    if isinstance(body, Exception):
                        raise body
                    frame = self._unanswered.popleft() + body
                    self._unread = SIZE.pack(len(frame)) + frame
                found, self._unread = self._unread[:size], self._unread[size:]
                return memoryview(found)
        return super().perform(effect)


def drive(steps, connection):
    """Run steps that use one connection, and return their result."""
    return run_steps(steps, connection.perform)


def negotiated(versions, responses=(), **options):
    """A connection to a broker that supports these versions, and then sends these responses."""
    connection = ScriptedConnection([api_versions(versions), *responses], **options)
    drive(connection.negotiate(), connection)
    connection.sent.clear()
    return connection
