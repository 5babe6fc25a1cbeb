"""The settings of a client, by the names of Kafka's Java client."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stablelog.batch.codec import Codec
from stablelog.client.core.arguments import seconds, text, wrong_type
from stablelog.client.core.call_limits import DEADLINE_S
from stablelog.client.core.cluster import BACKOFF_FIRST_S, BACKOFF_MAX_S
from stablelog.client.core.connection import CLIENT_ID
from stablelog.client.core.security import (
    ALIASES,
    PLAINTEXT,
    SETTINGS,
    SecuritySettings,
    read_security_settings,
)
from stablelog.errors import UsageError, did_you_mean

TIMEOUT_S: Final = 10.0
EXPIRE_RETRY_S: Final = (
    0.1  # pause before the next attempt to abort an overdue transaction that a call is using
)
CLIENT_ID_SIZE_MAX: Final = 255
CODECS: Final = {codec.name.lower(): codec for codec in Codec}


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The checked settings of a client.

    Attributes:
        security: the security protocol and the credentials.
        deadline_s: how long a call of the program may take with all its retries, in seconds.
        client_id: the name of the client in the broker's log, metrics and quotas.
        compression: the codec of the batches that the client writes.
        timeout_s: how long a broker may take to respond to one request, in seconds.
        backoff_s: a pair: the first pause between two attempts, and the longest one, in seconds.
    """

    security: SecuritySettings = PLAINTEXT
    deadline_s: float = DEADLINE_S
    client_id: str = CLIENT_ID
    compression: Codec = Codec.NONE
    timeout_s: float = TIMEOUT_S
    backoff_s: tuple[float, float] = (BACKOFF_FIRST_S, BACKOFF_MAX_S)


def read_client_settings(given: Mapping[str, Any] | None, deadline: float | None = None) -> ClientSettings:
    """Check the settings that a program passes to `connect`.

    Args:
        given: values by Kafka's names.
        deadline: the deadline in seconds; None for that of the settings.

    Raises:
        TypeError: the settings are no mapping, or the deadline is no number.
        UsageError: the deadline is out of range; or a setting is unknown, missing, contradictory or not valid. The
            message contains no secret.
    """
    if given is not None and not isinstance(given, Mapping):
        raise wrong_type("settings", given, "a mapping from names to values")
    values = dict(given or {})
    for name in values:
        text("a name of a setting", name)
    if deadline is not None and "default.api.timeout.ms" in values:
        raise UsageError(
            "the deadline is given twice: as deadline and as default.api.timeout.ms. Give it once"
        )
    own = {name: read(name, values.pop(name)) for name, read in READERS.items() if name in values}
    for name in values:
        hint = did_you_mean(name, READERS)
        if hint and name not in (*SETTINGS, *ALIASES):
            raise UsageError(f"the setting {name} is unknown{hint}")
    deadline_s = (
        own.get("default.api.timeout.ms", DEADLINE_S) if deadline is None else seconds("deadline", deadline)
    )
    first_s = own.get("retry.backoff.ms", BACKOFF_FIRST_S)
    return ClientSettings(
        read_security_settings(values),
        deadline_s,
        own.get("client.id", CLIENT_ID),
        own.get("compression.type", Codec.NONE),
        own.get("request.timeout.ms", TIMEOUT_S),
        (first_s, max(first_s, own.get("retry.backoff.max.ms", BACKOFF_MAX_S))),
    )


def _milliseconds(least: int) -> Callable[[str, Any], float]:
    def read(name: str, value: Any) -> float:
        try:
            number = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else -1
        except ValueError:
            number = -1
        if not least <= number < 2**31:
            raise UsageError(
                f"{name}={value!r} is not valid: a number of milliseconds from {least} to {2**31 - 1}"
            )
        return number / 1000

    return read


def _client_id(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value.encode(errors="replace")) > CLIENT_ID_SIZE_MAX:
        raise UsageError(f"{name}={value!r} is not valid: a text of at most {CLIENT_ID_SIZE_MAX} bytes")
    return value


def _codec(name: str, value: Any) -> Codec:
    if value not in CODECS:
        raise UsageError(f"{name}={value!r} is not valid: one of {', '.join(CODECS)}")
    return CODECS[value]


READERS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "client.id": _client_id,
    "compression.type": _codec,
    "default.api.timeout.ms": _milliseconds(0),
    "request.timeout.ms": _milliseconds(1),
    "retry.backoff.ms": _milliseconds(0),
    "retry.backoff.max.ms": _milliseconds(0),
}
# The meaning of each setting for users (docs/reference/client.md).
MEANINGS: Final[dict[str, str]] = {
    "client.id": "The name of the client in the broker's log, metrics and quotas.",
    "compression.type": "The compression of the batches that the client writes: `none`, `gzip`, `snappy`, `lz4` or `zstd`.",
    "default.api.timeout.ms": "The same as `deadline`, in milliseconds. Only one of both can be given.",
    "request.timeout.ms": "How long a broker may take to respond to a request. Then the client closes the connection, and retries.",
    "retry.backoff.ms": "The pause before the second attempt of a request. Each further pause is twice as long.",
    "retry.backoff.max.ms": "The longest pause between two attempts.",
}
