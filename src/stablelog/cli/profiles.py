"""Profiles: named sets of options in the file `stablelog/profiles.toml` of the user's configuration directory.

The file has a table for each profile. docs/reference/commands.md describes the keys.
"""

import os
from pathlib import Path
from typing import Any, Final, NamedTuple

from stablelog.errors import UsageError, did_you_mean

KEYS: Final = ("bootstrap", "timeout", "command-config", "settings")


class Profile(NamedTuple):
    """The values of a profile. A key that the profile does not have is None.

    Attributes:
        bootstrap: the addresses of the brokers.
        timeout_s: how long a command waits for a broker.
        command_config: a file of security settings.
        settings: settings of Kafka's clients, such as those of TLS and SASL; empty if there are none.
    """

    bootstrap: list[str] | None
    timeout_s: float | None
    command_config: Path | None
    settings: dict[str, str]

    def __repr__(self) -> str:
        return f"Profile({self.bootstrap}, {self.timeout_s}, {self.command_config}, {sorted(self.settings)})"


def profiles_path() -> Path:
    """Return the path of the file with the profiles."""
    directory = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(directory) / "stablelog" / "profiles.toml"


def read_profile(name: str, *, needs_bootstrap: bool) -> Profile:
    """Read a profile from the file.

    Args:
        name: the name of the profile.
        needs_bootstrap: whether the profile must have the address of the broker, because no option gives it.

    Raises:
        UsageError: the file, the profile or a key that is needed does not exist, or a value is not valid.
    """
    path = profiles_path()
    profiles = _read(path, name)
    if name not in profiles:
        raise UsageError(f"there is no profile {name!r} in {path}{did_you_mean(name, profiles)}")
    profile = profiles[name]
    where = f"profile {name!r} in {path}"
    if not isinstance(profile, dict):
        raise UsageError(f"{where} is not a table: write [{name}], and one key = value on each line")
    for key in profile:
        if key not in KEYS:
            raise UsageError(f"{where} has the unknown key {key!r}{did_you_mean(key, KEYS)}")
    if needs_bootstrap and "bootstrap" not in profile:
        raise UsageError(f'{where} has no key bootstrap: write bootstrap = "host:port"')
    return Profile(
        _addresses(profile, where),
        _timeout_s(profile, where),
        _command_config(profile, where),
        _settings(profile, where),
    )


def _read(path: Path, name: str) -> dict[str, Any]:
    import tomllib  # imported here, because few commands name a profile

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no profile {name!r}: {path} does not exist") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # neither UTF-8 nor TOML
        raise UsageError(f"{path} is not a TOML file: {error}") from error


def _addresses(profile: dict[str, Any], where: str) -> list[str] | None:
    value = profile.get("bootstrap")
    addresses = [value] if isinstance(value, str) else value
    if addresses is None:
        return None
    if (
        not isinstance(addresses, list)
        or not addresses
        or not all(isinstance(one, str) and one for one in addresses)
    ):
        raise UsageError(f'bootstrap of {where} is not valid: write "host:port", or a list of these')
    return addresses


def _timeout_s(profile: dict[str, Any], where: str) -> float | None:
    value = profile.get("timeout")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise UsageError(f"timeout of {where} is not valid: write a number of seconds")
    return float(value)


def _command_config(profile: dict[str, Any], where: str) -> Path | None:
    value = profile.get("command-config")
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise UsageError(f"command-config of {where} is not valid: write the path of a file")
    return Path(value).expanduser()


def _settings(profile: dict[str, Any], where: str) -> dict[str, str]:
    value = profile.get("settings", {})
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise UsageError(
            f'settings of {where} are not valid: write a table with security settings, such as "security.protocol" = "SSL". '
            "The names are in quotation marks"
        )
    return value
