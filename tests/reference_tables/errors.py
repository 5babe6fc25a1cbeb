"""The table of the classes of errors that `stablelog` exports, from their docstrings."""

import inspect
from collections.abc import Iterator

import stablelog
from stablelog.errors import StablelogError
from tests.public_api import sentence
from tests.reference_tables import table

TO_DO = "What to do: "


def paragraphs(kind: type) -> list[str]:
    """The paragraphs of a docstring, each as one line."""
    return [" ".join(one.split()) for one in (inspect.getdoc(kind) or "").split("\n\n")]


def rows() -> Iterator[tuple[str, str, str, str]]:
    """The public classes, each behind its base: name, bases, meaning, what to do."""
    public = [thing for name in stablelog.__all__ if isinstance(thing := getattr(stablelog, name), type)]
    kinds = [one for one in public if issubclass(one, StablelogError)]
    for kind in sorted(kinds, key=lambda one: [base.__name__ for base in reversed(one.__mro__)]):
        _, *others = paragraphs(kind)
        to_do = next((one.removeprefix(TO_DO) for one in others if one.startswith(TO_DO)), "")
        bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__ if base in kinds)
        yield f"`{kind.__name__}`", bases, sentence(kind), to_do[:1].upper() + to_do[1:]


def tables() -> dict[str, str]:
    return {"errors": table(("class", "subclass of", "meaning", "what to do"), rows())}
