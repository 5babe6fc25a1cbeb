"""Settings of Kafka's Java clients that commands accept by `-X` and from a profile. Security settings are in
`cli.login`.

A command accepts only settings that have an effect on it. If the user gives both a setting and an option of the command
that means the same, the option counts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from stablelog.errors import UsageError, did_you_mean

Kind = Literal["", "produce", "consume"]
EVERY: Final[tuple[Kind, ...]] = ("", "produce", "consume")
INT_MAX: Final = 2**31 - 1


class ClientSetting(NamedTuple):
    """A setting of Kafka's Java clients.

    Attributes:
        kinds: the commands on which it has an effect: "produce", "consume", or "" for all other commands with a broker.
        read: a function that gets the name and the text of the setting, and returns the value; it raises UsageError if
            the text is not valid.
        meaning: a description of the setting for users (docs/reference/commands.md).
    """

    kinds: tuple[Kind, ...]
    read: Callable[[str, str], Any]
    meaning: str


def _of_client(name: str, text: str) -> Any:
    """Convert the text of a setting that `stablelog.connect` also has to the value that `stablelog.connect` uses."""
    from stablelog.client.core.settings import READERS

    return READERS[name](name, text)


def _number(least: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        number = int(text) if text.isascii() and text.isdecimal() else -1
        if not least <= number <= INT_MAX:
            raise UsageError(f"{name}={text} is not valid: a number from {least} to {INT_MAX}")
        return number

    return read


def _one_of(*known: str) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        if text not in known:
            raise UsageError(f"{name}={text} is not valid: one of {', '.join(known)}")
        return text

    return read


def _text(name: str, text: str) -> str:
    if not text:
        raise UsageError(f"{name} is not valid: the value is empty, but must have one character or more")
    return text


SETTINGS: Final[Mapping[str, ClientSetting]] = {
    "client.id": ClientSetting(
        EVERY, _of_client, "The name of the command in the broker's log, metrics and quotas."
    ),
    "default.api.timeout.ms": ClientSetting(
        EVERY, _of_client, "How long a call may take, in place of `--timeout`."
    ),
    "request.timeout.ms": ClientSetting(
        EVERY, _of_client, "How long a broker may take to respond to a request."
    ),
    "retry.backoff.ms": ClientSetting(EVERY, _of_client, "The pause before the second attempt of a request."),
    "retry.backoff.max.ms": ClientSetting(EVERY, _of_client, "The longest pause between two attempts."),
    "batch.size": ClientSetting(("produce",), _number(1), "The maximum bytes of a batch of several records."),
    "compression.type": ClientSetting(
        ("produce",), _of_client, "How to compress batches, as `--compression`."
    ),
    "delivery.timeout.ms": ClientSetting(
        ("produce",), _number(1), "How long records are sent again while the broker accepts none."
    ),
    "linger.ms": ClientSetting(
        ("produce",), _number(0), "How long a record waits for others if the input has no more of them."
    ),
    "transaction.timeout.ms": ClientSetting(
        ("produce",),
        _number(1000),
        "The time after which a transaction is aborted, as `--transaction-timeout`.",
    ),
    "auto.offset.reset": ClientSetting(
        ("consume",),
        _one_of("earliest", "latest"),
        "Where to begin without `--offset` and committed offsets.",
    ),
    "group.instance.id": ClientSetting(
        ("consume",), _text, "The id of a static member of the group of `--group`."
    ),
    "isolation.level": ClientSetting(
        ("consume",),
        _one_of("read_committed", "read_uncommitted"),
        "Which records to read, as `--isolation`.",
    ),
}
# Names of Kafka's whose values commands take by an option.
OPTIONS: Final[Mapping[str, str]] = {
    "bootstrap.servers": "--bootstrap",
    "group.id": "--group",
    "transactional.id": "--transactional-id",
}
# Names of librdkafka, and the names of Kafka's Java clients for the same settings.
OF_LIBRDKAFKA: Final[Mapping[str, str]] = {
    "batch.num.messages": "batch.size",
    "compression.codec": "compression.type",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery.timeout.ms",
    "metadata.broker.list": "bootstrap.servers",
    "queue.buffering.max.kbytes": "buffer.memory",
    "queue.buffering.max.ms": "linger.ms",
    "request.required.acks": "acks",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "socket.timeout.ms": "request.timeout.ms",
    "topic.metadata.refresh.interval.ms": "metadata.max.age.ms",
}


class CommandSettings(NamedTuple):
    """The settings of one command.

    Attributes:
        values: the values of settings of this module, by name.
        profile: the security settings of the profile, a named set of options in the user's configuration directory.
        words: the security settings of `-X`, each as "name=value".
    """

    values: Mapping[str, Any]
    profile: Mapping[str, str]
    words: Sequence[str]


def read_settings(kind: Kind, profile: Mapping[str, str], words: Sequence[str]) -> CommandSettings:
    """Read the settings of a command. A setting of the option `-X` replaces the same setting of the profile, a named
    set of options in a file of the user.

    Args:
        kind: the kind of the command: "produce", "consume", or "" for another one.
        profile: the settings of the profile. Settings for other kinds of commands are ignored.
        words: the settings of `-X`, each as "name=value".

    Raises:
        UsageError: a name is unknown, or one of librdkafka's; a setting of `-X` has no effect on the command; or a
            value is not valid.
    """
    values: dict[str, Any] = {}
    security, security_words = {}, []
    for name, text in profile.items():
        if _is_security("the profile", name):
            security[name] = text
        else:
            value = SETTINGS[name].read(name, text)
            if kind in SETTINGS[name].kinds:
                values[name] = value
    for word in words:
        name, _, text = word.partition("=")
        name = name.strip()
        if _is_security("-X", name):
            security_words.append(word)
            continue
        kinds = SETTINGS[name].kinds
        if kind not in kinds:
            raise UsageError(
                f"-X {name} has no effect on this command, only on {' and '.join(kinds)}: leave it out"
            )
        values[name] = SETTINGS[name].read(name, text.strip())
    return CommandSettings(values, security, security_words)


def _is_security(where: str, name: str) -> bool:
    """Return True if a setting has to be read as a security setting, and False if it is one of the settings of this
    module. A setting with an unknown name counts as a security setting if it begins like one, for example with `ssl.`:
    the reader of security settings then refuses it with a message that suits. `where` says in messages where the
    setting is from.

    Raises:
        UsageError: the name is unknown or is one of librdkafka's, or the setting has an option of its own.
    """
    if name in SETTINGS:
        return False
    if name in OF_LIBRDKAFKA:
        raise UsageError(f"{where}: {name} is a name of librdkafka; Kafka's name is {OF_LIBRDKAFKA[name]}")
    if name in OPTIONS:
        raise UsageError(f"{where}: the value of {name} is given by the option {OPTIONS[name]}")
    if not name or name.startswith(_security_prefixes()):
        return True
    hint = did_you_mean(name, _known()) or "; docs/reference/commands.md lists the settings"
    raise UsageError(f"{where}: {name} is no setting that a command takes{hint}")


def _security_prefixes() -> tuple[str, ...]:
    from stablelog.client.core.security import PREFIXES

    return PREFIXES


def _known() -> Iterable[str]:
    from stablelog.client.core import security

    return (*SETTINGS, *security.SETTINGS)
