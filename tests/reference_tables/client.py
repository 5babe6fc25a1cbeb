"""The tables of the settings of the native client, and of the methods of administration."""

import inspect
import json
from collections.abc import Iterator

from stablelog.admin import Mechanism
from stablelog.client.blocking import admin
from stablelog.client.core.security import SETTINGS
from stablelog.client.core.settings import MEANINGS, READERS, ClientSettings
from tests.public_api import AREAS, sentence
from tests.reference_tables import table


def _defaults() -> dict[str, object]:
    """The defaults of the settings by Kafka's names."""
    given = ClientSettings()
    first_s, longest_s = given.backoff_s
    return {
        "client.id": f"`{given.client_id}`",
        "compression.type": f"`{given.compression.name.lower()}`",
        "default.api.timeout.ms": round(given.deadline_s * 1000),
        "request.timeout.ms": round(given.timeout_s * 1000),
        "retry.backoff.ms": round(first_s * 1000),
        "retry.backoff.max.ms": round(longest_s * 1000),
    }


def default_in_words(default: object) -> str:
    """A default as a program writes it."""
    if isinstance(default, Mechanism):
        return str(default)
    return json.dumps(default) if isinstance(default, str) else repr(default)


def _methods() -> Iterator[tuple[str, str]]:
    areas = next(areas for kind, areas in AREAS.items() if kind is admin.Admin)
    for area_name, area in areas.items():
        for name, method in vars(type(area)).items():
            if name.startswith("_") or not inspect.isfunction(method):
                continue
            _self, *parameters = inspect.signature(method).parameters.values()
            shown = ", ".join(
                one.name if one.default is one.empty else f"{one.name}={default_in_words(one.default)}"
                for one in parameters
            )
            yield f"`{area_name}.{name}({shown})`", sentence(method)


def tables() -> dict[str, str]:
    defaults = _defaults()
    own = ((f"`{name}`", defaults[name], MEANINGS[name]) for name in READERS)
    security = ((f"`{name}`", meaning) for name, meaning in SETTINGS.items())
    return {
        "client-settings": table(("setting", "default", "meaning"), own),
        "client-security-settings": table(("setting", "meaning"), security),
        "admin-methods": table(("method", "what it does"), _methods()),
    }
