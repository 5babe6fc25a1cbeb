"""The messages of `spark`, `client`, `cli` and the doctor that name an option, a setting or a command to use, found in their code.

A message is a text of several words in the code of these rooms: all of its parts, with the values that are put into it.
Docstrings, the help of commands and the tables that are documentation are no messages.
"""

import ast
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

from kio.schema.errors import ErrorCode

import stablelog
from stablelog.broker.settings.table import GROUP_SETTINGS, SETTINGS, TOPIC_SETTINGS
from stablelog.client.blocking.client import Client
from stablelog.client.core import security
from stablelog.spark.option_table import OPTIONS

SRC = Path(__file__).parents[2] / "src" / "stablelog"
ROOMS = ("cli", "client", "spark", "ops/doctor")
WORDS_MIN = 3
# Calls whose texts are the help of commands.
HELP = {"Option", "Argument", "examples", "Typer", "command_app", "CoreCommand", "CoreOption"}
# Tables of which docs are made, by the name of the constant, and texts that only programs read.
DOCUMENTED = {"OPTIONS", "SETTINGS"}
# What stands in a template for each value: any text.
VALUE = "\0"
# Expressions in a message whose value is the name of an option.
DYNAMIC = re.compile(r"option\b|other$|self\._named\(|.*join\(there\)")


@dataclass(frozen=True)
class Message:
    """A message in the code.

    Attributes:
        module: where it stands, below `stablelog`.
        text: the message with `{expression}` for each value, for people.
        template: the message with VALUE for each value.
        names: the options, settings and commands that it names.
    """

    module: str
    text: str
    template: str
    names: tuple[str, ...]

    @property
    def room(self):
        return self.module.partition(".")[0]

    def is_in(self, seen):
        """Whether a text that was seen has this message, whatever its values are."""
        parts = [_on_one_line(part) for part in re.split(VALUE + r"|%[sdr]|\{\w+(?:![rs])?\}", self.template)]
        return re.search(".*".join(map(re.escape, parts)), _on_one_line(seen)) is not None


def _on_one_line(text):
    return re.sub(r"\s+", " ", text.replace("`", ""))


# -- the texts of a module --------------------------------------------------------------------------------------------


def constants(trees):
    """The texts of the constants of modules, by name: a message may have one as a value."""
    found = {}
    for tree in trees:
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            value = getattr(node, "value", None)
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found |= {target.id: value.value for target in targets if isinstance(target, ast.Name)}
    return found


def parts_of(node, known):
    """The parts of a text, each as (code, template, words in which names are looked for); None if the node is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [(node.value,) * 3]
    if isinstance(node, ast.JoinedStr):
        return [part for value in node.values for part in parts_of(value, known)]
    if isinstance(node, ast.FormattedValue):
        if isinstance(node.value, ast.Name) and node.value.id in known:
            return [(known[node.value.id],) * 3]
        code = f"{{{ast.unparse(node.value)}}}"
        return [(code, VALUE, f" {' '.join(_words(node.value, known))} ")]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [parts_of(side, known) for side in (node.left, node.right)]
        if any(sides):
            return [part for side in sides for part in side or [("{...}", VALUE, " ")]]
    return None


def _words(node, known):
    """The texts in an expression, and the expression itself if its value is the name of an option."""
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value
        elif isinstance(one, ast.Name) and one.id in known:
            yield known[one.id]
    if DYNAMIC.match(code := ast.unparse(node)):
        yield f"{{{code}}}"


def texts(tree, known):
    """Each text of a module that is a message: (code, template, words)."""

    def is_left_out(node):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return True  # a docstring
        if isinstance(node, ast.Call):
            return ast.unparse(node.func).rpartition(".")[2] in HELP
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            return isinstance(target, ast.Name) and target.id in DOCUMENTED
        return isinstance(node, ast.arg)  # its annotation

    def walk(node):
        if is_left_out(node):
            return
        parts = parts_of(node, known)
        if parts:
            text, template, words = ("".join(column) for column in zip(*parts, strict=True))
            if len(text.split()) >= WORDS_MIN and not text.startswith("#!"):
                yield text, template, words
        if parts is not None:
            return
        for child in ast.iter_child_nodes(node):
            yield from walk(child)

    yield from walk(tree)


# -- the names in a text ----------------------------------------------------------------------------------------------


def _arguments():
    """The names of the arguments of the public API that have a default: they are named as `after=`."""
    calls = [stablelog.connect, stablelog.serve, Client.transaction, Client.read, stablelog.spark.session]
    return {
        name
        for call in calls
        for name, parameter in inspect.signature(call).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty
    }


def _any(names):
    return "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))


_SETTINGS = {setting.name for setting in SETTINGS} | {*TOPIC_SETTINGS, *GROUP_SETTINGS, *security.SETTINGS}
_DISTINCT = {name for name in OPTIONS if re.search(r"[A-Z.]", name)} | {"txnAppId", "checkpointLocation"}
_PLAIN = OPTIONS.keys() - _DISTINCT  # words of English, too
NAMES = [
    re.compile(r"(?<![\w-])--[a-z][a-z-]+"),  # options of commands
    re.compile(r"`stablelog [a-z ]+|pip install [^ ;]+"),
    re.compile(r"\b(?:[A-Z][A-Z0-9]*_)+[A-Z0-9]+\b"),  # environment variables
    re.compile(
        rf"(?<![\w.-])(?:kafka\.)?(?:{_any({name for name in _SETTINGS if '.' in name})})(?![\w.-]\w)"
    ),
    re.compile(r"\bspark\.sql\.[\w.]+|\b[a-z_.]+\(\)|\.mode\(|\bstablelog\.connect\b"),
    re.compile(rf"\b(?:{_any(_arguments())})="),
]
SPARK_NAMES = [
    re.compile(rf"(?<![\w.])(?:{_any(_DISTINCT)})(?!\w)"),
    re.compile(
        rf"\b(?:{_any(_PLAIN)})(?:=| and (?:{_any(_PLAIN)})\b)"
        rf"|\b(?:options?|give|leave out|set|as) (?:the )?(?:{_any(_PLAIN)})\b"
    ),
]
DYNAMIC_NAMES = re.compile(r"\{(?:option|other|self\._named|' and '\.join\(there)[^}]*\}")
ANY_OPTION = re.compile(r"\boption \{[^}]*\}")
_CODES = {code.name.upper() for code in ErrorCode}


def names_in(room, code, words):
    kinds = [*NAMES, DYNAMIC_NAMES, *(SPARK_NAMES if room == "spark" else ())]
    found = [match[0] for kind in kinds for match in kind.finditer(words)]
    return tuple(dict.fromkeys(name for name in found + ANY_OPTION.findall(code) if name not in _CODES))


def every_message():
    """All messages of the rooms with the names that they have."""
    paths = {
        path: ast.parse(path.read_text()) for room in ROOMS for path in sorted((SRC / room).rglob("*.py"))
    }
    known = constants(paths.values())
    for path, tree in paths.items():
        module = ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        for code, template, words in texts(tree, known):
            yield Message(module, code, template, names_in(module.partition(".")[0], code, words))


if __name__ == "__main__":
    listed = [message for message in every_message() if message.names]
    for message in listed:
        print(f"{message.module}: {message.text}\n    {', '.join(message.names)}")
    print(len(listed))
