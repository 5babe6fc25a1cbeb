"""Conversion of a message between versions, field by field.

Handlers get and return only the newest version of a message. A field that the old version lacks gets the default of the
schema. A field that the new version lacks is left out. For each pair of message classes a conversion function is built
once and cached.
"""

import dataclasses
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any

from kio.schema.errors import ErrorCode

Convert = Callable[[Any], Any]


def adapt(value: Any, target: type) -> Any:
    """Convert a message to another version of the same message, whose class is `target`."""
    source: type = type(value)
    return value if source is target else _plan(source, target)(value)


@cache
def _arrays(message: type) -> tuple[tuple[str, bool, bool], ...]:
    """List the array fields of a message.

    Returns:
        For each array its name, whether it may be null, and whether its items are messages.
    """
    return tuple(
        (field.name, _is_optional(field.type), entity_in(field.type) is not None)
        for field in dataclasses.fields(message)
        if typing.get_origin(required(field.type)) is tuple
    )


def refuse_nulls(message: Any) -> None:
    """Refuse a message that has null in a field that must not be null. The message library kio, which has read the
    message, does not refuse these nulls.

    Raises:
        ValueError: such a field is null. The message of the error names the field.
    """
    message_type: Any = type(message)
    for name, optional, nested in _arrays(message_type):
        content = getattr(message, name)
        if content is None:
            if not optional:
                raise ValueError(f"the field {name} is null, which is not allowed")
        elif nested:
            for item in content:
                refuse_nulls(item)


@cache
def _plan(source: type, target: type) -> Convert:
    """Build the plan of a conversion: a function that converts messages of class `source` to class `target`, another
    version of the same message. Return this function.
    """
    have = {field.name: field for field in dataclasses.fields(source)}
    copied: list[tuple[str, Convert | None]] = []
    filled: dict[str, Any] = {}
    for field in dataclasses.fields(target):
        if field.name in have:
            copied.append((field.name, _field_plan(have[field.name].type, field.type)))
        elif field.default is dataclasses.MISSING:
            filled[field.name] = implicit_default(field.type)

    def convert(value: Any) -> Any:
        values = dict(filled)
        for name, nested in copied:
            content = getattr(value, name)
            values[name] = content if nested is None else nested(content)
        return target(**values)

    return convert


def _field_plan(source: Any, target: Any) -> Convert | None:
    """Build the function that converts the content of one field between two versions of a message. `source` and
    `target` are the types of the field in these versions.

    Returns:
        The function; None if the content stays the same.
    """
    source_entity, target_entity = entity_in(source), entity_in(target)
    nested: Convert | None = None
    if source_entity is not None and target_entity is not None and source_entity is not target_entity:
        one = _plan(source_entity, target_entity)
        is_tuple = typing.get_origin(required(target)) is tuple
        nested = (lambda values: tuple([one(value) for value in values])) if is_tuple else one
    if not _is_optional(source):
        return nested
    # If the target's field cannot be null, null becomes the field's implicit default.
    null = implicit_default(target)
    if nested is None and null is None:
        return None
    return lambda content: null if content is None else content if nested is None else nested(content)


def required(annotation: Any) -> Any:
    """Return a field's type annotation without `| None`."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return next(part for part in typing.get_args(annotation) if part is not type(None))
    return annotation


def _is_optional(annotation: Any) -> bool:
    return required(annotation) is not annotation


def entity_in(annotation: Any) -> type | None:
    """Return the message class that a field contains, alone or in a tuple; None if it contains none."""
    annotation = required(annotation)
    if typing.get_origin(annotation) is tuple:
        annotation = typing.get_args(annotation)[0]
    return annotation if isinstance(annotation, type) and dataclasses.is_dataclass(annotation) else None


def implicit_default(annotation: Any) -> Any:
    """Return the value that a field gets if the schema has no default for it: empty, null or zero, depending on its
    type.
    """
    if _is_optional(annotation):
        return None
    if typing.get_origin(annotation) is tuple:
        return ()
    if annotation is bool:
        return False
    if annotation is ErrorCode:
        return ErrorCode.none
    entity = entity_in(annotation)
    if entity is not None:
        return entity(
            **{
                f.name: implicit_default(f.type)
                for f in dataclasses.fields(entity)
                if f.default is dataclasses.MISSING
            }
        )
    from kio.serial._implicit_defaults import get_implicit_default

    return get_implicit_default(annotation)
