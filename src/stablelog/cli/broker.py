"""The broker that a command connects to: its addresses, and how long the command waits for a response.

Each setting comes from the command line; if it is not there, from the environment, then from a profile, then from the
default.
"""

import functools
import inspect
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stablelog import cli
from stablelog.cli import client_settings, login
from stablelog.cli.exit_codes import NoBrokerError
from stablelog.cli.options import PAIR
from stablelog.cli.profiles import read_profile
from stablelog.errors import AuthenticationError, StablelogError, UnavailableError, UsageError

if TYPE_CHECKING:
    from stablelog.client.blocking.admin import Admin
    from stablelog.client.blocking.cluster import BlockingCluster
    from stablelog.client.blocking.connection import SocketConnection
    from stablelog.client.cluster_pool import ClusterPool

BOOTSTRAP: Final = "127.0.0.1:9092"
TIMEOUT_S: Final = 2.0  # from the start of the command
# A broker may take this long to answer, however long the start of the command took on a loaded machine.
WAIT_MIN_S: Final = 0.5
DEADLINE_S: Final = (
    10.0  # how long a broker that was reached may take to carry out a request, unless --timeout is greater
)
PAUSE_S: Final = 0.1  # between two attempts to reach one address

Bootstrap = Annotated[
    list[str] | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT[,HOST:PORT...]",
        envvar="STABLELOG_BOOTSTRAP",
        help=f"The addresses of the brokers; one that answers is enough (default {BOOTSTRAP}). "
        "The option may be repeated.",
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile", metavar="NAME", envvar="STABLELOG_PROFILE", help="A profile of the file profiles.toml."
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0,
        envvar="STABLELOG_TIMEOUT",
        help=f"How long after its start the command gives up if no broker answers (default {TIMEOUT_S:g}).",
    ),
]


CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        envvar="STABLELOG_COMMAND_CONFIG",
        help="A file of security settings by Kafka's names, name=value on each line: how to connect and to log in.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "-X",
        metavar=PAIR,
        help="A setting of Kafka's clients by Kafka's name, but no secret. The option may be repeated.",
    ),
]


class CommandBroker:
    """The broker that a command connects to. The first call of `reach` finds an address that responds.

    Args:
        addresses: the addresses as "host:port".
        timeout_s: how many seconds `reach` waits for a response.
        spent_s: how many seconds of the timeout have passed already, since the start of the command.
        settings: the settings of Kafka's clients that the command accepts (`cli.client_settings`), by name.
        is_named: whether the user has named an address, by an option, the environment or a profile.

    Attributes:
        addresses: the addresses as "host:port"; after `reach`, the responding address comes first.
        timeout_s: how many seconds the command waits for a response.
        settings: the settings of Kafka's clients, by name.
        is_named: whether the user has named an address.
        wait_s: how many seconds `reach` waits: what is left of the timeout, but at least 0.5 s, unless the timeout
            itself is shorter.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        timeout_s: float = TIMEOUT_S,
        spent_s: float = 0.0,
        settings: Mapping[str, Any] = MappingProxyType({}),
        *,
        is_named: bool = True,
    ) -> None:
        assert timeout_s >= 0, timeout_s
        assert spent_s >= 0, spent_s
        self.addresses = list(addresses)
        self.timeout_s = timeout_s
        self.settings = settings
        self.is_named = is_named
        self.wait_s = max(timeout_s - spent_s, min(timeout_s, WAIT_MIN_S))
        self._is_reached = False
        self._clusters: ClusterPool[BlockingCluster] | None = None  # made by `admin`

    @classmethod
    def from_options(
        cls,
        bootstrap: Sequence[str] | None,
        profile: str | None,
        timeout_s: float | None,
        command_config: Path | None = None,
        words: Sequence[str] | None = None,
        kind: client_settings.Kind = "",
    ) -> "CommandBroker":
        """Make the broker from the options of a command. Options that are None come from the profile. From now on, the
        whole process uses the security settings of these options (`cli.login`). `words` has the settings of the option
        `-X`; `kind` is "produce", "consume" or "", and says which of them have an effect on the command.

        Raises:
            UsageError: the profile does not exist, or lacks the address that no option gives; or a security setting is
                not valid.
        """
        settings: dict[str, str] = {}
        if profile is not None:
            given = read_profile(profile, needs_bootstrap=not bootstrap)
            bootstrap = bootstrap or given.bootstrap
            timeout_s = given.timeout_s if timeout_s is None else timeout_s
            command_config = command_config or given.command_config
            settings = given.settings
        own = client_settings.read_settings(kind, settings, words or ())
        login.set_login(
            login.read_security(command_config, own.profile, own.words), client_id=own.values.get("client.id")
        )
        named = [address.strip() for given in bootstrap or (BOOTSTRAP,) for address in given.split(",")]
        addresses = list(dict.fromkeys(address for address in named if address))
        return cls(
            addresses,
            TIMEOUT_S if timeout_s is None else timeout_s,
            spent_s=time.monotonic() - cli.STARTED_S,
            settings=own.values,
            is_named=bool(bootstrap),
        )

    def reach(self) -> str:
        """Wait until a broker responds at one of the addresses. Return all addresses with commas between them, the
        responding one first.

        Raises:
            NoBrokerError: no address answers within the timeout.
            AuthenticationError: a broker and the command do not accept each other.
            UsageError: an address is not valid, or a key or a certificate cannot be used.
        """
        if not self._is_reached:
            answering = self._first_answering()
            self.addresses.sort(key=lambda address: address != answering)
            self._is_reached = True
        return ",".join(self.addresses)

    def admin(self) -> "Admin":
        """Wait until a broker responds, and return the administration of its cluster. `close` closes the connections.

        Raises:
            NoBrokerError: no address answers within the timeout.
            AuthenticationError: a broker and the command do not accept each other.
            UsageError: an address is not valid, or a key or a certificate cannot be used.
        """
        self.reach()
        # Imported here to keep the help of commands fast.
        from stablelog.client.blocking.admin import Admin
        from stablelog.client.cluster_pool import ClusterPool

        if self._clusters is None:
            self._clusters = ClusterPool(self.cluster)
        return Admin(self._clusters)

    def cluster(self) -> "BlockingCluster":
        """Wait until a broker responds, and return a new cluster object, which the caller closes.

        Raises:
            NoBrokerError: no address answers within the timeout.
            AuthenticationError: a broker and the command do not accept each other.
            UsageError: an address is not valid, or a key or a certificate cannot be used.
        """
        bootstrap = self.reach()
        from stablelog.client.blocking.cluster import BlockingCluster
        from stablelog.client.core.cluster import BACKOFF_FIRST_S, BACKOFF_MAX_S

        given = self.settings
        deadline_s = given.get("default.api.timeout.ms", max(DEADLINE_S, self.timeout_s))
        # A change may take as long as the command may: that of a topic with thousands of partitions takes a minute.
        timeout_s = given.get("request.timeout.ms", max(deadline_s, 0.001))
        first_s = given.get("retry.backoff.ms", BACKOFF_FIRST_S)
        return BlockingCluster(
            bootstrap,
            timeout_s=timeout_s,
            deadline_s=deadline_s,
            backoff_s=(first_s, max(first_s, given.get("retry.backoff.max.ms", BACKOFF_MAX_S))),
            **login.cluster_arguments(),
        )

    def close(self) -> None:
        """Close the connections."""
        if self._clusters is not None:
            self._clusters.close()

    def _first_answering(self) -> str:
        """Return the first address at which a broker responds. Each address is tried in its own thread, so that a host
        or a name server that never responds does not delay the other addresses.

        Raises:
            NoBrokerError: no address answers within the timeout.
            AuthenticationError: a broker and the command do not accept each other.
            UsageError: an address is not valid, or a key or a certificate cannot be used.
        """
        deadline_s = time.monotonic() + self.wait_s  # the import below counts
        from stablelog.client.blocking.cluster import (
            BlockingCluster,  # imported here to keep the help of commands fast
        )

        # `BlockingCluster` checks that the addresses are valid.
        BlockingCluster(",".join(self.addresses))
        found: queue.SimpleQueue[str | StablelogError] = queue.SimpleQueue()
        failures: dict[str, str] = {}
        for address in self.addresses:
            arguments = (address, deadline_s, found, failures)
            threading.Thread(target=_probe, args=arguments, name="reach", daemon=True).start()
        try:
            answering = found.get(timeout=max(deadline_s - time.monotonic(), 0.001))
        except queue.Empty:
            why = "; ".join(dict.fromkeys(failures.values()))
        else:
            if isinstance(answering, StablelogError):
                raise answering
            return answering
        raise NoBrokerError(
            f"no broker responds at {','.join(self.addresses)} within {self.timeout_s:g} s"
            f"{f' ({why})' if why else ''}: start it, name another address with --bootstrap, or wait longer with --timeout"
        )


def _probe(
    address: str,
    deadline_s: float,
    found: "queue.SimpleQueue[str | StablelogError]",
    failures: dict[str, str],
) -> None:
    """Request the API versions from the broker at an address, again and again until it responds or the deadline has
    passed.

    Args:
        address: the address.
        deadline_s: the time at which to give up, by `time.monotonic`.
        found: gets the address when the broker responds, or an error that no retry can resolve.
        failures: gets the last failure, as a text for the user, under the address.
    """
    while (left_s := deadline_s - time.monotonic()) > 0:
        try:
            _ask(address, left_s)
            found.put(address)
            return
        except (AuthenticationError, UsageError) as error:
            found.put(error)
            return
        except UnavailableError as failure:
            cause = failure.__cause__
            failures[address] = (
                cause.strerror if isinstance(cause, OSError) and cause.strerror else str(failure)
            )
        time.sleep(min(PAUSE_S, left_s))


def _ask(address: str, timeout_s: float) -> None:
    """Ask whether a broker at an address accepts the command: connect, log in, and request the API versions. A command
    without a login requests metadata, too, because a listener that requires a login refuses only this second request,
    by closing the connection.
    """
    from stablelog.client.blocking.cluster import BlockingCluster
    from stablelog.client.responses import ClosedError
    from stablelog.client.topics import metadata_request

    security = login.security()
    with BlockingCluster(address, timeout_s=timeout_s, **login.cluster_arguments()) as cluster:
        try:
            with cluster.open_connection(address) as connection:
                assert connection.versions
                if security.credentials is None:
                    connection.request(metadata_request(()))
        except ClosedError:
            with suppress(UnavailableError):
                cluster.run(cluster.core.explain_closing(address))
            raise


def connect(bootstrap: str) -> "SocketConnection":
    """Return a new connection to the first address at which a broker responds.

    Raises:
        UnavailableError: no address answers.
    """
    from stablelog.client.blocking.cluster import BlockingCluster

    return BlockingCluster(bootstrap, **login.cluster_arguments()).any_connection()


_OPTIONS: Final = {
    "bootstrap": Bootstrap,
    "profile": Profile,
    "timeout_s": Timeout,
    "command_config": CommandConfig,
    "words": Settings,
}


def with_broker(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command, and return the decorated function. It has the options of `CommandBroker.from_options` in
    addition to those of the command, and passes a `CommandBroker` made from these options as the keyword argument
    `broker`.
    """
    name = command.__module__.rpartition(".")[2]
    kind: client_settings.Kind = name if name in client_settings.EVERY else ""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        given = {name: options.pop(name, None) for name in _OPTIONS}
        broker = CommandBroker.from_options(**given, kind=kind)
        try:
            command(*arguments, broker=broker, **options)
        finally:
            broker.close()

    signature = inspect.signature(command)
    parameters = [one for one in signature.parameters.values() if one.name != "broker"]
    for name, annotation in _OPTIONS.items():
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        )
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run
