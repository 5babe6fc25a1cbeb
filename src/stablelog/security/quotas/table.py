"""The table of quotas: which quota applies to a client.

If several quotas fit a client, one applies: that of the most specific entity, in Kafka's order (`LEVELS`). A quota for a
user holds for all client ids of this user together; a quota for a user and a client id, or for a client id, holds for
each client id of its own.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

from stablelog.security.quotas.entities import IP_KEYS, Entity, Name, Part, Values, address_of
from stablelog.wire.quotas import QuotaKey

# The names of the entities that fit a client, from the most specific one on. None stands for the client's own name.
LEVELS: Final[tuple[tuple[Part | None, Part | None], ...]] = (
    (None, None),
    (None, Part.DEFAULT),
    (None, Part.ABSENT),
    (Part.DEFAULT, None),
    (Part.DEFAULT, Part.DEFAULT),
    (Part.DEFAULT, Part.ABSENT),
    (Part.ABSENT, None),
    (Part.ABSENT, Part.DEFAULT),
)
LONG_NAME_SIZE: Final = 256


class Applied(NamedTuple):
    """The quota that applies to a client.

    Attributes:
        limit: the value of the quota.
        measured: the clients whose rates are measured together, as (user, client id): the empty text stands for all
            users or all client ids.
    """

    limit: float
    measured: tuple[str, str]


class QuotaTable:
    """The quotas of a broker. The table does not change: a change makes a new one.

    Attributes:
        entities: the quotas of each entity.
        keys: the keys for which some entity has a quota.
    """

    def __init__(self, entities: Mapping[Entity, Values]) -> None:
        self.entities = {entity: dict(values) for entity, values in entities.items() if values}
        self.keys = frozenset(key for values in self.entities.values() for key in values)
        self._clients: dict[QuotaKey, dict[tuple[Name, Name], float]] = {key: {} for key in QuotaKey}
        self._addresses: dict[Name, float] = {}
        for entity, values in self.entities.items():
            for key, value in values.items():
                if key in IP_KEYS:
                    ip = (address_of(entity.ip) or entity.ip) if isinstance(entity.ip, str) else entity.ip
                    self._addresses[ip] = value
                else:
                    self._clients[key][entity.user, entity.client_id] = value

    def of_client(self, key: QuotaKey, user: str, client_id: str) -> Applied | None:
        """The quota that applies to a client; None if there is none."""
        limits = self._clients[key]
        if not limits:
            return None
        for of_user, of_client in LEVELS:
            found = limits.get((of_user or user, of_client or client_id))
            if found is not None:
                return Applied(
                    found,
                    (
                        "" if of_user is Part.ABSENT else _short(user),
                        "" if of_client is Part.ABSENT else _short(client_id),
                    ),
                )
        return None

    def of_address(self, host: str) -> float | None:
        """The greatest rate of new connections from an IP address; None if there is no quota."""
        if not self._addresses:
            return None
        own = self._addresses.get(address_of(host) or host)
        return own if own is not None else self._addresses.get(Part.DEFAULT)


def _short(name: str) -> str:
    """A name to tell clients apart, which takes little memory even if the client sends a long one."""
    if len(name) <= LONG_NAME_SIZE:
        return name
    return blake2b(name.encode(), digest_size=32).hexdigest()
