"""Authorizer: decides by access rules (ACLs) which operations a principal may carry out, as Kafka's StandardAuthorizer
does.

- A super user may do everything, even if a rule denies it.
- A rule that denies wins over every rule that allows.
- An operation that no rule allows is denied. There is one exception: with the setting `allow.everyone.if.no.acl.found`,
  every operation is allowed on a resource for which there is no rule at all, not even one for another principal.
- A rule that allows READ, WRITE, DELETE or ALTER also allows DESCRIBE, and one that allows ALTER_CONFIGS also allows
  DESCRIBE_CONFIGS. Denials imply nothing: a rule that denies one of these operations denies no other one.
"""

from collections.abc import Iterable
from typing import Final

from stablelog.security.acl_index import AclIndex
from stablelog.security.acls import bits
from stablelog.wire.acls import WILDCARD, AclBinding, Operation, ResourceType

EVERYTHING: Final = bits(Operation)
CACHED_COUNT_MAX: Final = 20_000
# A longer name is looked up each time: clients choose the names, and could fill the memory with long ones.
CACHED_NAME_SIZE_MAX: Final = 256

_ALL: Final = 1 << Operation.ALL
_IMPLYING_DESCRIBE: Final = bits((Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER))
# The name with which Kafka asks whether a principal may carry out an operation on every resource of a type.
_ANY_NAME: Final = "hardcode"


def with_implied(allowed: int) -> int:
    """Return the operations that a client may carry out, as bits: the allowed ones, and those that these imply. Whoever
    may READ, for example, may also DESCRIBE.

    Args:
        allowed: the operations that the rules allow: bit n stands for the operation with Kafka's number n.
    """
    if allowed & _ALL:
        return EVERYTHING
    if allowed & _IMPLYING_DESCRIBE:
        allowed |= 1 << Operation.DESCRIBE
    if allowed & 1 << Operation.ALTER_CONFIGS:
        allowed |= 1 << Operation.DESCRIBE_CONFIGS
    return allowed


class Authorizer:
    """Decides by access rules (ACLs) which operations a principal may carry out. It keeps its decisions in a cache.

    Args:
        bindings: the rules.
        super_users: principals that may do everything, such as `User:admin`.
        allow_without_rules: whether everyone may carry out all operations on a resource for which there is no rule.

    Attributes:
        version: a number that changes whenever the rules change, so that others can drop what they derived from older
            rules.
    """

    def __init__(
        self,
        bindings: Iterable[AclBinding] = (),
        *,
        super_users: Iterable[str] = (),
        allow_without_rules: bool = False,
    ) -> None:
        self.index = AclIndex(bindings)
        self.version = 0
        self._super_users = frozenset(super_users)
        self._allow_without_rules = allow_without_rules
        # By principal, host, type and name of a resource: the operations that are allowed, as bits.
        self._cache: dict[tuple[str, str, ResourceType, str], int] = {}
        self._some_cache: dict[tuple[str, str, ResourceType, Operation], bool] = {}

    @property
    def cached_count(self) -> int:
        """The number of cached decisions. Each decision is for one resource, one principal and one host."""
        return len(self._cache)

    def allowed(self, principal: str, host: str, resource_type: ResourceType, name: str) -> int:
        """Return the operations that a principal may carry out on a resource when its client connects from this host,
        as bits: bit n stands for the operation with Kafka's number n.
        """
        key = (principal, host, resource_type, name)
        found = self._cache.get(key)
        if found is None:
            found = self._decide(principal, host, resource_type, name)
            if len(name) <= CACHED_NAME_SIZE_MAX:
                if len(self._cache) >= CACHED_COUNT_MAX:
                    self._cache.clear()
                self._cache[key] = found
        return found

    def allows(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Return whether a principal on a host may carry out an operation on a resource."""
        return bool(self.allowed(principal, host, resource_type, name) >> operation & 1)

    def _decide(self, principal: str, host: str, resource_type: ResourceType, name: str) -> int:
        if principal in self._super_users:
            return EVERYTHING
        found = self.index.find(principal, host, resource_type, name)
        if self._allow_without_rules and not self.index.has_rules(resource_type, name):
            return EVERYTHING
        if found.denied & _ALL:
            return 0
        return with_implied(found.allowed) & ~found.denied

    def allows_some(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Return whether a principal on a host may carry out an operation on at least one resource of a type."""
        key = (principal, host, resource_type, operation)
        found = self._some_cache.get(key)
        if found is None:
            found = self.allows(
                principal, host, operation, resource_type, _ANY_NAME
            ) or self.index.allows_some(principal, host, resource_type, operation)
            if len(self._some_cache) >= CACHED_COUNT_MAX:
                self._some_cache.clear()
            self._some_cache[key] = found
        return found

    def change(self, added: Iterable[AclBinding] = (), removed: Iterable[AclBinding] = ()) -> None:
        """Add and remove rules. The next decision uses the new rules."""
        for binding in removed:
            self.index.remove(binding)
        for binding in added:
            self.index.add(binding)
        self._cache.clear()
        self._some_cache.clear()
        self.version += 1

    def rights_of(self, principal: str, host: str) -> tuple[str, str]:
        """Return a key for the rights of a client, under which decisions can be cached: two clients with equal keys
        have the same rights.

        The key is the pair (principal, host). The host is `*` if no rule names the client's host, so that all clients
        of a principal on such hosts share a key.
        """
        return principal, host if self.index.names_host(host) else WILDCARD
