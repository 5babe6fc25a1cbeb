"""Patterns of names, for filters of clients: regular expressions that are matched in a bounded number of steps.

Patterns come from clients. Python's `re` takes unlimited time for some patterns, so it only checks patterns. A name is
matched here instead: each element of the pattern is applied once, to all positions of the name that the match can have
reached until then. A set of positions is an integer: bit i is set if the set contains position i.

Source: the repetition of an element without an upper limit is an addition: "Flexible Pattern Matching in Strings" by
Navarro and Raffinot, section 4.2.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.errors import RefusedError

PATTERN_SIZE_MAX: Final = 255
COUNTED_MAX: Final = 1000  # The maximum sum of the numbers of all repetitions such as {2,5}.
# An element of a pattern. A brace that begins no repetition is an ordinary character.
_ELEMENT: Final = re.compile(
    r"""
    (?P<operator> \(\?: | [()|^$] )
  | (?P<atom>
        \\[dDsSwW] | \\[^0-9A-Za-z]
      | \[ \^? \]? (?: \\. | [^]\\] )* \]
      | [^\\\[(){|*+?^$]
      | \{ (?! \d+(?:,\d*)?\} | ,\d*\} )
    )
    (?P<repeat> (?: [*+?] | \{ (?: \d+(?:,\d*)? | ,\d* ) \} ) \?? )?
    """,
    re.VERBOSE | re.DOTALL,
)

_COUNTS: Final = {"*": (0, 0), "+": (1, 1), "?": (0, 1)}

# Returns the positions that one element of a pattern reaches from the given positions of a name.
Step = Callable[["NameText", int], int]


def name_matcher(pattern: str | None) -> Callable[[str], bool]:
    """Return a function that checks whether a whole name matches.

    No pattern, or an empty one, matches all names. The function takes a number of steps that is proportional to the
    length of the pattern.

    Raises:
        RefusedError: the pattern is not a regular expression, is too long, or contains more than characters, classes of
            characters, repetitions of these, groups, alternatives and anchors.
    """
    if not pattern:
        return lambda _name: True
    if len(pattern) > PATTERN_SIZE_MAX:
        raise RefusedError(
            ErrorCode.invalid_regular_expression,
            f"the pattern has {len(pattern)} characters; at most {PATTERN_SIZE_MAX} are allowed",
        )
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise RefusedError(
            ErrorCode.invalid_regular_expression, f"{pattern!r} is not a regular expression: {error}"
        ) from None
    elements = _elements(pattern)
    if sum(max(_counts(element)) for element in elements) > COUNTED_MAX:
        raise RefusedError(
            ErrorCode.invalid_regular_expression,
            f"{pattern!r} could take very long to match; the counts of its repetitions are more than {COUNTED_MAX} together",
        )
    whole = _alternatives(iter(elements))

    def matches(name: str) -> bool:
        return bool(whole(NameText(name), 1) >> len(name))

    return matches


class NameText:
    """A name that is matched, and the positions of its characters."""

    def __init__(self, name: str) -> None:
        self.text = name
        self._positions: dict[str, int] = {}
        self._positions_of: dict[str, int] = {}
        for position, character in enumerate(name):
            self._positions[character] = self._positions.get(character, 0) | 1 << position

    def positions_of(self, atom: str, matches: Callable[[str], object]) -> int:
        """The positions of all characters that an atom of a pattern matches."""
        known = self._positions_of.get(atom)
        if known is None:
            known = 0
            for character, positions in self._positions.items():
                if matches(character):
                    known |= positions
            self._positions_of[atom] = known
        return known


def _elements(pattern: str) -> list[re.Match[str]]:
    """Divide a pattern, which is a regular expression, into its elements.

    Raises:
        RefusedError: the pattern contains something that is not supported.
    """
    elements = []
    at = 0
    while at < len(pattern):
        found = _ELEMENT.match(pattern, at)
        if found is None:
            raise RefusedError(
                ErrorCode.invalid_regular_expression,
                f"{pattern!r} is not supported from character {at + 1} on: it could take very long to "
                "match. Use no repeated groups, no references and no other extensions",
            )
        elements.append(found)
        at = found.end()
    return elements


def _counts(element: re.Match[str]) -> tuple[int, int]:
    """How often an element is repeated at least and at most. If there is no limit, both are the least number."""
    repeat = element["repeat"]
    if repeat is None:
        return 1, 1
    if repeat[0] in _COUNTS:
        return _COUNTS[repeat[0]]
    least, comma, most = repeat.rstrip("?")[1:-1].partition(",")
    return int(least or 0), int((most if comma else least) or least or 0)


def _is_unlimited(element: re.Match[str]) -> bool:
    repeat = element["repeat"] or ""
    return repeat.startswith(("*", "+")) or repeat.rstrip("?").endswith(",}")


def _alternatives(elements: Iterator[re.Match[str]]) -> Step:
    """Build the step of a group, or of the whole pattern. On return, the caller's iterator is at the element after the
    group.
    """
    branches: list[list[Step]] = [[]]
    for element in elements:
        match element["operator"]:
            case ")":
                break
            case "(" | "(?:":
                branches[-1].append(_alternatives(elements))
            case "|":
                branches.append([])
            case "^":
                branches[-1].append(lambda _name, at: at & 1)
            case "$":
                branches[-1].append(_at_end)
            case _:
                branches[-1].append(_repeated(element))

    def step(of: NameText, at: int) -> int:
        reached_by_any = 0
        for branch in branches:
            reached = at
            for part in branch:
                reached = part(of, reached)
            reached_by_any |= reached
        return reached_by_any

    return step


def _at_end(of: NameText, at: int) -> int:
    """`$` matches at the end, and before a line break that ends the name."""
    ends = 1 << len(of.text) | 1 << len(of.text.removesuffix("\n"))
    return at & ends


def _repeated(element: re.Match[str]) -> Step:
    atom = element["atom"]
    matches = re.compile(atom).fullmatch
    least, most = _counts(element)
    is_unlimited = _is_unlimited(element)

    def step(of: NameText, at: int) -> int:
        where = of.positions_of(atom, matches)
        for _ in range(least):
            at = (at & where) << 1
        for _ in range(most - least):
            at |= (at & where) << 1
        if is_unlimited:
            # The addition carries each position of `at` to the end of its run of matching characters.
            at |= ((at & where) + where) ^ where
        return at

    return step
