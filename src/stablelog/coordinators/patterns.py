"""Patterns of names, for filters of clients: regular expressions that are read and matched in a bounded number of steps.

Patterns come from clients. Python's `re` takes seconds to compile some short patterns, and unlimited time to match some
others. A pattern is therefore read and matched here. Each element of the pattern is applied once, to all positions of
the name that the match can have reached until then. A set of positions is an integer: bit i is set if the set contains
position i. A class of characters is a list of ranges, which are looked up among the sorted characters of the name.

Source: the repetition of an element without an upper limit is an addition: "Flexible Pattern Matching in Strings" by
Navarro and Raffinot, section 4.2. The meaning of each element is that of Python's `re`.
"""

import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

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
      | \[ \^?+ \]?+ (?: \\. | [^]\\] )* \]
      | [^\\\[(){|*+?^$]
      | \{ (?! [0-9]+(?:,[0-9]*)?\} | ,[0-9]*\} )
    )
    (?P<repeat> (?: [*+?] | \{ (?: [0-9]+(?:,[0-9]*)? | ,[0-9]* ) \} ) \?? )?
    """,
    re.VERBOSE | re.DOTALL,
)
# A member of a class of characters, or an end of a range.
_MEMBER: Final = re.compile(
    r"""
    \\ (?: [xuU] (?P<hex> (?<=x)[0-9A-Fa-f]{2} | (?<=u)[0-9A-Fa-f]{4} | (?<=U)[0-9A-Fa-f]{8} )
         | (?P<octal> [0-7]{1,3} )
         | (?P<control> [abfnrtv] )
         | (?P<category> [dDsSwW] )
         | (?P<escaped> [^0-9A-Za-z] ) )
  | (?P<plain> [^\\] )
    """,
    re.VERBOSE | re.DOTALL,
)
_CONTROLS: Final = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))
_OCTAL_MAX: Final = 0o377

_COUNTS: Final = {"*": (0, 0), "+": (1, 1), "?": (0, 1)}
_CATEGORIES: Final[dict[str, Callable[[str], bool]]] = {
    "d": str.isdecimal,
    "s": str.isspace,
    "w": lambda character: character.isalnum() or character == "_",
}

# Returns the positions that one element of a pattern reaches from the given positions of a name.
Step = Callable[["NameText", int], int]


class Characters(NamedTuple):
    """A set of characters, as an element of a regular expression matches it: one character, or a class such as `[a-z]`.

    Attributes:
        ranges: the first and the last character of each range in the set.
        categories: the letters of the categories in the set, such as `d` for digits; a capital letter stands for all
            characters outside of the category.
        is_negated: whether the set consists of all characters that are in no range and no category.
    """

    ranges: tuple[tuple[str, str], ...]
    categories: str = ""
    is_negated: bool = False


def name_matcher(pattern: str | None) -> Callable[[str], bool]:
    """Return a function that checks whether a whole name matches the pattern.

    No pattern, or an empty one, matches all names. `name_matcher` takes a number of steps that is proportional to the
    length of the pattern. The function that it returns takes as many again for each name, and one step for each
    character of the name.

    Raises:
        RefusedError: the pattern is not a regular expression, is too long, or contains more than characters, classes of
            characters, repetitions of these, groups, alternatives and anchors.
    """
    if not pattern:
        return lambda _name: True
    if len(pattern) > PATTERN_SIZE_MAX:
        raise _invalid(f"the pattern has {len(pattern)} characters; at most {PATTERN_SIZE_MAX} are allowed")
    elements = _elements(pattern)
    if sum(max(_counts(element)) for element in elements) > COUNTED_MAX:
        raise _invalid(
            f"{pattern!r} could take very long to match; the counts of its repetitions are more than {COUNTED_MAX} together"
        )
    _check_structure(pattern, elements)
    whole = _alternatives(iter(elements))

    def matches(name: str) -> bool:
        return bool(whole(NameText(name), 1) >> len(name))

    return matches


class NameText:
    """A name that is compared with a pattern, and for each of its characters the positions at which it stands."""

    def __init__(self, name: str) -> None:
        self.text = name
        positions: dict[str, int] = {}
        for position, character in enumerate(name):
            positions[character] = positions.get(character, 0) | 1 << position
        self._characters = sorted(positions)
        # The positions of the first n characters of `_characters`, for each n.
        self._before = [0]
        for character in self._characters:
            self._before.append(self._before[-1] | positions[character])
        self._positions_of: dict[Characters | str, int] = {}

    def positions_of(self, characters: Characters) -> int:
        """Return the positions of all characters of a set in the name, as an integer: bit i is set if character i is in
        the set.
        """
        known = self._positions_of.get(characters)
        if known is None:
            known = 0
            for first, last in characters.ranges:
                known |= (
                    self._before[bisect_right(self._characters, last)]
                    ^ self._before[bisect_left(self._characters, first)]
                )
            for category in characters.categories:
                known |= self._positions_in(category)
            if characters.is_negated:
                known ^= self._before[-1]
            self._positions_of[characters] = known
        return known

    def _positions_in(self, category: str) -> int:
        known = self._positions_of.get(category)
        if known is None:
            is_member = _CATEGORIES[category.lower()]
            known = 0
            for number, character in enumerate(self._characters):
                if is_member(character) == category.islower():
                    known |= self._before[number + 1] ^ self._before[number]
            self._positions_of[category] = known
        return known


def _invalid(why: str) -> RefusedError:
    return RefusedError(ErrorCode.invalid_regular_expression, why)


def _elements(pattern: str) -> list[re.Match[str]]:
    """Split a regular expression into its elements: characters, classes, groups, alternatives, anchors and repetitions.

    Raises:
        RefusedError: the expression contains an element that is not supported.
    """
    elements = []
    at = 0
    while at < len(pattern):
        found = _ELEMENT.match(pattern, at)
        if found is None:
            raise _invalid(
                f"{pattern!r} is not supported from character {at + 1} on: it is not a regular expression, or it could "
                "take very long to match. Use no repeated groups, no references and no other extensions"
            )
        elements.append(found)
        at = found.end()
    return elements


def _check_structure(pattern: str, elements: list[re.Match[str]]) -> None:
    """Check that each group of a regular expression begins and ends, and that no repetition has a maximum below its
    minimum.

    Raises:
        RefusedError: an element is wrong; the message names the element.
    """
    depth = 0
    for element in elements:
        depth += (element["operator"] in {"(", "(?:"}) - (element["operator"] == ")")
        least, most = _counts(element)
        if depth < 0 or most < least:
            what = "the group that ends" if depth < 0 else "the repetition"
            why = "does not begin" if depth < 0 else "has a maximum below its minimum"
            raise _invalid(
                f"{pattern!r} is not a regular expression: {what} at character {element.start() + 1} {why}"
            )
    if depth:
        raise _invalid(f"{pattern!r} is not a regular expression: a group does not end")


def _counts(element: re.Match[str]) -> tuple[int, int]:
    """Return a pair: the least and the greatest number of times that an element of a pattern is repeated. If there is
    no upper limit, both numbers are the least one, and the caller adds the unlimited repetition itself.
    """
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
    """Build and return the function that matches the alternatives of a group, or of the whole pattern.

    On return, `elements` has advanced past the end of the group, so its next element is the one after the group.
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
    """Match `$` at the positions in `at` (bit i stands for position i). Return those of them at which it matches: the
    end of the name, and the position before a line break that ends the name.
    """
    ends = 1 << len(of.text) | 1 << len(of.text.removesuffix("\n"))
    return at & ends


def _repeated(element: re.Match[str]) -> Step:
    characters = _characters(element)
    least, most = _counts(element)
    is_unlimited = _is_unlimited(element)

    def step(of: NameText, at: int) -> int:
        where = of.positions_of(characters)
        for _ in range(least):
            at = (at & where) << 1
        for _ in range(most - least):
            at |= (at & where) << 1
        if is_unlimited:
            # The addition carries each position of `at` to the end of its run of matching characters.
            at |= ((at & where) + where) ^ where
        return at

    return step


def _characters(element: re.Match[str]) -> Characters:
    """Return the set of characters that an element of a pattern matches.

    Raises:
        RefusedError: a class of characters has a member that is not supported, or a range that ends before it begins.
    """
    atom = element["atom"]
    if atom == ".":
        return Characters((("\n", "\n"),), is_negated=True)
    if atom[0] != "[":
        is_category = atom[0] == "\\" and atom[1].isalpha()
        return Characters((), atom[1]) if is_category else Characters(((atom[-1], atom[-1]),))
    is_negated = atom[1] == "^"
    ranges: list[tuple[str, str]] = []
    categories = ""
    at, end = 1 + is_negated, len(atom) - 1
    while at < end:
        first, begun = _member(element, at), at
        at = first.end()
        last = first
        if atom[at] == "-" and at + 1 < end:
            last = _member(element, at + 1)
            at = last.end()
        if last is first and first["category"] is not None:
            categories += first["category"]
            continue
        low, high = _character(first), _character(last)
        if low is None or high is None or high < low:
            raise _invalid(
                f"{element.string!r} is not a regular expression: the range that begins with character "
                f"{element.start('atom') + begun + 1} is not valid"
            )
        ranges.append((low, high))
    return Characters(tuple(ranges), categories, is_negated)


def _member(element: re.Match[str], at: int) -> re.Match[str]:
    """Read one member of a class of characters: a character or an escape, which begins at `at` in the text of the
    class. Return the match object.
    """
    found = _MEMBER.match(element["atom"], at)
    if found is None:
        raise _invalid(
            f"{element.string!r} is not supported at character {element.start('atom') + at + 1}: the class "
            "of characters contains an escape that is not supported"
        )
    return found


def _character(member: re.Match[str]) -> str | None:
    r"""Return the character that a member of a class stands for; None if the member is a category such as `\d` or ends
    the class.
    """
    if member["category"] is not None:
        return None
    if member["control"] is not None:
        return _CONTROLS[member["control"]]
    if member["hex"] is not None or member["octal"] is not None:
        code = int(member["hex"], 16) if member["hex"] is not None else int(member["octal"], 8)
        return chr(code) if code <= (sys.maxunicode if member["hex"] is not None else _OCTAL_MAX) else None
    return member["escaped"] or member["plain"]
