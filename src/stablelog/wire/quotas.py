"""Client quotas in Kafka's messages: the types of entities, the keys of quotas, and how a filter selects (KIP-546)."""

from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import Final

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)


class QuotaKey(Enum):
    """The key of a quota, which tells what the quota limits."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_PERCENTAGE = "request_percentage"
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    CONNECTION_CREATION_RATE = "connection_creation_rate"


class MatchType(IntEnum):
    """How one component of a quota filter (its user, client id or address) selects names."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2  # every name, and the default


def in_words(pairs: Iterable[tuple[str, str | None]]) -> str:
    """Describe a quota entity, the user, client id or address for which a quota is set, in words.

    Args:
        pairs: (type, name) of each part of the entity. The name None stands for the default.
    """
    return ", ".join(f"{kind} {'<default>' if name is None else repr(name)}" for kind, name in pairs)
