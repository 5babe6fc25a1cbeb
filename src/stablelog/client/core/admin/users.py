"""The users that log in with SCRAM, or with PLAIN and a stored credential (KIP-554)."""

import os
from typing import NamedTuple

from stablelog.client.core.cluster import Cluster
from stablelog.client.core.steps import Call, Steps
from stablelog.client.responses import check
from stablelog.wire.sasl.scram import ITERATIONS_DEFAULT, SALT_SIZE, Mechanism, salted_password


class Credential(NamedTuple):
    """What a broker tells of a user's stored credential, which stands for the password: the user, the SCRAM mechanism
    and the number of iterations of the hash.
    """

    user: str
    mechanism: Mechanism
    iterations: int


def list_users(cluster: Cluster) -> Steps[list[Credential]]:
    """Return the stored credentials of all users, sorted by user, without the keys that are derived from passwords.

    Raises:
        RefusedError: the user of this client may not see them.
        UnavailableError: no broker responds.
    """
    from kio.schema.describe_user_scram_credentials.v0.request import DescribeUserScramCredentialsRequest

    request = DescribeUserScramCredentialsRequest(users=None)

    def attempt() -> Steps[list[Credential]]:
        connection = yield from cluster.any_connection()
        response = yield from connection.request_steps(request)
        check(response.error_code, "listing users", response.error_message)
        found = []
        for result in response.results:
            check(result.error_code, f"user {result.user!r}", result.error_message)
            found += [
                Credential(result.user, Mechanism(one.mechanism), one.iterations)
                for one in result.credential_infos
            ]
        return sorted(found, key=lambda one: (one.user, one.mechanism.value))

    return (yield from cluster.retrying("listing users", attempt))


def set_password(
    cluster: Cluster,
    user: str,
    password: str,
    *,
    mechanism: Mechanism = Mechanism.SHA_512,
    iterations: int = ITERATIONS_DEFAULT,
) -> Steps[None]:
    """Set the password of a user for one SCRAM mechanism, and so add the user if it has no credential yet. The broker
    gets a salted hash of the password, and not the password.

    Raises:
        RefusedError: the name or the number of iterations is not valid, or the user of this client may not change
            users.
        UnavailableError: no broker responds.
    """
    from kio.schema.alter_user_scram_credentials.v0.request import ScramCredentialUpsertion

    salt: bytes = yield Call(lambda: os.urandom(SALT_SIZE))
    salted: bytes = yield Call(lambda: salted_password(mechanism, password, salt, iterations))
    upsertion = ScramCredentialUpsertion(
        name=user, mechanism=mechanism.value, iterations=iterations, salt=salt, salted_password=salted
    )
    yield from _alter(cluster, user, upsertions=(upsertion,))


def remove_password(cluster: Cluster, user: str, mechanism: Mechanism) -> Steps[None]:
    """Remove a user's password for one SCRAM mechanism: the stored credential. Open connections of the user stay logged
    in.

    Raises:
        RefusedError: the user has no such credential, or the user of this client may not change users.
        UnavailableError: no broker responds.
    """
    from kio.schema.alter_user_scram_credentials.v0.request import ScramCredentialDeletion

    yield from _alter(
        cluster, user, deletions=(ScramCredentialDeletion(name=user, mechanism=mechanism.value),)
    )


def _alter(
    cluster: Cluster, user: str, *, deletions: tuple[object, ...] = (), upsertions: tuple[object, ...] = ()
) -> Steps[None]:
    from kio.schema.alter_user_scram_credentials.v0.request import AlterUserScramCredentialsRequest

    request = AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)

    def attempt() -> Steps[None]:
        connection = yield from cluster.any_connection()
        (result,) = (yield from connection.request_steps(request)).results
        check(result.error_code, f"user {user!r}", result.error_message)

    yield from cluster.retrying(f"changing user {user!r}", attempt)
