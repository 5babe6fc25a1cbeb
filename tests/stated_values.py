"""The numbers that documents state, and the table that says where each of them is from.

`stated_values.txt` is the table. Its parts begin with the name of a document in brackets, or with a pattern of names.
Each line is a row; a line that begins with spaces continues the row before it. The first word is the kind of the row:

- `value TEXT`: a statement about stablelog. A number is an expression in braces: `at most {wire.guard.ITEMS_MAX} items`.
  An expression names what is below `stablelog`, and the helpers of `Names`. Digits outside of braces need another row.
- `figure TEXT`: a measurement. `example TEXT`: a number of an example. `foreign TEXT`: a number of another program or
  of a standard. `name TEXT`: a part of a name or a place. In these, `#` is any number, and `~` any words; at the end
  `~` is the rest of the paragraph.
- `figures HEADING`, `examples HEADING`, `foreigns HEADING`: a section, or the tables whose header
  line begins so, with numbers of this kind alone.
- `held TEST; HEADER; COLUMNS`: another test compares these columns of the tables whose header line begins so.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from typer.main import get_command

from stablelog.broker.settings.table import SETTINGS
from stablelog.cli.commands import app
from stablelog.coordinators.transactions.records import TAGS
from stablelog.spark.option_table import OPTIONS
from stablelog.wire.api import ApiKey
from stablelog.wire.message_classes import EXTENSION_MODULES
from tests.declared_apis import APIS

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".txt")
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for pattern in (
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CODE_OF_CONDUCT.md",
        "docs/**/*.md",
        "examples/*.md",
    )
    for path in ROOT.glob(pattern)
)
WORDS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
]
FRACTIONS = {1 / 2: "half", 1 / 8: "one eighth", 1 / 10: "one tenth", 1 / 16: "one sixteenth"}
PREPOSITIONS = ["after", "every", "for", "in", "once", "than", "within"]
UNITS = ["second", "minute", "hour", "day", "week", "month", "byte", "character", "bit", "digit"]
NUMBER = r"(?<![\w.,/#^])(?<![A-Za-z]-)\d+(?:,\d{3})*(?:\.\d+)*(?:\^\d+(?:-1)?)?(?=\W|$|[kmg]`)"
STATED = re.compile(
    rf"{NUMBER}|\bv\d+\b|\bone (?:eighth|tenth|sixteenth)\b"
    rf"|(?:{'|'.join(f'(?<={word} )' for word in PREPOSITIONS)})an?(?= (?:{'|'.join(UNITS)})\b)"
    rf"|\b(?:{'|'.join(WORDS)}|half|hundred|thousand|million)(?= (?:an? )?(?:{'|'.join(UNITS)})s?\b)",
    re.I,
)
# 0 and 1 are values only beside such a word: "-1 if there is none" and "0: no limit" are not about a size or a time.
BEFORE = re.compile(
    r"\b(?:versions?|codes?|errors?|defaults?|default is|kinds?|tags?|at most|fields?) -?$", re.I
)
AFTER = re.compile(r"^ (?:[kKMGT]i?B|B|m?s|[µu]s|h|(?:byte|character|second|minute|hour|day|bit)s?)\b")
NEVER = ("0", "1")


@dataclass(frozen=True)
class Block:
    """A paragraph, an item of a list, or a row of a table, in one line.

    `section` is the heading above it, and `header` the first line of its table, empty outside of tables.
    """

    section: str
    text: str
    header: str = ""

    def columns(self) -> Iterator[tuple[str, int, int]]:
        """The name, begin and end of each cell of a row."""
        at = 1
        names = self.header.strip("|").split("|")
        for name, cell in zip(names, self.text[1:-1].split("|"), strict=False):
            yield name.strip(), at, at + len(cell)
            at += len(cell) + 1

    def numbers(self) -> Iterator[re.Match[str]]:
        """The numbers that state something. Code states nothing, unless it is only a number."""
        code = [
            found.span()
            for found in re.finditer(r"`[^`]*`", self.text)
            if not re.fullmatch(r"`-?[\d,.]+[kmg]?`", found[0])
        ]
        for found in STATED.finditer(self.text):
            is_valued = (
                found[0] not in NEVER
                or BEFORE.search(self.text[: found.start()])
                or AFTER.search(self.text[found.end() :])
            )
            if is_valued and not any(begin < found.start() < end for begin, end in code):
                yield found


def blocks_of(text: str) -> Iterator[Block]:
    """The blocks of a document, without code and without the targets of links."""
    section = header = ""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for block in re.split(r"\n(?=\n|\||\s*- |\d+\. |#)", text):
        plain = " ".join(re.sub(r"^\n*(?:\s*- |\d+\. )", "", block).split())
        if block.lstrip("\n").startswith("#"):
            heading, _, rest = block.lstrip("\n").partition("\n")
            section, header = heading, ""
            yield Block(section, " ".join(rest.split()))
        elif plain.startswith("|"):
            header = header or plain
            if plain != header and set(plain) - set("|- "):
                yield Block(section, plain, header)
        else:
            header = ""
            if plain and not block.strip("\n").startswith("    "):
                yield Block(section, plain)


class Room:
    """A package or module, whose modules are its attributes too."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> object:
        value = getattr(self._module, name, None)
        if value is None or isinstance(value, ModuleType):
            return Room(import_module(f"{self._module.__name__}.{name}"))
        return value


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)


def _commands(command, path=()):
    names = command.list_commands(None) if hasattr(command, "list_commands") else []
    if not names:
        yield " ".join(path), command
    for name in names:
        yield from _commands(command.get_command(None, name), (*path, name))


def default(name: str) -> float:
    """The default of a setting of the broker or of a topic."""
    return _number(next(one.default for one in SETTINGS if name in (one.name, one.topic)))


def valid(name: str) -> tuple[float, ...]:
    """The least and the greatest value of a setting."""
    (kind,) = (one.kind.valid for one in SETTINGS if one.name == name)
    return tuple(map(_number, re.findall(r"-?\d+(?:\.\d+)?", kind)))


def option(name: str) -> float:
    """The default of an option of Spark."""
    return _number(re.sub(r"\D", "", str(OPTIONS[name].default)))


def flag(words: str) -> float:
    """The default of an option of a command: `produce --transaction-timeout`."""
    command, _, name = words.rpartition(" ")
    return next(
        parameter.default
        for parameter in dict(_commands(get_command(app)))[command].params
        if name in parameter.opts
    )


def parameter(function: Callable[..., object], name: str) -> object:
    """The default of a parameter."""
    return inspect.signature(function).parameters[name].default


def text(name: str) -> str:
    """The default of a setting that is a text."""
    return next(one.default for one in SETTINGS if one.name == name)


def octal(mode: int) -> str:
    """The digits of the mode of a file."""
    return f"{mode:04o}"


def version(words: Sequence[int]) -> str:
    """The version of a program: (4, 2) is 4.2."""
    return ".".join(map(str, words))


def python_version() -> str:
    """The oldest Python that the package accepts."""
    (found,) = re.findall(r'^requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    return found


def tagged(field: str) -> int:
    """The tag of a field of a transactional id in the commit log."""
    return next(tag for tag, (name, _) in TAGS.items() if name == field)


def api_count(*, is_own: bool) -> int:
    """The number of APIs of Kafka's that the broker serves, or of its own."""
    return sum((key in EXTENSION_MODULES) == is_own for key in APIS)


def versions(name: str) -> range:
    """The versions of an API that the broker serves."""
    return next(APIS[key].served_versions for key in ApiKey if key.message_name == name)


OWN = (
    default,
    valid,
    text,
    option,
    flag,
    parameter,
    octal,
    version,
    python_version,
    tagged,
    versions,
    api_count,
)
BUILT_IN = (len, max, min, round, set, sorted, range, int, str)
HELPERS = {
    **{one.__name__: one for one in (*OWN, *BUILT_IN)},
    "ApiKey": ApiKey,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}


class Names(dict):
    """The names of expressions."""

    def __missing__(self, name: str) -> object:
        """A package of stablelog, or one of the packages beside it."""
        return Room(
            import_module(name if name in ("tests", "peers", "bench", "kio") else f"stablelog.{name}")
        )


def value_of(expression: str) -> object:
    """The value that the code has for an expression."""
    return eval(expression, {"__builtins__": {}}, Names(HELPERS))


def written(value: object) -> str:
    """A pattern of the ways in which a document may write a value."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    ways = [str(value)]
    if isinstance(value, int) and not isinstance(value, bool):
        ways += [f"{value:,}", *WORDS[value : value + 1]] if value >= 0 else []
        ways += ["an", "a"] if value == 1 else []
        power = abs(value).bit_length()
        ways += [f"2^{power}-1"] if power > 16 and value == (1 << power) - 1 else []
        ways += [f"2^{power - 1}"] if power > 16 and value == 1 << (power - 1) else []
    elif value in FRACTIONS:
        ways.append(FRACTIONS[value])
    return f"(?<![\\w.,])((?i:{'|'.join(map(re.escape, ways))}))(?!\\d|[.,]\\d|[A-Za-z_](?!`))"


@dataclass(frozen=True)
class Row:
    """A row of the table: the documents that it is for, its kind and its text."""

    documents: str
    kind: str
    text: str


ANY_NUMBER = rf"(?:v?\d[\d,.^-]*(?<=\d)|an?|half|one \w+|{'|'.join(WORDS)})"


@cache
def pattern_of(row: Row) -> re.Pattern[str]:
    """The pattern of what a row holds. Its groups are the numbers of a `value`, and the text of another kind."""
    if row.kind == "value":
        parts = re.split(r"\{([^{}]*)\}", row.text)
        assert len(parts) > 1, f"no expression in: {row.text}"
        values = [written(value_of(part)) if n % 2 else re.escape(part) for n, part in enumerate(parts)]
        return re.compile("".join(values).replace(r"v(?<![\w.,])", "v"))
    parts = [re.escape(part) for part in re.split(r"(~$|[#~])", row.text)]
    text = "".join({r"\#": ANY_NUMBER, "\\~": "[^|]*?"}.get(part, part) for part in parts)
    text = text.removesuffix("[^|]*?") + ".*" if row.text.endswith("~") else text
    return re.compile(f"(?<![\\w.,])({text})(?!\\w)" if re.match(r"[#\w]", row.text) else f"({text})")


def rows_of(text: str) -> Iterator[Row]:
    """The rows of the table."""
    documents = ""
    for line in re.sub(r"\n +", " ", text).splitlines():
        if line.startswith("["):
            documents = line.strip("[]")
        elif line and not line.startswith("#"):
            kind, _, rest = line.partition(" ")
            yield Row(documents, kind, rest.strip())


def without_row(document: str, text: str, rows: list[Row]) -> tuple[list[str], list[Row]]:
    """The numbers of a document that no row holds, and the rows that hold none."""
    mine = [row for row in rows if fnmatch(document, row.documents)]
    blocks = list(blocks_of(text))
    used: set[Row] = set()
    held: dict[int, list[tuple[int, int]]] = {n: [] for n in range(len(blocks))}
    for row in mine:
        for n, spans in _spans(row, blocks):
            used.add(row)
            held[n] += spans
    missing = [
        f"{document}, {block.section}: {_marked(block.text, number)}"
        for n, block in enumerate(blocks)
        for number in block.numbers()
        if not any(begin <= number.start() and number.end() <= end for begin, end in held[n])
    ]
    return missing, [row for row in mine if row not in used]


def _marked(text: str, number: re.Match[str]) -> str:
    return f"{text[max(0, number.start() - 60) : number.start()]}>>{number[0]}<<{text[number.end() : number.end() + 40]}"


def _spans(row: Row, blocks: list[Block]) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """What a row holds: the numbers of blocks, with the places in them."""
    if row.kind == "held":
        _, header, columns = (part.strip() for part in row.text.split(";"))
        names = [name.strip() for name in columns.split(",")]
        for n, block in enumerate(blocks):
            if block.header.startswith(header) and block.header:
                yield (
                    n,
                    [
                        (begin, end)
                        for name, begin, end in block.columns()
                        if columns == "all" or name in names
                    ],
                )
    elif row.kind in ("figures", "examples", "foreigns"):
        for n, block in enumerate(blocks):
            if (block.header if row.text.startswith("|") else block.section).startswith(row.text):
                yield n, [(0, len(block.text))]
    else:
        pattern = pattern_of(row)
        for n, block in enumerate(blocks):
            for found in pattern.finditer(block.text):
                spans = (found.span(group) for group in range(1, pattern.groups + 1))
                yield n, [(begin - (block.text[begin - 1] == "v"), end) for begin, end in spans]
