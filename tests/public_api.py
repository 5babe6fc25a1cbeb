"""The public names of stablelog as a page: `python -m tests.public_api` draws docs/reference/api.md.

`python -m tests.public_api --released` also notes the names in tests/public_api_released.txt, which is for a release.
"""

import dataclasses
import enum
import functools
import inspect
import re
import sys
import textwrap

import stablelog
import stablelog.admin
import stablelog.aio
import stablelog.spark
import stablelog.testing.faults
import stablelog.testing.faulty_broker
from tests.commands import ROOT

PAGE, RELEASED = ROOT / "docs" / "reference" / "api.md", ROOT / "tests" / "public_api_released.txt"
MODULES = {
    "stablelog": "",
    "stablelog.admin": "The types of administration. The calls are those of `Admin`, the type of `client.admin`.",
    "stablelog.aio": "The client for asyncio. What is as in a blocking class uses the types of this module: "
    "`AsyncReader` for `Reader`.",
    "stablelog.spark": "See [Spark options](spark-options.md) for the options of reads and writes.",
    "stablelog.testing.faults": "See [the faults](../guides/tests.md#faults) for what each does.",
    "stablelog.testing.faulty_broker": "",
}
MODULES_AND_VERSION = {"admin", "aio", "spark", "__version__"}
# Classes whose calls another page explains.
EXPLAINED = (
    stablelog.admin.Admin,
    stablelog.testing.faults.Fault,
    stablelog.testing.faults.Faults,
    stablelog.testing.faulty_broker.FaultyBroker,
)
# What a class has for other modules of stablelog.
INTERNAL = {"add_happened", "hold_request", "take_fault", "take_request"}
# The areas of administration by their names.
AREAS = {
    type(admin): {name: area for name, area in vars(admin).items() if not name.startswith("_")}
    for admin in (stablelog.connect("localhost:1").admin, stablelog.aio.connect("localhost:1").admin)
}
WIDTH = 100
HEAD = """# The Python API

All public names, drawn from the code by `python -m tests.public_api`. What is not on this page may change without
notice. [The native client](client.md) and [the pytest plugin](../guides/tests.md) explain how to use them,
[administration](admin.md) what each call of `Admin` does, and [errors](errors.md) what each error means.
"""


def short(annotation):
    """An annotation without the modules of its names."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])", "", text).replace("NoneType", "None").replace("'", '"')


def signature(function, *, bound):
    """The arguments of a function as one line, and its result."""
    found = inspect.signature(function)
    arguments = [one.replace(annotation=one.empty) for one in found.parameters.values()]
    words, kinds = [], [one.kind for one in arguments]
    for one, full in zip(arguments, found.parameters.values(), strict=True):
        if bound and not words and one is arguments[0]:
            continue
        star = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        if one.kind is one.KEYWORD_ONLY and "*" not in words and one.VAR_POSITIONAL not in kinds:
            words.append("*")
        default = "" if one.default is one.empty else f" = {shown(one.default)}"
        words.append(f"{star}{one.name}: {short(full.annotation)}{default}")
    return words, short(found.return_annotation)


def shown(default):
    """A default as it is written in a program."""
    return str(default) if isinstance(default, enum.Enum) else repr(default).replace("'", '"')


def sentence(thing):
    """The first sentence of a docstring."""
    text = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`])", text)[0]


def function(name, thing, *, bound=False):
    """A function as a line."""
    words, result = signature(thing, bound=bound)
    return f"{'async ' if inspect.iscoroutinefunction(thing) else ''}def {name}({', '.join(words)}) -> {result}: ..."


def fields(kind):
    """The fields of a tuple or a dataclass, and the members of an enumeration: name and line."""
    if issubclass(kind, enum.Enum):
        return {one.name: f"{one.name} = {one.value!r}" for one in kind}
    if issubclass(kind, tuple):
        return {name: f"{name}: {short(kind.__annotations__[name])}" for name in kind._fields}
    if dataclasses.is_dataclass(kind):
        of = [one for one in dataclasses.fields(kind) if not one.name.startswith("_")]
        return {one.name: f"{one.name}: {short(one.type)}" for one in of}
    return {}


def members(kind):
    """The other public members of a class: name, line and sentence."""
    own = fields(kind)
    yield from ((name, line, "") for name, line in own.items())
    found = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("stablelog"):
            found |= {name: thing for name, thing in vars(base).items() if not name.startswith("_")}
    attributes = re.search(r"^Attributes:\n((?:    .*\n?)+)", inspect.getdoc(kind) or "", re.M)
    described = dict(re.findall(r"^    (\w+): (.*)$", attributes[1], re.M)) if attributes else {}
    for name in sorted({*found, *described} - own.keys() - INTERNAL):
        thing = found.get(name)
        if inspect.isfunction(thing):
            yield name, function(name, thing, bound=True), sentence(thing)
        elif isinstance(thing, classmethod):
            yield (
                name,
                f"@classmethod\n{function(name, thing.__func__, bound=True)}",
                sentence(thing.__func__),
            )
        elif isinstance(thing, property | functools.cached_property):
            getter = thing.fget if isinstance(thing, property) else thing.func
            yield name, f"{name}: {short(inspect.signature(getter).return_annotation)}", sentence(getter)
        elif name in AREAS.get(kind, ()):
            area = AREAS[kind][name]
            yield name, f"# {name}: {sentence(area)}", ""
            for call, line, said in members(type(area)):
                yield f"{name}.{call}", line.replace(f"def {call}(", f"def {name}.{call}("), said
        elif name in described:
            yield name, f"{name}: Any", described[name]


def names():
    """The public names of each module: the full name, the line and the sentence of each, and those of its members."""
    for module_name in MODULES:
        module = sys.modules[module_name]
        for name in sorted({*module.__all__} - MODULES_AND_VERSION):
            thing, full = getattr(module, name), f"{module_name}.{name}"
            if inspect.isclass(thing):
                bases = ", ".join(
                    one.__name__ for one in thing.__bases__ if one.__module__ == "stablelog.errors"
                )
                line = f"class {name}{f'({bases})' if bases else ''}:"
                yield full, line, sentence(thing), [*members(thing)]
            else:
                yield full, function(name, thing), sentence(thing), []


def surface():
    """A line for each public name, without sentences: what a program depends on. It has no comments."""
    for full, line, _, inner in names():
        yield f"{full} | {line}"
        yield from (
            f"{full}.{name} | {of}".replace("\n", " ") for name, of, _ in inner if not of.startswith("#")
        )


def unnamed(released, now, changelog):
    """The names that have changed since the release, and that the first section of the changelog does not name.

    A name is named by its last part in backticks. The members of a class that has come or gone need no name of their own.
    """
    section = changelog.split("\n## ")[1]
    quoted = " ".join(re.findall(r"`[^`]+`", section))
    changed = {line.partition(" | ")[0] for line in {*released} ^ {*now}}
    return sorted(
        full
        for full in changed
        if full.rpartition(".")[0] not in changed
        and not re.search(rf"\b{re.escape(full.rpartition('.')[2])}\b", quoted)
    )


def folded(line):
    """A line of code; a long one has a line for each argument."""
    if len(line) <= WIDTH or "(" not in line:
        return line
    head, _, rest = line.partition("(")
    inner, _, result = rest.rpartition(")")
    arguments = re.split(r", (?=\*?\*?\w*:|\*,|\*$)", inner)
    return "\n".join([f"{head}(", *(f"    {one}," for one in arguments), f"){result}"])


def without_repeats(full, inner, before):
    """The members of a class without those of another one: of an equal class, or of the class of blocking calls.

    `before` has the members of each class that the page has shown before. A line names what is left out.
    """
    for name, of in before.items():
        if len(inner) > 1 and of == inner:
            return [("", "...", f"The members of `{name}`.")]
    names_before = [f"{module}.{full.partition('.aio.Async')[2]}" for module in MODULES]
    found = next((name for name in names_before if name in before), None)
    if found is None:
        return inner
    same = {(line, said) for _, line, said in before[found]}
    alike = {name: line for name, line, said in inner if (re.sub("async |Async", "", line), said) in same}
    coroutines = [name for name, line in alike.items() if line.startswith("async ")]
    others = [name for name, line in alike.items() if not line.startswith(("async ", "#"))]
    if coroutines and len(alike) == len(inner) and not others:
        return [("", "...", f"The calls of `{found}`, as coroutines.")]
    kinds = ((coroutines, f"Coroutines, else as in `{found}`"), (others, f"As in `{found}`"))
    lines = [("", "", f"{words}: {', '.join(f'`{name}`' for name in of)}.") for of, words in kinds if of]
    return lines + [one for one in inner if one[0] not in alike]


def page():
    """The text of docs/reference/api.md."""
    text, module, before = HEAD, "", {}
    for full, line, said, inner in names():
        if full.rpartition(".")[0] != module:
            module = full.rpartition(".")[0]
            text += f"\n## {module}\n" + (f"\n{MODULES[module]}\n" if MODULES[module] else "")
        thing = getattr(sys.modules[module], full.rpartition(".")[2])
        if inspect.isclass(thing) and issubclass(thing, stablelog.StablelogError):
            said = ""
        about = f"{textwrap.fill(said, 120)}\n\n" if said else ""
        text += f"\n### {full}\n\n{about}```python\n{folded(line)}\n"
        body = "".join(
            "\n".join([*(f"# {one}" for one in textwrap.wrap(about, WIDTH)), *([folded(of)] if of else [])])
            + "\n"
            for _, of, about in (
                [(name, of, "") for name, of, _ in inner]
                if thing in EXPLAINED
                else without_repeats(full, inner, before)
            )
        )
        text += (
            textwrap.indent(body or ("..." if line.endswith(":") else ""), "    ").rstrip("\n")
            + ("\n" if line.endswith(":") else "")
            + "```\n"
        )
        before[full] = inner
    return text


def main():
    """Draw the page."""
    PAGE.write_text(page())
    if "--released" in sys.argv:
        RELEASED.write_text("\n".join(surface()) + "\n")


if __name__ == "__main__":
    main()
