"""Index of the rules (ACL bindings): finds the rules that apply to a resource, a principal and a host.

For each pattern, and each principal and host in its rules, the index holds two numbers: one with a bit for each
operation that the rules allow, and one with a bit for each that they deny. There is no other list of the rules.

The cost of a lookup does not depend on the number of rules. It depends on how many different lengths the names of the
prefixed patterns have.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from stablelog.security.acls import ANY_PRINCIPAL
from stablelog.wire.acls import (
    WILDCARD,
    AclBinding,
    AclFilter,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)

# The rules of one pattern, principal and host, as a number: the bits of the operations that are allowed, and the
# bits of those that are denied, shifted by DENIED_SHIFT.
Rules = int
DENIED_SHIFT: Final = 32
NOTHING: Final = 0
PRESENT: Final = 1


class Masks(NamedTuple):
    """The operations that rules allow and those that they deny, each as an integer with one bit for each operation."""

    allowed: int
    denied: int


# The principal and the host in a rule.
Holder = tuple[str, str]


class Names:
    """The patterns of one type of resource, by name: literal ones and prefixed ones."""

    __slots__ = ("lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, Rules] = {}
        self.prefixed: dict[str, Rules] = {}
        # How many prefixed patterns have a name of this length.
        self.lengths: Counter[int] = Counter()

    def put(self, pattern: Pattern, rules: Rules) -> None:
        """Set the rules of a pattern: the bits of the operations that they allow and deny. They replace the former
        rules. Rules without any bit remove the pattern.
        """
        is_prefixed = pattern.pattern_type is PatternType.PREFIXED
        names = self.prefixed if is_prefixed else self.literal
        if is_prefixed:
            self.lengths[len(pattern.name)] += (rules != NOTHING) - (pattern.name in names)
            if not self.lengths[len(pattern.name)]:
                del self.lengths[len(pattern.name)]
        if rules != NOTHING:
            names[pattern.name] = rules
        else:
            names.pop(pattern.name, None)

    def prefixes(self, name: str) -> list[str]:
        """Return the beginnings of a name that could be prefixed patterns: those whose length is that of at least one
        such pattern.
        """
        return [name[:length] for length in self.lengths if length <= len(name)]

    def rules_of(self, name: str, prefixes: list[str]) -> Rules:
        """Return the rules of all patterns that apply to a resource, joined: the bits of all operations that one of
        these rules allows or denies.

        Args:
            name: the name of the resource.
            prefixes: the beginnings of the name that the method `prefixes` has returned.
        """
        found = self.literal.get(name, NOTHING) | self.literal.get(WILDCARD, NOTHING)
        if self.prefixed:
            rules_of = self.prefixed.get
            for prefix in prefixes:
                found |= rules_of(prefix, NOTHING)
        return found


class AclIndex:
    """The ACL rules of a broker, indexed so that the rules for a resource are found fast."""

    def __init__(self, bindings: Iterable[AclBinding] = ()) -> None:
        self._patterns: dict[Pattern, dict[Holder, Rules]] = {}
        # The patterns of all rules of a type, each with PRESENT.
        self._of_type: dict[ResourceType, Names] = defaultdict(Names)
        # The patterns of the rules of a type, principal and host.
        self._of_holder: dict[tuple[ResourceType, Holder], Names] = {}
        # The patterns of the rules of a type, principal, host, operation and permission.
        self._held: dict[tuple[ResourceType, Holder, Operation, Permission], set[Pattern]] = {}
        # How many types and principals have rules for a host.
        self._hosts: Counter[str] = Counter()
        self._count = 0
        for binding in bindings:
            self.add(binding)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, binding: AclBinding) -> bool:
        holder = (binding.principal, binding.host)
        return bool(self._patterns.get(binding.pattern, {}).get(holder, NOTHING) & _bit(binding))

    def __iter__(self) -> Iterator[AclBinding]:
        for pattern in self._patterns:
            yield from self.rules_of_pattern(pattern)

    def patterns(self) -> list[Pattern]:
        """Return every resource pattern that has rules."""
        return list(self._patterns)

    def rules_of_pattern(self, pattern: Pattern) -> Iterator[AclBinding]:
        """Yield the rules that have this resource pattern."""
        for (principal, host), rules in self._patterns.get(pattern, {}).items():
            for permission, mask in ((Permission.ALLOW, rules), (Permission.DENY, rules >> DENIED_SHIFT)):
                for operation in Operation:
                    if mask & 1 << operation:
                        yield AclBinding(pattern, principal, host, operation, permission)

    def matching(self, asked: AclFilter) -> Iterator[AclBinding]:
        """Yield the rules that a filter selects."""
        for pattern in self._patterns:
            if asked.matches_pattern(pattern):
                yield from filter(asked.matches, self.rules_of_pattern(pattern))

    def add(self, binding: AclBinding) -> None:
        """Add a rule. Do nothing if the rule exists already."""
        if binding in self:
            return
        self._change(binding)
        key = (binding.pattern.resource_type, (binding.principal, binding.host))
        self._held.setdefault((*key, binding.operation, binding.permission), set()).add(binding.pattern)
        self._count += 1

    def remove(self, binding: AclBinding) -> None:
        """Remove a rule. Do nothing if there is no such rule."""
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
        """Add a rule to all indexes except `_held` if it is new, or remove it if it exists."""
        pattern, holder = binding.pattern, (binding.principal, binding.host)
        holders = self._patterns.setdefault(pattern, {})
        rules = holders.get(holder, NOTHING) ^ _bit(binding)
        holders[holder] = rules
        if rules == NOTHING:
            del holders[holder]
        if not holders:
            del self._patterns[pattern]
        self._of_type[pattern.resource_type].put(pattern, PRESENT if holders else NOTHING)
        key = (pattern.resource_type, holder)
        if key not in self._of_holder:
            self._of_holder[key] = Names()
            self._hosts[binding.host] += 1
        names = self._of_holder[key]
        names.put(pattern, rules)
        if not names.literal and not names.prefixed:
            del self._of_holder[key]
            self._hosts[binding.host] -= 1
            if not self._hosts[binding.host]:
                del self._hosts[binding.host]

    def names_host(self, host: str) -> bool:
        """Return whether at least one rule is for exactly this host. Rules for all hosts are not considered."""
        return host in self._hosts

    def find(self, principal: str, host: str, resource_type: ResourceType, name: str) -> Masks:
        """Return the operations that the rules allow and deny to a principal on a host, for one resource."""
        rules = NOTHING
        prefixes = self._of_type[resource_type].prefixes(name)
        for holder in _holders(principal, host):
            names = self._of_holder.get((resource_type, holder))
            if names is not None:
                rules |= names.rules_of(name, prefixes)
        return Masks(rules & (1 << DENIED_SHIFT) - 1, rules >> DENIED_SHIFT)

    def has_rules(self, resource_type: ResourceType, name: str) -> bool:
        """Return whether at least one rule applies to a resource, for any principal."""
        names = self._of_type[resource_type]
        return names.rules_of(name, names.prefixes(name)) != NOTHING

    def allows_some(
        self, principal: str, host: str, resource_type: ResourceType, operation: Operation
    ) -> bool:
        """Return whether a rule allows an operation on some resource of a type, and no rule denies it there.

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


def _bit(binding: AclBinding) -> Rules:
    """Return one rule as `Rules`: the number with the bit of the rule's operation, which is either among the allowed
    or among the denied operations.
    """
    return 1 << binding.operation + (0 if binding.permission is Permission.ALLOW else DENIED_SHIFT)


def _holders(principal: str, host: str) -> tuple[Holder, ...]:
    """Return the pairs (principal, host) whose rules apply to a client with this principal and this host. Besides the
    exact names, a rule can name `*` for every principal or every host.
    """
    return (principal, host), (principal, WILDCARD), (ANY_PRINCIPAL, host), (ANY_PRINCIPAL, WILDCARD)


def _is_denied(allowed: Pattern, denied: list[set[Pattern]]) -> bool:
    """Return whether every resource of the pattern `allowed` is denied by a pattern in `denied`."""
    if not denied:
        return False
    ends = range(1, len(allowed.name) + 1)
    denying = [Pattern(allowed.resource_type, allowed.name[:end], PatternType.PREFIXED) for end in ends]
    if allowed.pattern_type is PatternType.LITERAL:
        denying.append(allowed)
    return any(pattern in patterns for patterns in denied for pattern in denying)
