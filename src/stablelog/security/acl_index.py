"""Index of the rules (ACL bindings): finds the rules that apply to a resource, a principal and a host.

For each pattern, and each principal and host in its rules, the index holds two numbers with one bit for each operation:
the operations that the rules allow, and those that they deny. These numbers are the rules: there is no other list.

The cost of a lookup does not depend on the number of rules. It depends on the number of lengths that the names of
prefixed patterns have, for the principal and host.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from stablelog.security.acls import (
    ANY_PRINCIPAL,
    WILDCARD,
    AclBinding,
    AclFilter,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)


class Masks(NamedTuple):
    """The operations that the rules of one pattern, principal and host allow, and those that they deny."""

    allowed: int = 0
    denied: int = 0


NOTHING: Final = Masks()
PRESENT: Final = Masks(allowed=1)
# The principal and the host in a rule.
Holder = tuple[str, str]


class Names:
    """Patterns of one type, by name: literal and prefixed ones."""

    __slots__ = ("lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, Masks] = {}
        self.prefixed: dict[str, Masks] = {}
        # How many prefixed patterns have a name of this length.
        self.lengths: Counter[int] = Counter()

    def put(self, pattern: Pattern, masks: Masks) -> None:
        """Set the masks of a pattern. Without operations, the pattern is removed."""
        is_prefixed = pattern.pattern_type is PatternType.PREFIXED
        names = self.prefixed if is_prefixed else self.literal
        if is_prefixed:
            self.lengths[len(pattern.name)] += (masks != NOTHING) - (pattern.name in names)
            if not self.lengths[len(pattern.name)]:
                del self.lengths[len(pattern.name)]
        if masks != NOTHING:
            names[pattern.name] = masks
        else:
            names.pop(pattern.name, None)

    def applying(self, name: str) -> Iterator[Masks]:
        """Yield the masks of the patterns that apply to a resource."""
        if name in self.literal:
            yield self.literal[name]
        if name != WILDCARD and WILDCARD in self.literal:
            yield self.literal[WILDCARD]
        prefixed = self.prefixed
        for length in self.lengths:
            if length <= len(name) and (prefix := name[:length]) in prefixed:
                yield prefixed[prefix]


class AclIndex:
    """The rules of a broker."""

    def __init__(self, bindings: Iterable[AclBinding] = ()) -> None:
        self._patterns: dict[Pattern, dict[Holder, Masks]] = {}
        # The patterns of all rules of a type. The masks are not used.
        self._of_type: dict[ResourceType, Names] = defaultdict(Names)
        # The patterns of the rules of a type, principal and host.
        self._of_holder: dict[tuple[ResourceType, Holder], Names] = {}
        # The patterns of the rules of a type, principal, host, operation and permission.
        self._held: dict[tuple[ResourceType, Holder, Operation, Permission], set[Pattern]] = {}
        self._count = 0
        for binding in bindings:
            self.add(binding)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, binding: AclBinding) -> bool:
        masks = self._patterns.get(binding.pattern, {}).get((binding.principal, binding.host), NOTHING)
        is_allow = binding.permission is Permission.ALLOW
        return bool((masks.allowed if is_allow else masks.denied) & 1 << binding.operation)

    def __iter__(self) -> Iterator[AclBinding]:
        for pattern in self._patterns:
            yield from self.of_pattern(pattern)

    def patterns(self) -> list[Pattern]:
        """Every pattern that has rules."""
        return list(self._patterns)

    def of_pattern(self, pattern: Pattern) -> Iterator[AclBinding]:
        """Yield the rules that have this pattern."""
        for (principal, host), masks in self._patterns.get(pattern, {}).items():
            for permission, mask in ((Permission.ALLOW, masks.allowed), (Permission.DENY, masks.denied)):
                for operation in Operation:
                    if mask & 1 << operation:
                        yield AclBinding(pattern, principal, host, operation, permission)

    def matching(self, asked: AclFilter) -> Iterator[AclBinding]:
        """Yield the rules that a filter selects."""
        for pattern in self._patterns:
            if asked.matches_pattern(pattern):
                yield from filter(asked.matches, self.of_pattern(pattern))

    def add(self, binding: AclBinding) -> None:
        """Add a rule. A rule that is there already is not added."""
        if binding in self:
            return
        self._change(binding)
        key = (binding.pattern.resource_type, (binding.principal, binding.host))
        self._held.setdefault((*key, binding.operation, binding.permission), set()).add(binding.pattern)
        self._count += 1

    def remove(self, binding: AclBinding) -> None:
        """Remove a rule, if it is there."""
        if binding not in self:
            return
        self._change(binding)
        key = (binding.pattern.resource_type, (binding.principal, binding.host))
        held = self._held[*key, binding.operation, binding.permission]
        held.discard(binding.pattern)
        if not held:
            del self._held[*key, binding.operation, binding.permission]
        self._count -= 1

    def _change(self, binding: AclBinding) -> None:
        """Add a rule that is not there, or remove one that is there, in all places but `_held`."""
        pattern, holder = binding.pattern, (binding.principal, binding.host)
        holders = self._patterns.setdefault(pattern, {})
        masks = _changed(holders.get(holder, NOTHING), binding)
        holders[holder] = masks
        if masks == NOTHING:
            del holders[holder]
        if not holders:
            del self._patterns[pattern]
        self._of_type[pattern.resource_type].put(pattern, PRESENT if holders else NOTHING)
        key = (pattern.resource_type, holder)
        names = self._of_holder.setdefault(key, Names())
        names.put(pattern, masks)
        if not names.literal and not names.prefixed:
            del self._of_holder[key]

    def find(self, principal: str, host: str, resource_type: ResourceType, name: str) -> Masks:
        """Return the operations that the rules for a resource, a principal and a host allow and deny."""
        allowed = denied = 0
        for holder in _holders(principal, host):
            names = self._of_holder.get((resource_type, holder))
            if names is not None:
                for masks in names.applying(name):
                    allowed |= masks.allowed
                    denied |= masks.denied
        return Masks(allowed, denied)

    def has_rules(self, resource_type: ResourceType, name: str) -> bool:
        """Whether a resource has rules at all, of whatever principal."""
        return any(True for _ in self._of_type[resource_type].applying(name))

    def allows_some(
        self, principal: str, host: str, resource_type: ResourceType, operation: Operation
    ) -> bool:
        """Whether a rule allows an operation on some resource of a type and no rule denies it there.

        As in Kafka's `authorizeByResourceType`, no operation implies another one here.
        """
        allowed = self._held_by(principal, host, resource_type, operation, Permission.ALLOW)
        denied = self._held_by(principal, host, resource_type, operation, Permission.DENY)
        everything = Pattern(resource_type, WILDCARD)
        if any(everything in patterns for patterns in denied):
            return False
        if any(everything in patterns for patterns in allowed):
            return True
        return any(not _is_denied(pattern, denied) for patterns in allowed for pattern in patterns)

    def _held_by(
        self,
        principal: str,
        host: str,
        resource_type: ResourceType,
        operation: Operation,
        permission: Permission,
    ) -> list[set[Pattern]]:
        keys = (
            (resource_type, holder, each, permission)
            for holder in _holders(principal, host)
            for each in (operation, Operation.ALL)
        )
        return [self._held[key] for key in keys if key in self._held]


def _changed(masks: Masks, binding: AclBinding) -> Masks:
    """Add the operation of a rule to the masks, or remove it from them."""
    bit = 1 << binding.operation
    if binding.permission is Permission.ALLOW:
        return masks._replace(allowed=masks.allowed ^ bit)
    return masks._replace(denied=masks.denied ^ bit)


def _holders(principal: str, host: str) -> tuple[Holder, ...]:
    """The principals and hosts of the rules that apply to a principal on a host."""
    return (principal, host), (principal, WILDCARD), (ANY_PRINCIPAL, host), (ANY_PRINCIPAL, WILDCARD)


def _is_denied(allowed: Pattern, denied: list[set[Pattern]]) -> bool:
    """Whether rules deny everything that a pattern allows."""
    if not denied:
        return False
    ends = range(1, len(allowed.name) + 1)
    denying = [Pattern(allowed.resource_type, allowed.name[:end], PatternType.PREFIXED) for end in ends]
    if allowed.pattern_type is PatternType.LITERAL:
        denying.append(allowed)
    return any(pattern in patterns for patterns in denied for pattern in denying)
