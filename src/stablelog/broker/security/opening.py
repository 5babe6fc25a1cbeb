"""Opens the parts of a broker's security at its start: the ACLs and the logins, if the settings ask for them.

Each function imports the code of its part only if the broker has that part, so that other brokers start faster.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from stablelog.broker.runtime import Runtime
from stablelog.data_directory.registered_file import ACLS, has_registered_file
from stablelog.errors import UsageError

if TYPE_CHECKING:
    from stablelog.broker.security.acl_store import BrokerAcls
    from stablelog.broker.security.logins import Logins
    from stablelog.security.credentials import CredentialTable


def open_acls(runtime: Runtime, *, threads: Executor) -> "BrokerAcls | None":
    """Load the ACLs of the broker, and return them; None if the broker has no authorizer.

    Raises:
        UsageError: the data directory has ACLs, and the broker has no authorizer.
        UnknownFormatError, DamageError: a file cannot be read: see `BrokerAcls`.
    """
    directory = runtime.directory
    if runtime.config["authorizer.class.name"]:
        from stablelog.broker.security.acl_store import BrokerAcls

        return BrokerAcls(runtime, threads=threads)
    if has_registered_file(ACLS, runtime.disk, directory):
        from stablelog.data_directory.acl_file import acl_file

        if acl_file(runtime.disk, directory).load():
            raise UsageError(
                f"{directory / ACLS.name} has ACLs, and authorizer.class.name is not set: every client could do "
                "everything. Set authorizer.class.name, or remove the ACLs first"
            )
    return None


def open_logins(runtime: Runtime, credentials: "Callable[[], CredentialTable]") -> "Logins | None":
    """Return the logins, with the settings of each listener with SASL; None if no listener has SASL.

    Args:
        runtime: the settings, the clock and the tasks of the broker.
        credentials: returns the present credentials of all users.

    Raises:
        UsageError: the settings of a listener are not complete.
    """
    config = runtime.config
    if not any(listener.is_sasl for listener in config.listeners):
        return None
    from stablelog.broker.security.listener_logins import listener_logins
    from stablelog.broker.security.logins import Logins

    return Logins(
        listener_logins(config),
        credentials,
        clock=runtime.clock,
        tasks=runtime.tasks,
        failure_delay_ms=config["connection.failed.authentication.delay.ms"],
    )
