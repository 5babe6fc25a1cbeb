"""Values of the setting `sasl.jaas.config`: a login module with its options, in the language of JAAS.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b" user_alice="c";

Kafka's settings have this form, which operators know. Of the module's class name, only the last part is compared.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from stablelog.wire.sasl import OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512

USER_PREFIX: Final = "user_"
# For each mechanism, the last part of the name of its login module.
MODULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        PLAIN: "PlainLoginModule",
        SCRAM_SHA_256: "ScramLoginModule",
        SCRAM_SHA_512: "ScramLoginModule",
        OAUTHBEARER: "OAuthBearerLoginModule",
    }
)
FLAGS: Final = ("required", "requisite", "sufficient", "optional")

_SKIPPED = re.compile(r"(?:\s|//[^\r\n]*|/\*.*?\*/)*", re.S)  # white space and comments
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_TOKEN = re.compile(
    rf"""(?:(?P<quoted>{_QUOTED}|'(?:[^'\\]|\\.)*')|(?P<sign>[=;])|(?P<word>[^\s="';]+))""", re.S
)
# The escapes in quotation marks, which are those of java.io.StreamTokenizer. Any other character stands for itself.
_ESCAPE = re.compile(r"\\(?:([0-3][0-7]{0,2}|[4-7][0-7]?)|(.))", re.S)
_CONTROLS: Final[Mapping[str, str]] = MappingProxyType(
    {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
)


class Jaas(NamedTuple):
    """A login module with its options.

    Attributes:
        module: the last part of its class name, such as `PlainLoginModule`.
        options: its options by name.
    """

    module: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Jaas({self.module!r}, {sorted(self.options)})"

    @property
    def users(self) -> dict[str, str]:
        """The passwords of the users that the options `user_<name>` declare, by user name."""
        return {
            name.removeprefix(USER_PREFIX): password
            for name, password in self.options.items()
            if name.startswith(USER_PREFIX)
        }


def parse_jaas(text: str) -> Jaas:
    """Parse the value of the setting `sasl.jaas.config`: a login module with its options.

    Raises:
        ValueError: the text is not one login module. The message quotes no value of an option.
    """
    words = _words(text)
    texts, signs = [word for word, _ in words], [word if is_sign else "" for word, is_sign in words]
    end = len(words) - 1
    if end < 2 or signs[end] != ";" or ";" in signs[:end] or any(signs[:2]):
        raise ValueError(
            "the text is not one login module: write its class name, a flag, its options and a semicolon at the end"
        )
    if texts[1].lower() not in FLAGS:
        raise ValueError(f"the flag after the login module must be one of {', '.join(FLAGS)}")
    if signs[2:end] != ["", "=", ""] * ((end - 2) // 3):
        raise ValueError('an option of the login module is not written as name="value"')
    rest = texts[2:end]
    names, values = rest[0::3], rest[2::3]
    if len(set(names)) != len(names):
        raise ValueError(f"option {next(name for name in names if names.count(name) > 1)} is given twice")
    if "" in (name.removeprefix(USER_PREFIX) for name in names):
        raise ValueError(f"the name of an option ends after {USER_PREFIX}: write the name of a user there")
    if any(not value for name, value in zip(names, values, strict=True) if name.startswith(USER_PREFIX)):
        raise ValueError("the password of a user is empty")
    return Jaas(texts[0].rpartition(".")[2], MappingProxyType(dict(zip(names, values, strict=True))))


def _words(text: str) -> list[tuple[str, bool]]:
    """Split a text into words.

    Returns:
        A pair for each word: its text, and whether it is one of the signs `=` and `;`.
    """
    words, at = [], 0
    while (at := _end_of(_SKIPPED.match(text, at))) < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError("a quotation mark is missing")
        quoted = found["quoted"]
        word = _ESCAPE.sub(_unescaped, quoted[1:-1]) if quoted is not None else found["word"]
        words.append((found["sign"] or word, found["sign"] is not None))
        at = found.end()
    return words


def _end_of(found: re.Match[str] | None) -> int:
    assert found is not None, "the pattern matches the empty text"
    return found.end()


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 8)) if match[1] else _CONTROLS.get(match[2], match[2])


def check_module(mechanism: str, jaas: Jaas) -> Jaas:
    """Check that a login module belongs to a SASL mechanism, and return it.

    Raises:
        ValueError: the login module belongs to another mechanism.
    """
    if jaas.module != MODULES[mechanism]:
        raise ValueError(f"the login module of {mechanism} is {MODULES[mechanism]}, not {jaas.module}")
    return jaas
