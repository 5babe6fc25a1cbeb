"""`stablelog users`: list, add and remove the users that log in with SCRAM, or with PLAIN and a stored credential."""

import os
import secrets
import sys
from pathlib import Path
from typing import Annotated, Final

import typer
from kio.schema.errors import ErrorCode

from stablelog.cli.broker import CommandBroker, with_broker
from stablelog.cli.options import AsJson, command_app, examples
from stablelog.cli.output import fail, print_done, print_rows
from stablelog.client.blocking.admin import Admin
from stablelog.errors import UsageError
from stablelog.security.credentials import CredentialDeletion, CredentialUpsertion
from stablelog.wire.sasl.scram import (
    BY_SASL_NAME,
    ITERATIONS_DEFAULT,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_SIZE,
    Mechanism,
    salted_password,
)

PASSWORD_SIZE_MAX: Final = 4096
COLUMNS: Final = ("user", "mechanism", "iterations")

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIRECTORY",
        help="The data directory of a broker that does not run, in place of a running broker. It is created if it is missing.",
    ),
]
Mechanisms = Annotated[
    list[str] | None,
    typer.Option(
        "--mechanism", metavar="NAME", help="SCRAM-SHA-256 or SCRAM-SHA-512. The option may be repeated."
    ),
]
NodeId = Annotated[
    int | None,
    typer.Option("--node-id", min=0, help="With --data: the id of the broker, if the directory is new."),
]

app = command_app("List, add and remove the users that log in with a password.")


def _mechanisms(names: list[str] | None, default: tuple[Mechanism, ...]) -> tuple[Mechanism, ...]:
    """Return the mechanisms that the option `--mechanism` names, each of them once; `default` if the option is missing.

    Raises:
        UsageError: a name is not that of a SCRAM mechanism.
    """
    for name in names or ():
        if name.upper() not in BY_SASL_NAME:
            raise UsageError(f"--mechanism {name} is not valid: {' or '.join(BY_SASL_NAME)}")
    return tuple(dict.fromkeys(BY_SASL_NAME[name.upper()] for name in names or ())) or default


class _Stopped:
    """The users of a stopped broker, in its data directory. The directory is locked until `close`, so that no broker
    starts in it.
    """

    def __init__(self, directory: Path, node_id: int | None) -> None:
        from stablelog.broker.directory.locked_directory import LockedDirectory
        from stablelog.broker.settings.config import BrokerConfig
        from stablelog.data_directory.meta_properties import META_FILE
        from stablelog.data_directory.user_file import user_file
        from stablelog.env.clock import SystemClock
        from stablelog.env.local_disk import LocalDisk

        disk, path = LocalDisk(), directory.resolve()
        is_new = not disk.exists(path / META_FILE)
        config = BrokerConfig({} if node_id is None else {"node.id": str(node_id)})
        self._directory = LockedDirectory(disk, path, config, disk, SystemClock())
        try:
            if is_new:
                self._directory.begin()
            self._file = user_file(disk, path)
            self._credentials = self._file.load()
        except BaseException:
            self.close()
            raise

    def listed(self) -> list[tuple[str, str, int]]:
        return [
            (user, mechanism.sasl_name, one.iterations)
            for user, known in self._credentials.users.items()
            for mechanism, one in known.items()
        ]

    def alter(self, change: CredentialDeletion | CredentialUpsertion) -> None:
        from stablelog.data_directory.user_file import encode_users

        changes: tuple[list[CredentialDeletion], list[CredentialUpsertion]]
        changes = ([change], []) if isinstance(change, CredentialDeletion) else ([], [change])
        after, (outcome,) = self._credentials.with_changes(*changes)
        if outcome.code is not ErrorCode.none:
            fail(f"user {change.user!r} was not changed: {outcome.message}")
        self._file.store(encode_users(after))
        self._credentials = after

    def close(self) -> None:
        self._directory.release()


def _listed(admin: Admin) -> list[tuple[str, str, int]]:
    """Return (user, mechanism, iterations) of each credential of a running broker."""
    return [(one.user, one.mechanism.sasl_name, one.iterations) for one in admin.users.list()]


@app.command("list", epilog=examples("stablelog users list", "stablelog users list --data data"))
@with_broker
def list_users(data: Data = None, as_json: AsJson = False, *, broker: CommandBroker) -> None:
    """List the users with their mechanisms. Passwords and keys are not shown."""
    if data is None:
        rows = _listed(broker.admin())
    else:
        if not data.is_dir():
            fail(f"{data} is not a data directory: it does not exist")
        stopped = _Stopped(data, None)
        try:
            rows = stopped.listed()
        finally:
            stopped.close()
    print_rows("users", COLUMNS, sorted(rows), as_json=as_json)


@app.command(
    epilog=examples(
        "stablelog users add alice",
        "stablelog users add alice --password-file alice.txt --mechanism SCRAM-SHA-256",
        "stablelog users add admin --data data --password-env ADMIN_PASSWORD",
    )
)
@with_broker
def add(
    user: str,
    mechanisms: Mechanisms = None,
    iterations: Annotated[
        int,
        typer.Option(
            min=ITERATIONS_MIN,
            max=ITERATIONS_MAX,
            help="How often the password is hashed. More makes a stolen file harder to use, and each login slower.",
        ),
    ] = ITERATIONS_DEFAULT,
    password_file: Annotated[
        str | None,
        typer.Option(
            "--password-file", metavar="FILE", help="The file with the password; - for standard input."
        ),
    ] = None,
    password_env: Annotated[
        str | None,
        typer.Option("--password-env", metavar="NAME", help="The environment variable with the password."),
    ] = None,
    data: Data = None,
    node_id: NodeId = None,
    as_json: AsJson = False,
    *,
    broker: CommandBroker,
) -> None:
    """Add a user, or set the password of a user. Without an option for the password, ask for it.

    The default mechanism is SCRAM-SHA-512. If all listeners of a broker need a login, nobody can log in to add the
    first user: use the option --data before the broker starts.
    """
    chosen = _mechanisms(mechanisms, (Mechanism.SHA_512,))
    if node_id is not None and data is None:
        raise UsageError("--node-id needs --data")
    password = _password(password_file, password_env)
    if data is None:
        admin = broker.admin()
        for mechanism in chosen:
            admin.users.set_password(user, password, mechanism=mechanism, iterations=iterations)
    else:
        stopped = _Stopped(data, node_id)
        try:
            for mechanism in chosen:
                salt = secrets.token_bytes(SALT_SIZE)
                salted = salted_password(mechanism, password, salt, iterations)
                stopped.alter(CredentialUpsertion(user, mechanism.value, iterations, salt, salted))
        finally:
            stopped.close()
    names = [mechanism.sasl_name for mechanism in chosen]
    print_done(
        f"set the password of {user} for {', '.join(names)}", as_json=as_json, user=user, mechanisms=names
    )


def _password(file: str | None, variable: str | None) -> str:
    """Read the password: from a file, an environment variable, or the terminal.

    Raises:
        UsageError: no password is given, or it is empty, too long or not text.
    """
    if file is not None and variable is not None:
        raise UsageError("the password is given twice: give either --password-file or --password-env")
    if variable is not None:
        text = os.environ.get(variable)
        if text is None:
            raise UsageError(f"--password-env: the environment has no variable {variable}")
    elif file is not None:
        text = _read_line(file)
    elif sys.stdin is not None and sys.stdin.isatty():
        text = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        raise UsageError("no password: give --password-file FILE, --password-file - or --password-env NAME")
    if not text or len(text.encode(errors="replace")) > PASSWORD_SIZE_MAX or "\0" in text:
        raise UsageError(f"the password must have 1 to {PASSWORD_SIZE_MAX} bytes and no character NUL")
    return text


def _read_line(file: str) -> str:
    """Read a password from a file of one line. The line end is not a part of it."""
    try:
        if file == "-":
            content = sys.stdin.buffer.read(PASSWORD_SIZE_MAX + 3)
        else:
            with Path(file).open("rb") as opened:
                content = opened.read(PASSWORD_SIZE_MAX + 3)
        text = content.decode().removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise UsageError(f"--password-file {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise UsageError(f"--password-file {file} is not UTF-8") from None
    if "\n" in text:
        raise UsageError(f"--password-file {file} has more than one line")
    return text


@app.command(
    epilog=examples("stablelog users remove alice", "stablelog users remove alice --mechanism SCRAM-SHA-256")
)
@with_broker
def remove(
    user: str,
    mechanisms: Mechanisms = None,
    data: Data = None,
    as_json: AsJson = False,
    *,
    broker: CommandBroker,
) -> None:
    """Remove a user, or a user's credentials for one mechanism. Clients that are logged in stay logged in."""
    chosen = _mechanisms(mechanisms, tuple(Mechanism))
    if data is None:
        admin = broker.admin()
        found = _of_user(user, _listed(admin), chosen)
        for mechanism in found:
            admin.users.remove_password(user, mechanism)
    else:
        if not data.is_dir():
            fail(f"{data} is not a data directory: it does not exist")
        stopped = _Stopped(data, None)
        try:
            found = _of_user(user, stopped.listed(), chosen)
            for mechanism in found:
                stopped.alter(CredentialDeletion(user, mechanism.value))
        finally:
            stopped.close()
    names = [mechanism.sasl_name for mechanism in found]
    print_done(f"removed {', '.join(names)} of {user}", as_json=as_json, user=user, mechanisms=names)


def _of_user(user: str, listed: list[tuple[str, str, int]], chosen: tuple[Mechanism, ...]) -> list[Mechanism]:
    """Return those of the chosen mechanisms for which a user has a credential. `listed` has (user, mechanism,
    iterations) of all credentials.

    Raises:
        UnavailableError: the user has none of these credentials.
    """
    found = [
        BY_SASL_NAME[name] for known, name, _ in listed if known == user and BY_SASL_NAME[name] in chosen
    ]
    if not found:
        fail(f"user {user!r} has no such credential")
    return found
