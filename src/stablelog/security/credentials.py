"""Users' SCRAM credentials: what the broker stores in place of passwords, and which changes of these credentials are
valid (KIP-554).

Invariant: a client without a password cannot find out which users exist. `CredentialTable.find` returns a credential
for every name. The credential of an unknown user has a salt and a number of iterations like those of known users, and
its keys match no password.
"""

import base64
import hmac
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.errors import DamageError
from stablelog.wire.sasl.scram import (
    ITERATIONS_DEFAULT,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_SIZE,
    Keys,
    Mechanism,
    keys_of,
    salted_password,
)

SECRET_SIZE: Final = 32
# The number of bytes of user names, salts and salted passwords that the broker accepts. Kafka has no limits here.
NAME_SIZE_MAX: Final = 1024
SALT_SIZE_MAX: Final = 1024
# Kafka refuses two changes of one user even if they are of different mechanisms.
DUPLICATE: Final = (
    ErrorCode.duplicate_resource,
    "A user credential cannot be altered twice in the same request",
)


class ScramCredential(NamedTuple):
    """The stored form of one user's password, for one SCRAM mechanism.

    Attributes:
        salt: random bytes, which the client gets during the login.
        iterations: the number of rounds of the hash function.
        keys: the stored key and the server key.
    """

    salt: bytes
    iterations: int
    keys: Keys

    def __repr__(self) -> str:
        return f"ScramCredential([hidden], iterations={self.iterations})"


class FoundCredential(NamedTuple):
    """The credential with which the password of a login is compared. Even an unknown user has one, so that a client
    cannot find out which users exist.

    Attributes:
        mechanism: the mechanism of the credential.
        credential: the user's credential, or an invented one, which fits no password, if the user has none.
        is_known: whether the credential is the user's. If False, the login fails, whatever password the client has.
    """

    mechanism: Mechanism
    credential: ScramCredential
    is_known: bool


UserCredentials = Mapping[str, Mapping[Mechanism, ScramCredential]]


def derive(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> ScramCredential:
    """Derive the credential that the broker stores in place of a password. This takes milliseconds of processor
    time.
    """
    return ScramCredential(
        salt, iterations, keys_of(mechanism, salted_password(mechanism, password, salt, iterations))
    )


def is_password(found: FoundCredential, password: str) -> bool:
    """Return whether a password is the one from which a credential was derived.

    The function takes milliseconds of processor time, for unknown users as long as for known ones, so that the time
    does not show which users exist. The comparison takes constant time.
    """
    mechanism, credential, is_known = found
    keys = keys_of(mechanism, salted_password(mechanism, password, credential.salt, credential.iterations))
    return hmac.compare_digest(keys.stored_key, credential.keys.stored_key) and is_known


class CredentialDeletion(NamedTuple):
    """A change that removes a user's credential. `mechanism` is the number of the SCRAM mechanism in the request, which
    may be unknown.
    """

    user: str
    mechanism: int


class CredentialUpsertion(NamedTuple):
    """A change that adds or replaces a user's credential. `mechanism` is the number of the SCRAM mechanism in the
    request, which may be unknown.
    """

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted: bytes

    def __repr__(self) -> str:
        return f"Upsertion({self.user!r}, {self.mechanism}, {self.iterations}, [hidden])"


class AlterationOutcome(NamedTuple):
    """The result of the changes of one user's credentials: an error code and a message."""

    user: str
    code: ErrorCode
    message: str | None


class CredentialTable:
    """The SCRAM credentials of all users. Immutable: `with_changes` returns a changed copy.

    Args:
        secret: random bytes from which the credentials of unknown users are derived. They are stored with the users, so
            that these credentials stay the same.
        users: the credentials by user and mechanism.
    """

    def __init__(self, secret: bytes, users: UserCredentials = MappingProxyType({})) -> None:
        assert len(secret) == SECRET_SIZE
        self._secret = secret
        self.users = users
        # For each mechanism: the different (length of the salt, iterations) of the users' credentials.
        self._shapes = {
            mechanism: sorted(
                {
                    (len(known[mechanism].salt), known[mechanism].iterations)
                    for known in users.values()
                    if mechanism in known
                }
            )
            or [(SALT_SIZE, ITERATIONS_DEFAULT)]
            for mechanism in Mechanism
        }

    def __repr__(self) -> str:
        return f"Credentials([hidden], {len(self.users)} users)"

    def find(self, mechanism: Mechanism, user: str) -> FoundCredential:
        """Return the user's credential for a mechanism. If the user has none, return an invented one, so that the login
        does not show that.
        """
        known = self.users.get(user, {}).get(mechanism)
        # The made-up credential is computed in either case, so that both take the same time.
        made_up = self._made_up(mechanism, user)
        return FoundCredential(mechanism, made_up if known is None else known, known is not None)

    def find_any(self, user: str) -> FoundCredential:
        """Return a credential of the user, of whichever mechanism there is. Logins with PLAIN, which send the password
        itself, use it. If the user has none, return an invented one, so that the login does not show that.
        """
        found = [self.find(mechanism, user) for mechanism in (Mechanism.SHA_512, Mechanism.SHA_256)]
        return next((one for one in found if one.is_known), found[0])

    def _made_up(self, mechanism: Mechanism, user: str) -> ScramCredential:
        def derived(*what: object) -> bytes:
            parts = b"".join(
                len(part).to_bytes(4, "big") + part for part in (str(one).encode() for one in what)
            )
            return hmac.digest(self._secret, parts, "sha512")

        # Each shape has a rank that depends on the user. If a new shape appears or one disappears, only the unknown
        # users for which it ranks first get another credential.
        shapes = self._shapes[mechanism]
        size, iterations = max(shapes, key=lambda shape: derived("shape", mechanism.name, user, *shape))
        salt = b"".join(derived("salt", mechanism.name, user, part) for part in range(-(-size // 64)))[:size]
        keys = Keys(*(derived(kind, mechanism.name, user)[: mechanism.size] for kind in ("stored", "server")))
        return ScramCredential(salt, iterations, keys)

    def with_changes(
        self, deletions: Sequence[CredentialDeletion], upsertions: Sequence[CredentialUpsertion]
    ) -> tuple["CredentialTable", list[AlterationOutcome]]:
        """Apply the changes of an AlterUserScramCredentials request, as Kafka's ScramControlManager does.

        If one change of a user is not valid, none of this user's changes is applied. The changes of other users are
        applied nevertheless.

        Returns:
            A pair: the table after the changes, and the outcome for each user, in the order of the request.
        """
        changes: dict[str, CredentialDeletion | CredentialUpsertion] = {}
        errors: dict[str, tuple[ErrorCode, str]] = {}
        wanted: list[CredentialDeletion | CredentialUpsertion] = [*deletions, *upsertions]
        for change in wanted:
            error = DUPLICATE if change.user in changes else self._refusal(change)
            changes.setdefault(change.user, change)
            if error is not None:
                errors.setdefault(change.user, error)
        users = {user: dict(known) for user, known in self.users.items()}
        for user, change in changes.items():
            if user in errors:
                continue
            mechanism = Mechanism(change.mechanism)
            if isinstance(change, CredentialUpsertion):
                credential = ScramCredential(
                    change.salt, change.iterations, keys_of(mechanism, change.salted)
                )
                users.setdefault(user, {})[mechanism] = credential
            else:
                del users[user][mechanism]
                if not users[user]:
                    del users[user]
        outcomes = [AlterationOutcome(user, *errors.get(user, (ErrorCode.none, None))) for user in changes]
        return CredentialTable(self._secret, users), outcomes

    def _refusal(self, change: CredentialDeletion | CredentialUpsertion) -> tuple[ErrorCode, str] | None:
        if not change.user:
            return ErrorCode.unacceptable_credential, "Username must not be empty"
        if len(change.user.encode()) > NAME_SIZE_MAX or "\0" in change.user:
            return (
                ErrorCode.unacceptable_credential,
                f"A user name has at most {NAME_SIZE_MAX} bytes and no character NUL",
            )
        if change.mechanism not in (1, 2):
            return ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism"
        mechanism = Mechanism(change.mechanism)
        if isinstance(change, CredentialDeletion):
            if mechanism not in self.users.get(change.user, {}):
                return ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist"
            return None
        if change.iterations < ITERATIONS_MIN:
            return ErrorCode.unacceptable_credential, "Too few iterations"
        if change.iterations > ITERATIONS_MAX:
            return ErrorCode.unacceptable_credential, "Too many iterations"
        if not 0 < len(change.salt) <= SALT_SIZE_MAX:
            return ErrorCode.unacceptable_credential, f"A salt has 1 to {SALT_SIZE_MAX} bytes"
        if len(change.salted) != mechanism.size:
            return (
                ErrorCode.unacceptable_credential,
                f"A salted password of this mechanism has {mechanism.size} bytes",
            )
        return None

    # -- as JSON ---------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file `users.json` (format: docs/reference/formats.md)."""
        return {
            "secret": _text(self._secret),
            "users": {
                user: {
                    mechanism.sasl_name: {
                        "iterations": one.iterations,
                        "salt": _text(one.salt),
                        "stored_key": _text(one.keys.stored_key),
                        "server_key": _text(one.keys.server_key),
                    }
                    for mechanism, one in known.items()
                }
                for user, known in self.users.items()
            },
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "CredentialTable":
        """Return the table that a file `users.json` contains.

        Raises:
            DamageError: the content is not what `to_json` returns. The message quotes no part of it.
        """
        names = {mechanism.sasl_name: mechanism for mechanism in Mechanism}
        try:
            users = {
                user: {names[name]: _credential(names[name], one) for name, one in known.items()}
                for user, known in content["users"].items()
            }
            secret = _bytes(content["secret"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DamageError("the file does not hold users") from None
        if len(secret) != SECRET_SIZE:
            raise DamageError("the secret in the file is incomplete")
        return cls(secret, users)


def _credential(mechanism: Mechanism, values: Mapping[str, Any]) -> ScramCredential:
    keys = Keys(_bytes(values["stored_key"]), _bytes(values["server_key"]))
    iterations = values["iterations"]
    if not isinstance(iterations, int) or iterations < 1 or {len(key) for key in keys} != {mechanism.size}:
        raise ValueError
    return ScramCredential(_bytes(values["salt"]), iterations, keys)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
