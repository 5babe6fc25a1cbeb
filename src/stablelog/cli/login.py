"""The security settings of a command: how it connects to the broker, and as which user.

Each setting comes from `-X`; if it is not there, from the file of `--command-config`, then from an environment
variable, then from a profile. A secret is never accepted on the command line, because other users of the machine can
see the command line.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stablelog.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from stablelog.client.core.security import SecuritySettings

ENVIRONMENT_PREFIX: Final = "STABLELOG_"
SPARK_PREFIX: Final = "kafka."
# Names of librdkafka that stablelog takes nowhere, and the names of Kafka's Java clients.
_OF_LIBRDKAFKA: Final = {
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.key.pem": "ssl.keystore.key",
    "ssl.key.location": "ssl.keystore.location",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.certificate.location": "ssl.keystore.location",
}
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANK: Final = (
    " \t\f"  # what Java takes for white space: not the other characters of Unicode, which a password may have
)
_KEY: Final = re.compile(rf"((?:\\.|[^\\=:{_BLANK}])+)[{_BLANK}]*[=:]?[{_BLANK}]*(.*)", re.S)
_LINE_END: Final = re.compile(r"\r\n|\n|\r")


class _Login:
    """The login of the one command that this process runs: its security settings and its client id, for all
    connections.
    """

    given: "SecuritySettings | None" = None
    client_id: str | None = None


def set_login(security: "SecuritySettings | None", client_id: str | None = None) -> None:
    """Set the security settings and the client id for all connections of this process.

    Args:
        security: the security settings; None for a connection without TLS and without a login.
        client_id: the name of the client; None for the default.
    """
    _Login.given, _Login.client_id = security, client_id


def cluster_arguments() -> dict[str, Any]:
    """Return those arguments for a new `Cluster` object that pass the command's security settings and client id."""
    named = {} if _Login.client_id is None else {"client_id": _Login.client_id}
    return {"security": security(), **named}


def security() -> "SecuritySettings":
    """Return the security settings of the command, for the native client."""
    from stablelog.client.core.security import PLAINTEXT

    return _Login.given or PLAINTEXT


def read_security(
    config: Path | None, profile: Mapping[str, str], words: Sequence[str] = ()
) -> "SecuritySettings | None":
    """Read the security settings of a command.

    Args:
        config: the file of `--command-config`; None if there is none.
        profile: the security settings of the profile, a named set of options in a file of the user.
        words: the settings of `-X`, each as "name=value".

    Returns:
        The security settings; None if no security setting is given.

    Raises:
        UsageError: the file cannot be read, or a setting is not valid. The message contains no secret.
    """
    in_file = {} if config is None else _in_config(config)
    has_environment = any(name.startswith(ENVIRONMENT_PREFIX) for name in os.environ)
    if not in_file and not profile and not has_environment and not words:
        return None  # without the import below, which takes long
    from stablelog.client.core.security import read_security_settings

    _refuse_other_names("the profile", profile)
    in_words = _in_words(words)
    given = {**profile, **(_of_environment() if has_environment else {}), **in_file, **in_words}
    return read_security_settings(given) if given else None


def _in_words(words: Sequence[str]) -> dict[str, str]:
    """Parse the security settings of `-X`, and return their values by name.

    Raises:
        UsageError: one of them is a secret. The message does not contain the value.
    """
    from stablelog.client.core.security import SECRETS

    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError("-X takes one setting: write name=value")
        _refuse_other_names("-X", (name,))
        if name in SECRETS:
            raise UsageError(
                f"-X {name} is a secret, and other users of the machine can see the words of a command: write it into a "
                "file of settings, or into the environment"
            )
        found[name] = value.strip()
    return found


def _refuse_other_names(where: str, names: Iterable[str]) -> None:
    """Refuse settings by librdkafka's names, if Kafka's Java clients name them in another way. `where` says in messages
    where the names are from.

    Raises:
        UsageError: a name is one of librdkafka's.
    """
    from stablelog.client.core.security import ALIASES

    kafka = {**ALIASES, **_OF_LIBRDKAFKA}
    for name in names:
        if name in kafka:
            raise UsageError(f"{where}: {name} is a name of librdkafka; Kafka's name is {kafka[name]}")


def variable_of(name: str) -> str:
    """Return the name of the environment variable for a security setting."""
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "_")


def _of_environment() -> dict[str, str]:
    from stablelog.client.core.security import ALIASES, PREFIXES, SETTINGS, TOKEN_FUNCTION

    variables = {variable_of(name): name for name in (*SETTINGS, *ALIASES) if name != TOKEN_FUNCTION}
    beginnings = tuple(map(variable_of, PREFIXES))
    for given in os.environ:
        if given.startswith(beginnings) and given not in variables:
            hint = did_you_mean(given, variables) or "; docs/reference/client.md lists the settings"
            raise UsageError(f"the environment variable {given} is not that of a security setting{hint}")
    return {name: value for variable, name in variables.items() if (value := os.environ.get(variable))}


def _in_config(path: Path) -> dict[str, str]:
    """Read a file of settings of Kafka's clients. Return its security settings by name, and ignore all others."""
    from stablelog.client.core.security import PREFIXES

    found = read_client_properties(path)
    # A name that has the prefix of Spark, or upper case letters, would otherwise be left out: the command would connect
    # without TLS.
    return {
        name: value
        for name, value in found.items()
        if name.lower().removeprefix(SPARK_PREFIX).startswith(PREFIXES)
    }


def read_client_properties(path: Path) -> dict[str, str]:
    r"""Read a file in the form of Java's properties: `name=value`, comments after # or !, a backslash at the end of a line
    that continues, and the escapes `\t`, `\n`, `\r`, `\f` and `\uXXXX`.

    Raises:
        UsageError: the file cannot be read, or is not such a file. The message quotes no line, which may be a secret.
    """
    try:
        text = path.expanduser().read_bytes().decode("utf-8-sig")  # Windows writes a mark at the beginning
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text file: write name=value on each line") from None
    found = {}
    for number, line in _logical_lines(text):
        match = _KEY.fullmatch(line)
        if match is None:
            raise UsageError(f"{path}, line {number}: write name=value")
        found[_unescaped(match[1])] = _unescaped(match[2])
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file of properties that have a setting. If a backslash at the end of a line continues a
    setting on the next line, both are yielded as one line.

    Yields:
        The number of the first line of each setting, and the text of the setting.
    """
    begun, first = "", 0
    for number, line in enumerate(_LINE_END.split(text), 1):
        line = line.lstrip(_BLANK)
        if not begun and (not line or line[0] in "#!"):
            continue
        first = first if begun else number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            begun += line[:-1]
            continue
        yield first, begun + line
        begun = ""
    if begun:
        yield first, begun


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return _ESCAPED.get(match[2], match[2])

    return re.sub(r"\\(?:u([0-9A-Fa-f]{4})|(.))", one, text, flags=re.S)
