"""The messages of stablelog's own APIs as bytes, written and read by kio."""

import io

from kio.serial import entity_reader, entity_writer


def encoded(message):
    """Encode a message."""
    body = io.BytesIO()
    entity_writer(type(message))(body, message)
    return body.getvalue()


def decoded(message_class, data):
    """Decode all bytes of a message."""
    message, size = entity_reader(message_class)(data, 0)
    assert size == len(data), f"{len(data) - size} bytes are left behind the message"
    return message
