"""The commands that the package runs without its extra `cli`: `serve` and `health`. argparse reads their options, so
that neither needs typer. The command line of the extra lists them among all commands, with the same texts.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from stablelog.errors import UsageError, did_you_mean

PAIR: Final = "NAME=VALUE"


class CoreOption(NamedTuple):
    """An option of a command.

    Attributes:
        name: its name on the command line, such as "--data".
        help: its text for the help.
        keyword: the parameter of the command's function that gets the value.
        metavar: what stands for the value in the help; empty for an option without a value.
        parse: makes the value of the text. It raises ValueError for a text that is not valid.
        is_required: whether the command needs the option.
        is_repeated: whether the option may be repeated. The function then gets a list.
    """

    name: str
    help: str
    keyword: str
    metavar: str = ""
    parse: Callable[[str], Any] = str
    is_required: bool = False
    is_repeated: bool = False


class CoreCommand(NamedTuple):
    """A command that needs no extra.

    Attributes:
        name: its name on the command line.
        help: one sentence for the help.
        example: a command line, for the end of the help.
        options: its options.
        run: carries it out. It gets the value of each option by keyword: None, False or [] for one that is not given.
    """

    name: str
    help: str
    example: str
    options: Sequence[CoreOption]
    run: Callable[..., None]

    def run_words(self, words: Sequence[str]) -> None:
        """Read the options from the words behind the command's name, and carry the command out.

        Raises:
            SystemExit: the words are not valid, or ask for the help.
        """
        parser = argparse.ArgumentParser(
            prog=f"stablelog {self.name}",
            description=self.help,
            epilog=f"Example:\n  {self.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for option in self.options:
            if not option.metavar:
                parser.add_argument(option.name, dest=option.keyword, help=option.help, action="store_true")
                continue
            parser.add_argument(
                option.name,
                dest=option.keyword,
                help=option.help,
                metavar=option.metavar,
                type=option.parse,
                required=option.is_required,
                action="append" if option.is_repeated else "store",
                default=[] if option.is_repeated else None,
            )
        self.run(**vars(parser.parse_args(self._checked(words, parser))))

    def _checked(self, words: Sequence[str], parser: argparse.ArgumentParser) -> Sequence[str]:
        """Return the words without the sign `--`, which ends the options.

        Raises:
            SystemExit: an option is unknown, or a word is not an option. argparse would name neither if a required
                option is missing, too, and would not name the option that was meant.
        """
        end = list(words).index("--") if "--" in words else len(words)
        if words[end + 1 :]:
            parser.error(f"unexpected argument: {words[end + 1]}")
        known = ["--help", *(option.name for option in self.options)]
        for word in words[:end]:
            name = word.partition("=")[0]
            if name.startswith("--") and name not in known:
                parser.error(f"no such option: {name}{did_you_mean(name, known)}")
        return words[:end]


def _serve(**values: Any) -> None:
    if sys.platform == "win32":
        raise UsageError(
            "a broker runs on Linux and macOS, not on Windows: run it in WSL 2 or in a container"
        )
    from stablelog.cli.serve import run_serve

    run_serve(**values)


SERVE: Final = CoreCommand(
    "serve",
    "Run a broker until Ctrl-C or SIGTERM stops it.",
    "stablelog serve --data data --set num.partitions=4",
    (
        CoreOption(
            "--data",
            "The data directory. The broker creates it if it does not exist.",
            "data",
            "PATH",
            Path,
            is_required=True,
        ),
        CoreOption("--host", "The host to listen on (default 127.0.0.1).", "host", "HOST"),
        CoreOption("--port", "The port to listen on (default 9092); 0 for a free port.", "port", "PORT", int),
        CoreOption("--config", "A file of settings, one name=value on each line.", "config", "PATH", Path),
        CoreOption(
            "--set",
            "A setting, name=value. The option may be repeated.",
            "settings",
            PAIR,
            is_repeated=True,
        ),
        CoreOption("--json", "Print JSON for programs: one document, or one on each line.", "as_json"),
    ),
    _serve,
)


def _health(*, is_ready: bool, as_json: bool, **values: Any) -> None:
    from stablelog.cli.health import run_health

    run_health(**values, is_ready=bool(is_ready), as_json=bool(as_json))


HEALTH: Final = CoreCommand(
    "health",
    "Ask whether a broker is alive or, with --ready, ready for clients.",
    "stablelog health --ready --config server.properties",
    (
        CoreOption(
            "--address",
            "Host and port of the broker's metrics (default 127.0.0.1:9644).",
            "address",
            "HOST:PORT",
        ),
        CoreOption(
            "--config",
            "The broker's file of settings, which has stablelog.metrics.host and stablelog.metrics.port.",
            "config",
            "PATH",
            Path,
        ),
        CoreOption("--ready", "Ask whether the broker is ready, and not only alive.", "is_ready"),
        CoreOption(
            "--timeout", "How many seconds to wait for the answer (default 10).", "timeout", "S", float
        ),
        CoreOption("--json", "Print JSON for programs: one document, or one on each line.", "as_json"),
    ),
    _health,
)
CORE_COMMANDS: Final = {command.name: command for command in (SERVE, HEALTH)}
