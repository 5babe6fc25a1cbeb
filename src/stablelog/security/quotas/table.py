"""The table of quotas: which quota applies to a client.

A client can fit several quotas. Only one of them applies: that of the most specific entity (user, client id or both),
in Kafka's order (`LEVELS`). A quota for a user limits the sum over all client ids of this user. A quota for a client
id, or for a user and a client id, limits each client id separately: if it is a default, which holds for all client ids
without a quota of their own, each of them may reach the full value.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

from stablelog.security.quotas.entities import IP_KEYS, Entity, Name, NamePlaceholder, Values, address_of
from stablelog.wire.quotas import QuotaKey

# The names of the entities that fit a client, from the most specific one on. None stands for the client's own name.
LEVELS: Final[tuple[tuple[NamePlaceholder | None, NamePlaceholder | None], ...]] = (
    (None, None),
    (None, NamePlaceholder.DEFAULT),
    (None, NamePlaceholder.ABSENT),
    (NamePlaceholder.DEFAULT, None),
    (NamePlaceholder.DEFAULT, NamePlaceholder.DEFAULT),
    (NamePlaceholder.DEFAULT, NamePlaceholder.ABSENT),
    (NamePlaceholder.ABSENT, None),
    (NamePlaceholder.ABSENT, NamePlaceholder.DEFAULT),
)
LONG_NAME_SIZE: Final = 256


class Applied(NamedTuple):
    """The quota that applies to a client.

    Attributes:
        limit: the value of the quota, such as bytes per second.
        measured: whose rates count together against the limit: a pair of user and client id. The user is empty if the
            quota counts all users together, and the client id is empty if it counts all client ids together. A long
            name is replaced by a digest (a hash of it).
    """

    limit: float
    measured: tuple[str, str]


class QuotaTable:
    """The quotas of a broker. Immutable: after a change of the quotas, another table is made.

    Attributes:
        entities: the quotas of each entity (user, client id, both, or IP address).
        keys: the keys, such as `producer_byte_rate`, for which at least one entity has a quota.
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

    def quota_of_client(self, key: QuotaKey, user: str, client_id: str) -> Applied | None:
        """Return the quota with this key, such as `producer_byte_rate`, that applies to a client; None if there is
        none.
        """
        limits = self._clients[key]
        if not limits:
            return None
        for of_user, of_client in LEVELS:
            found = limits.get((of_user or user, of_client or client_id))
            if found is not None:
                return Applied(
                    found,
                    (
                        "" if of_user is NamePlaceholder.ABSENT else _short(user),
                        "" if of_client is NamePlaceholder.ABSENT else _short(client_id),
                    ),
                )
        return None

    def quota_of_address(self, host: str) -> float | None:
        """Return the greatest allowed rate of new connections from an IP address; None if there is no quota."""
        if not self._addresses:
            return None
        own = self._addresses.get(address_of(host) or host)
        return own if own is not None else self._addresses.get(NamePlaceholder.DEFAULT)


def _short(name: str) -> str:
    """Return a text that stands for a client's name in the keys of measured rates: the name, or a hash of a long name,
    which would take much memory.
    """
    if len(name) <= LONG_NAME_SIZE:
        return name
    return blake2b(name.encode(), digest_size=32).hexdigest()
