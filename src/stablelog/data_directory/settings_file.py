"""The file `broker.json` with the dynamic settings, which AlterConfigs and IncrementalAlterConfigs requests have
changed.

It is a registered file: `meta.properties` says that it exists, so that its loss is noticed. Without that, after a loss
of the file, the settings of the command line would apply again, and retention could delete data that the dynamic
settings protect.

Format: docs/reference/formats.md, "broker.json".
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from stablelog.data_directory.registered_file import SETTINGS, decode_json, encode_json

SETTINGS_VERSION: Final = SETTINGS.version
# Version 2 adds the settings of all brokers of the cluster, version 3 those of consumer groups. A file without such
# settings has the least version that can hold its content, so that earlier releases can read it.
VERSION_WITHOUT_DEFAULTS: Final = 1
VERSION_WITHOUT_GROUPS: Final = 2
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
GroupConfigs = Mapping[str, Mapping[str, str]]
NO_GROUPS: Final[GroupConfigs] = MappingProxyType({})
SETTINGS_FILE: Final = SETTINGS.name
META_LINE: Final = SETTINGS.meta_line


class Dynamic(NamedTuple):
    """The dynamic settings in `broker.json`.

    Attributes:
        settings: those of this broker.
        defaults: those of all brokers of the cluster.
        groups: those of single consumer groups, by the name of the group.
    """

    settings: dict[str, str]
    defaults: dict[str, str]
    groups: GroupConfigs = NO_GROUPS


def encode_settings(
    settings: Mapping[str, str], defaults: Mapping[str, str] = NOTHING, groups: GroupConfigs = NO_GROUPS
) -> bytes:
    """Encode the content of `broker.json`: the dynamic settings of this broker, of all brokers, and of consumer groups."""
    members: dict[str, object] = {"settings": dict(settings)}
    version = VERSION_WITHOUT_DEFAULTS
    if defaults or groups:
        version, members["defaults"] = VERSION_WITHOUT_GROUPS, dict(defaults)
    if groups:
        version = SETTINGS_VERSION
        members["groups"] = {group: dict(configs) for group, configs in groups.items()}
    return encode_json(version, members)


def decode_settings(content: bytes) -> Dynamic:
    """Decode the content of `broker.json`.

    Raises:
        UnknownFormatError: a later release has written the file.
        DamageError: the file is damaged.
    """
    return decode_json(SETTINGS, content, _read)


def _read(version: int, members: Mapping[str, Any]) -> Dynamic:
    defaults = {} if version == VERSION_WITHOUT_DEFAULTS else members["defaults"]
    groups = members["groups"] if version > VERSION_WITHOUT_GROUPS else {}
    own = {str(group): _as_text(configs) for group, configs in groups.items()}
    return Dynamic(_as_text(members["settings"]), _as_text(defaults), own)


def _as_text(values: Mapping[object, object]) -> dict[str, str]:
    return {str(name): str(value) for name, value in values.items()}
