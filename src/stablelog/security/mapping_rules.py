"""`ssl.principal.mapping.rules`: rules that derive a principal's name from the distinguished name in a certificate
(KIP-371).
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

# One rule: `RULE:pattern/replacement/` with an `L` or `U` at the end for lower or upper case, or `DEFAULT`. A slash
# within a pattern or replacement is written with a backslash before it.
_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)|DEFAULT")
_GROUP: Final = re.compile(r"\\(.)|\$(\d)")


class Rule(NamedTuple):
    """One rule of the setting `ssl.principal.mapping.rules`. If the pattern is None, this is the rule `DEFAULT`, which
    uses the distinguished name of a certificate as the principal's name.
    """

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Parse the value of the setting: rules with commas between them. An empty text means the one rule `DEFAULT`.

    Returns:
        The rules in the order of the text. The first rule that matches a distinguished name decides.

    Raises:
        ValueError: a rule is not valid.
    """
    rules: list[Rule] = []
    at, text = 0, text.strip() or "DEFAULT"
    while True:
        found = _RULE.match(text, at)
        if found is None:
            raise ValueError(f"{text[at:]} is not a rule: write DEFAULT or RULE:pattern/replacement/")
        pattern, replacement, case = found.groups()
        if pattern is None:
            rules.append(Rule())
        else:
            rules.append(_rule(pattern, replacement, case))
        at = found.end()
        rest = text[at:].lstrip()
        if not rest:
            return tuple(rules)
        if not rest.startswith(","):
            raise ValueError(f"a comma is missing between two rules, before {rest}")
        at = len(text) - len(rest[1:].lstrip())


def _rule(pattern: str, replacement: str, case: str) -> Rule:
    try:
        compiled = re.compile(pattern.replace("\\/", "/"))
    except re.error as error:
        raise ValueError(f"the pattern {pattern} is not a regular expression: {error}") from error
    numbers = [int(number) for _, number in _GROUP.findall(replacement) if number]
    if any(number > compiled.groups for number in numbers):
        raise ValueError(
            f"the replacement {replacement} names a group that the pattern {pattern} does not have"
        )
    return Rule(compiled, replacement, case)


def principal_name(rules: Sequence[Rule], distinguished_name: str) -> str:
    """Return the principal's name for the distinguished name of a certificate.

    Raises:
        ValueError: no rule matches the distinguished name.
    """
    for rule in rules:
        if rule.pattern is None:
            return distinguished_name
        found = rule.pattern.fullmatch(distinguished_name)
        if found is not None:
            name = _filled(rule.replacement, found)
            return {"L": name.lower(), "U": name.upper()}.get(rule.case, name)
    raise ValueError(f"no rule of ssl.principal.mapping.rules matches {distinguished_name}")


def _filled(replacement: str, found: re.Match[str]) -> str:
    """Return the text of a rule's replacement, with `$1`, `$2` and so on replaced by the groups that the rule's pattern
    has found.
    """

    def fill(part: re.Match[str]) -> str:
        escaped, number = part.groups()
        return escaped if number is None else found[int(number)] or ""

    return _GROUP.sub(fill, replacement)
