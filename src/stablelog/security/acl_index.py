"""Index of access rules (ACL bindings): finds the rules that apply to a resource, a principal and a host.

A pattern is the part of a rule that says to which resources the rule applies: a type, and a name or the beginning of
names. For each pattern, and each principal and host in its rules, the index has one number: a bit for each operation
that the rules allow, and a bit for each that they deny. The rules are stored in no other form.

The cost of a lookup does not depend on the number of rules. It depends on how many different lengths the beginnings of
names have in the patterns of the type PREFIXED.
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
    """The operations that rules allow and those that they deny: two integers, in which bit n stands for the operation
    with Kafka's number n.
    """

    allowed: int
    denied: int


# The principal and the host in a rule.
Holder = tuple[str, str]


class Names:
    """The patterns for one type of resource, by name. A literal pattern has the name of a resource; a prefixed pattern
    has the beginning of the names of resources. Each is stored with its rules: the bits of the operations that they
    allow and deny.
    """

    __slots__ = ("lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, Rules] = {}
        self.prefixed: dict[str, Rules] = {}
        # How many prefixed patterns have a name of this length.
        self.lengths: Counter[int] = Counter()

    def put(self, pattern: Pattern, rules: Rules) -> None:
        """Replace the rules of a pattern. `rules` has a bit for each operation that they allow and for each that they
        deny; without any bit, the pattern is removed.
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
        """Return the prefixes of a name for which `rules_of` has to look up a prefixed pattern: those with the length
        of at least one such pattern.
        """
        return [name[:length] for length in self.lengths if length <= len(name)]

    def rules_of(self, name: str, prefixes: list[str]) -> Rules:
        """Return the rules of all patterns that apply to a resource, joined in one number: a bit for each operation
        that one of them allows, and for each that one of them denies.

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
    """The access rules (ACL bindings) of a broker, indexed by resource, principal and host, so that a lookup need not
    read all rules.
    """

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
        """Return the pattern (type, and name or beginning of names) of every resource or group of resources for which
        there are rules.
        """
        return list(self._patterns)

    def rules_of_pattern(self, pattern: Pattern) -> Iterator[AclBinding]:
        """Yield the rules of one pattern. The pattern must be equal to that of the rule; it is not enough that it
        selects some of the same resources.
        """
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
        """Add a rule if it is new, or remove it if it exists, in all indexes except `_held` (the patterns of the rules,
        by holder and operation), which the callers `add` and `remove` change.
        """
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
        """Return whether a client may carry out an operation on at least one resource of a type, which need not exist:
        a rule allows it there and no rule denies it.

        As in Kafka's `authorizeByResourceType`, no operation implies another one here: a rule that allows READ does not
        allow DESCRIBE.
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
    """Return a number with one bit, which stands for this rule: for its operation, among the allowed operations or
    among the denied ones.
    """
    return 1 << binding.operation + (0 if binding.permission is Permission.ALLOW else DENIED_SHIFT)


def _holders(principal: str, host: str) -> tuple[Holder, ...]:
    """Return the pairs (principal, host) whose rules apply to a client with this principal and this host. Besides the
    exact names, a rule can name `*` for every principal or every host.
    """
    return (principal, host), (principal, WILDCARD), (ANY_PRINCIPAL, host), (ANY_PRINCIPAL, WILDCARD)


def _is_denied(allowed: Pattern, denied: list[set[Pattern]]) -> bool:
    """Return whether the rules that deny an operation cover a rule that allows it: some pattern in `denied` selects
    every resource that the pattern `allowed` selects.
    """
    if not denied:
        return False
    ends = range(1, len(allowed.name) + 1)
    denying = [Pattern(allowed.resource_type, allowed.name[:end], PatternType.PREFIXED) for end in ends]
    if allowed.pattern_type is PatternType.LITERAL:
        denying.append(allowed)
    return any(pattern in patterns for patterns in denied for pattern in denying)
