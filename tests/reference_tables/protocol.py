"""The tables of the APIs: versions, error codes, and the messages of the APIs that Kafka does not have."""

import dataclasses
import inspect
import re
import sys
import typing
from collections import defaultdict
from collections.abc import Iterator

from stablelog.wire.api import ApiKey
from stablelog.wire.message_classes import EXTENSION_MODULES
from stablelog.wire.messages import message_class
from tests.declared_apis import APIS, CODES, WHILE_FULL
from tests.reference_tables import table

# What the fields of each response mean that the tables leave out.
OF_EACH = {"error_code": "", "error_message": "the error as text; null without an error."}
DESCRIBED = re.compile(r"^    (\w[\w, ]*): (.*(?:\n     .*)*)", re.M)


def _code(code, storage_error_since: int = 0) -> str:
    if code is None:
        return "served"
    before = f"; before v{storage_error_since} NOT_LEADER_OR_FOLLOWER" if storage_error_since else ""
    return code.name.upper() + before


def _partition_codes() -> Iterator[tuple[str, ...]]:
    """The codes, and the APIs that have them."""
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for api, codes in CODES.items():
        unknown = [code.name.upper() for code in (codes.unknown, codes.unknown_id) if code is not None]
        offline = _code(codes.offline, codes.storage_error_since)
        found[_code(codes.opening), offline, ", ".join(unknown)].append(api.replace(", ", " with "))
    return ((", ".join(names), *codes) for codes, names in found.items())


def _while_full() -> Iterator[tuple[str, ...]]:
    """The codes and exceptions, and the APIs that have them."""
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for api, one in WHILE_FULL.items():
        half = "Refused only when half of the reserve is used." if one.is_served_from_half else ""
        found[one.code.name.upper(), f"{half} {one.exception}".strip()].append(api)
    return ((", ".join(names), *codes) for codes, names in found.items())


def _descriptions(kind: type) -> dict[str, str]:
    """What the docstring of a message says of its fields."""
    _, _, text = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    return {
        name: " ".join(said.split()) for names, said in DESCRIBED.findall(text) for name in names.split(", ")
    }


def _type(field: dataclasses.Field, hint: object) -> str:
    kind = str(field.metadata.get("kafka_type", "")).replace("error_code", "int16")
    if typing.get_origin(hint) is tuple:
        return f"array of {kind}" if kind else "array"
    return f"{kind}, null" if type(None) in typing.get_args(hint) and kind == "string" else kind


def _fields(kind: type, seen: set[type]) -> Iterator[tuple[str, str, str]]:
    """The fields of a message: names, type, meaning. A structure that the table has described is not described again.

    Fields that follow each other and have one meaning are in one row.
    """
    described, hints = _descriptions(kind), typing.get_type_hints(kind, vars(sys.modules[kind.__module__]))
    rows: list[tuple[list[str], list[str], str]] = []
    for field in dataclasses.fields(kind):
        if described.get(field.name, "") == OF_EACH.get(field.name):
            continue
        hint, meaning = hints[field.name], described.get(field.name, "")
        if rows and meaning == rows[-1][2]:
            rows[-1][0].append(field.name)
            rows[-1][1].append(_type(field, hint))
        else:
            rows.append(([field.name], [_type(field, hint)], meaning))
        inner = [one for one in typing.get_args(hint) if dataclasses.is_dataclass(one)]
        if inner and inner[0] not in seen:
            seen.add(inner[0])
            yield from map(_row, rows)
            rows.clear()
            yield from ((f"{field.name}[]: {names}", *rest) for names, *rest in _fields(inner[0], seen))
    yield from map(_row, rows)


def _row(row: tuple[list[str], list[str], str]) -> tuple[str, str, str]:
    names, types, meaning = row
    kinds = types[:1] if len(set(types)) == 1 else types
    return ", ".join(names), "; ".join(kinds), meaning[:1].upper() + meaning[1:]


def _messages(*keys: ApiKey) -> Iterator[tuple[str, str, str, str]]:
    seen: set[type] = set()
    for key in keys:
        for side in ("request", "response"):
            kind = message_class(key, 0, side)
            for number, row in enumerate(_fields(kind, seen)):
                yield ("" if number else kind.__name__, *row)


def tables() -> dict[str, str]:
    of_apis = (
        (int(key), ApiKey(key).message_name, f"{versions[0]}-{versions[-1]}")
        for key, api in APIS.items()
        if (versions := api.served_versions)
    )
    head = ("message", "field", "type", "meaning")
    joint = [key for key in EXTENSION_MODULES if "Joint" in ApiKey(key).message_name]
    return {
        "apis": table(("key", "API", "versions"), of_apis),
        "partition-codes": table(("API", "opening", "offline", "unknown"), _partition_codes()),
        "full-disk-codes": table(("API", "code", "exceptions"), _while_full()),
        "joint-messages": table(head, _messages(*map(ApiKey, joint))),
        "cut-messages": table(head, _messages(ApiKey.DESCRIBE_CUT)),
        "commits-messages": table(head, _messages(ApiKey.DESCRIBE_COMMITS)),
    }
