"""Quota entities. An entity says to whom a quota applies: a user, a client id, both, or an IP address. This module
checks entities and the keys and values of their quotas, and decides which entities a filter selects.

Names, combinations, checks and messages follow Kafka's `ClientQuotaControlManager` and `ClientQuotasImage`.
"""

import ipaddress
import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.errors import RefusedError
from stablelog.wire.quotas import CLIENT_ID, ENTITY_TYPES, IP, USER, MatchType, QuotaKey, in_words

NAME_SIZE_MAX: Final = 1024  # of the name of a user or a client id, in characters
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
FRACTION_MAX: Final = 1e-6  # a whole number may differ from its float by this, as in Kafka


# The greatest value of the keys whose values are whole numbers.
WHOLE_NUMBERS: Final = {
    QuotaKey.PRODUCER_BYTE_RATE: LONG_MAX,
    QuotaKey.CONSUMER_BYTE_RATE: LONG_MAX,
    QuotaKey.CONNECTION_CREATION_RATE: INT_MAX,
}
IP_KEYS: Final = frozenset({QuotaKey.CONNECTION_CREATION_RATE})
CLIENT_KEYS: Final = frozenset(QuotaKey) - IP_KEYS


class NamePlaceholder(Enum):
    """A value that an entity (to whom a quota applies) can have in place of a user name, client id or IP address.
    DEFAULT stands for all names that have no quota of their own. ABSENT means that the entity does not name a user, a
    client id or an address, so that the quota holds for any.
    """

    DEFAULT = "default"  # all names that have no quota of their own
    ABSENT = "absent"  # the entity does not distinguish these names


Name = str | NamePlaceholder


class Entity(NamedTuple):
    """The clients to whom a quota applies: those of a user, a client id, both, or an IP address."""

    user: Name = NamePlaceholder.ABSENT
    client_id: Name = NamePlaceholder.ABSENT
    ip: Name = NamePlaceholder.ABSENT

    @property
    def pairs(self) -> tuple[tuple[str, str | None], ...]:
        """The entity (to whom a quota applies) as messages and files contain it: a pair (type, name) for each of user,
        client id and IP address that it names.

        The name is None for the default, which stands for all names that have no quota of their own.
        """
        named = ((USER, self.user), (CLIENT_ID, self.client_id), (IP, self.ip))
        return tuple(
            (kind, name if isinstance(name, str) else None)
            for kind, name in named
            if name is not NamePlaceholder.ABSENT
        )

    def __str__(self) -> str:
        return in_words(self.pairs)


Values = Mapping[QuotaKey, float]


def _refusal(why: str) -> RefusedError:
    return RefusedError(ErrorCode.invalid_request, why)


def entity_of(pairs: Iterable[tuple[str, str | None]]) -> Entity:
    """Return the entity (to whom a quota applies) that is given by pairs (type, name) in a message. The name None
    stands for all names that have no quota of their own.

    Raises:
        RefusedError: the types or names are not valid.
    """
    parts: dict[str, Name] = {}
    for kind, name in pairs:
        if kind not in (USER, CLIENT_ID, IP):
            raise _refusal(
                f"Unhandled client quota entity type: {kind!r}; the types are user, client-id and ip"
            )
        if kind in parts:
            raise _refusal(f"Invalid client quota entity, duplicate entity entry {kind}")
        if name == "":
            raise _refusal(f"Empty {kind} not supported")
        if name is not None and len(name) > NAME_SIZE_MAX:
            raise _refusal(
                f"the name of the {kind} has {len(name)} characters, and at most {NAME_SIZE_MAX} are allowed"
            )
        parts[kind] = NamePlaceholder.DEFAULT if name is None else name
    if not parts:
        raise _refusal("Invalid empty client quota entity")
    if IP in parts and len(parts) > 1:
        raise _refusal("Invalid quota entity combination: ip cannot be combined with user or client-id")
    entity = Entity(*(parts.get(kind, NamePlaceholder.ABSENT) for kind in (USER, CLIENT_ID, IP)))
    if isinstance(entity.ip, str) and address_of(entity.ip) is None:
        raise _refusal(f"{entity.ip} is not a valid IP address")
    return entity


def address_of(ip: str) -> str | None:
    """Return an IP address in its usual form; None if the text is not an IP address."""
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def check_value(entity: Entity, key: str, value: float) -> QuotaKey:
    """Check that an entity (user, client id or IP address) can have the quota with this key and value, and return the
    key as a `QuotaKey`.

    Raises:
        RefusedError: the entity cannot have such a quota, or the value is not valid.
    """
    keys = CLIENT_KEYS if entity.ip is NamePlaceholder.ABSENT else IP_KEYS
    found = next((one for one in keys if one.value == key), None)
    if found is None:
        valid = ", ".join(sorted(one.value for one in keys))
        raise _refusal(f"Invalid configuration key {key!r} for {entity}; the keys are {valid}")
    if not value > 0:  # NaN, too
        raise _refusal(f"Quota {key} must be greater than 0")
    if math.isinf(value):
        raise _refusal(f"Quota {key} must be finite")
    largest = WHOLE_NUMBERS.get(found)
    if largest is not None:
        if value > largest:
            raise _refusal(f"Proposed value for {key} is too large: at most {largest}")
        if abs(value - round(value)) > FRACTION_MAX:
            raise _refusal(f"{key} cannot be a fractional value")
    return found


class Alteration(NamedTuple):
    """A change of the quotas of one entity (user, client id or IP address): for the key of each changed quota its new
    value, or None to remove the quota.
    """

    entity: Entity
    values: Mapping[str, float | None]


def altered_values(present: Values, change: Alteration) -> dict[QuotaKey, float]:
    """Return the quotas of an entity after a change: `present` has the quotas before it, by key.

    The removal of a quota that does not exist changes nothing, as in Kafka.

    Raises:
        RefusedError: a key or a value is not valid.
    """
    result = dict(present)
    for key, value in change.values.items():
        if value is None:
            result = {known: old for known, old in result.items() if known.value != key}
        else:
            result[check_value(change.entity, key, value)] = value
    return result


class FilterComponent(NamedTuple):
    """One component of a filter that selects entities by their quotas' users, client ids or IP addresses: the type
    (`user`, `client-id` or `ip`), how names of this type are compared (Kafka's number), and the name if they are
    compared with one.
    """

    kind: str
    match_type: int
    match: str | None


def check_filter(components: Sequence[FilterComponent]) -> None:
    """Check a filter, which selects the entities (users, client ids, IP addresses) whose quotas are listed.

    Raises:
        RefusedError: a component is not valid, or contradicts another one.
    """
    seen: set[str] = set()
    for kind, match_type, match in components:
        if not kind or kind in seen:
            raise _refusal(f"the entity type {kind!r} is empty or named twice")
        if kind not in ENTITY_TYPES:
            raise RefusedError(ErrorCode.unsupported_version, f"the entity type {kind!r} is not supported")
        if match_type not in list(MatchType):
            raise _refusal(f"the match type {match_type} is unknown")
        if (match is None) == (match_type == MatchType.EXACT):
            raise _refusal(f"the match type {match_type} and the match string contradict each other")
        seen.add(kind)
    if IP in seen and len(seen) > 1:
        raise _refusal("the entity type ip cannot be combined with another one")


def selects(components: Sequence[FilterComponent], entity: Entity, *, strict: bool) -> bool:
    """Return whether a filter selects an entity (to whom a quota applies). The entity must match each component of the
    filter. With `strict`, it must also have no type, such as `client-id`, for which the filter has no component.
    """
    pairs = dict(entity.pairs)
    for kind, match_type, match in components:
        if kind not in pairs:
            return False
        if match_type != MatchType.SPECIFIED and pairs[kind] != match:
            return False
    return not strict or len(pairs) == len(components)
