"""The messages and the arithmetic of SCRAM (RFC 5802, RFC 7677), as Apache Kafka uses it (KIP-84).

The exchange has four messages:

    client-first   n,,n=user,r=<client nonce>
    server-first   r=<client nonce><server nonce>,s=<salt>,i=<iterations>
    client-final   c=biws,r=<both nonces>,p=<proof>
    server-final   v=<signature>

Channel binding is not supported, as in Kafka. Passwords are UTF-8 without SASLprep, as in Kafka: a password with
characters that SASLprep would change must be the same bytes for every client.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from stablelog.wire.sasl import MESSAGE_SIZE_MAX, SCRAM_SHA_256, SCRAM_SHA_512, SaslMessageError

ITERATIONS_MIN: Final = 4096  # RFC 7677, and the least number that Kafka accepts
ITERATIONS_MAX: Final = 16_384  # the greatest number that Kafka accepts
# Of a credential that is made without other numbers: iterations, and bytes of salt.
ITERATIONS_DEFAULT: Final = 8192
SALT_SIZE: Final = 32
# The greatest number that the client accepts from a server: a false server could keep the client busy for hours.
CLIENT_ITERATIONS_MAX: Final = 1_000_000

_NAME = r"(?:[^\0=,]|=2C|=3D)+"
_NONCE = r"[\x21-\x2B\x2D-\x7E]+"
_VALUE = r"[^\0,]+"
_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)?"
_EXTENSIONS = rf"(?P<extensions>(?:,[A-Za-z]+={_VALUE})*)"
_CLIENT_FIRST = re.compile(
    rf"(?P<gs2>n,(?:a=(?P<authorization>{_NAME}))?,)(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>{_NONCE}){_EXTENSIONS})"
)
_SERVER_FIRST = re.compile(
    rf"r=(?P<nonce>{_NONCE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]{{1,9}}){_EXTENSIONS}"
)
_CLIENT_FINAL = re.compile(
    rf"(?P<unproven>c=(?P<channel>{_BASE64}),r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_SERVER_FINAL = re.compile(rf"(?:e=(?P<error>{_VALUE})|v=(?P<signature>{_BASE64})){_EXTENSIONS}")


class Mechanism(Enum):
    """A mechanism of SCRAM. The value is the number in AlterUserScramCredentials and DescribeUserScramCredentials."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        """The name of the mechanism in a SaslHandshake request."""
        return _SASL_NAMES[self]

    @property
    def digest(self) -> str:
        """The name of the hash function in `hashlib`."""
        return "sha256" if self is Mechanism.SHA_256 else "sha512"

    @property
    def size(self) -> int:
        """The size in bytes of hash values, keys and proofs."""
        return 32 if self is Mechanism.SHA_256 else 64


_SASL_NAMES: Final[Mapping[Mechanism, str]] = MappingProxyType(
    {Mechanism.SHA_256: SCRAM_SHA_256, Mechanism.SHA_512: SCRAM_SHA_512}
)
BY_SASL_NAME: Final[Mapping[str, Mechanism]] = MappingProxyType(
    {name: one for one, name in _SASL_NAMES.items()}
)


class Keys(NamedTuple):
    """The keys that a server stores in place of the password.

    Attributes:
        stored_key: verifies the client's proof.
        server_key: proves to the client that the server knows the credential.
    """

    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return "Keys([hidden])"


def salted_password(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Compute SaltedPassword (RFC 5802, section 3). Takes milliseconds; releases the interpreter lock."""
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)


def keys_of(mechanism: Mechanism, salted: bytes) -> Keys:
    """Compute StoredKey and ServerKey from SaltedPassword."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.digest)
    return Keys(_hash(mechanism, client_key), hmac.digest(salted, b"Server Key", mechanism.digest))


def _hash(mechanism: Mechanism, content: bytes) -> bytes:
    return hashlib.new(mechanism.digest, content).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def is_proof(mechanism: Mechanism, keys: Keys, auth_message: bytes, proof: bytes) -> bool:
    """Return whether a client's proof shows that the client knows the password. `keys` are the stored keys of the user,
    and `auth_message` is AuthMessage (RFC 5802), over which the client has computed the proof. The comparison takes
    constant time.
    """
    if len(proof) != mechanism.size:
        return False
    signature = hmac.digest(keys.stored_key, auth_message, mechanism.digest)
    return hmac.compare_digest(_hash(mechanism, _xor(proof, signature)), keys.stored_key)


def server_signature(mechanism: Mechanism, keys: Keys, auth_message: bytes) -> bytes:
    """Compute ServerSignature, with which the server proves that it knows the credential. `auth_message` is AuthMessage
    (RFC 5802), the text that is signed.
    """
    return hmac.digest(keys.server_key, auth_message, mechanism.digest)


# -- messages ------------------------------------------------------------------------------------------------------


def escaped(name: str) -> str:
    """Encode a user name as a `saslname`: comma and equals sign are escaped (RFC 5802)."""
    return name.replace("=", "=3D").replace(",", "=2C")


def unescaped(name: str) -> str:
    """Decode a `saslname` to a user name (RFC 5802)."""
    return name.replace("=2C", ",").replace("=3D", "=")


class ClientFirst(NamedTuple):
    """The first message of a client.

    Attributes:
        gs2_header: the part before the bare message, such as `n,,`.
        bare: the message without this header.
        user: the user name, without escapes.
        authorization_id: the name as which the client wants to act; empty for the user's own name.
        nonce: the client's nonce.
        extensions: the extensions by name, such as `tokenauth`.
    """

    gs2_header: str
    bare: str
    user: str
    authorization_id: str
    nonce: str
    extensions: Mapping[str, str]


def decode_client_first(message: bytes) -> ClientFirst:
    """Parse the message client-first of SCRAM.

    Raises:
        SaslMessageError: the bytes are not such a message, or the client demands channel binding or a mandatory
            extension.
    """
    found = _match(_CLIENT_FIRST, "client-first", message)
    pairs = [pair.split("=", 1) for pair in found["extensions"].split(",")[1:]]
    return ClientFirst(
        gs2_header=found["gs2"],
        bare=found["bare"],
        user=unescaped(found["name"]),
        authorization_id=unescaped(found["authorization"] or ""),
        nonce=found["nonce"],
        extensions=MappingProxyType(dict(pairs)),
    )


def encode_server_first(nonce: str, salt: bytes, iterations: int) -> bytes:
    """Encode the message server-first of SCRAM. `nonce` is the client's nonce, followed by the server's."""
    return f"r={nonce},s={base64.b64encode(salt).decode()},i={iterations}".encode()


class ClientFinal(NamedTuple):
    """The last message of a client.

    Attributes:
        unproven: the message without the proof.
        channel: the field for the channel binding. It contains only the GS2 header of client-first, because channel
            binding is not supported.
        nonce: the client's nonce, followed by the server's.
        proof: the proof that the client knows the password.
    """

    unproven: str
    channel: bytes
    nonce: str
    proof: bytes


def decode_client_final(message: bytes) -> ClientFinal:
    """Parse the message client-final of SCRAM.

    Raises:
        SaslMessageError: the bytes are not such a message.
    """
    found = _match(_CLIENT_FINAL, "client-final", message)
    return ClientFinal(
        found["unproven"], _decoded(found["channel"]), found["nonce"], _decoded(found["proof"])
    )


def encode_server_final(signature: bytes) -> bytes:
    """Encode the message server-final of SCRAM, for a login that succeeded."""
    return b"v=" + base64.b64encode(signature)


def auth_message_of(client_first_bare: str, server_first: bytes, unproven: str) -> bytes:
    """Return AuthMessage (RFC 5802): the text that the client's proof and the server's signature are computed over. It
    consists of the three messages before the proof, with commas between them.

    Args:
        client_first_bare: the message client-first without its GS2 header.
        server_first: the message server-first.
        unproven: the message client-final without the proof.
    """
    return b",".join((client_first_bare.encode(), server_first, unproven.encode()))


def _match(pattern: re.Pattern[str], what: str, message: bytes) -> re.Match[str]:
    if len(message) > MESSAGE_SIZE_MAX:
        raise SaslMessageError(
            f"the {what} message of SCRAM is too long: at most {MESSAGE_SIZE_MAX} bytes are allowed"
        )
    try:
        found = pattern.fullmatch(message.decode())
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise SaslMessageError(f"the bytes are not a {what} message of SCRAM")
    return found


def _decoded(text: str) -> bytes:
    """Decode base64.

    Raises:
        SaslMessageError: the text is not base64, or is not the canonical encoding of its bytes (unused bits of the last
            character are set). Other encodings are refused, so that only one message has a given proof.
    """
    try:
        content = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise SaslMessageError("a field of the SCRAM message is not base64") from error
    if base64.b64encode(content).decode() != text:
        raise SaslMessageError("a field of the SCRAM message is base64 that no encoder writes")
    return content


# -- the client's side ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ScramClient:
    """The client's side of one exchange. Call `first`, `final` and `check`, each once and in this order.

    Args:
        mechanism: the mechanism of the handshake.
        user: the user name.
        password: not empty.
        nonce: a new random text of at least 18 printable ASCII characters without a comma.
    """

    mechanism: Mechanism
    user: str
    password: str = field(repr=False)
    nonce: str
    _bare: str = field(init=False, default="")
    _signature: bytes | None = field(init=False, default=None, repr=False)

    def first(self) -> bytes:
        """Return the message client-first of SCRAM."""
        self._bare = f"n={escaped(self.user)},r={self.nonce}"
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the message client-final of SCRAM, in response to server-first. Takes milliseconds of processor time.

        Raises:
            SaslMessageError: server-first is not valid: its nonce does not continue the client's nonce, or the server
                requests fewer than 4096 iterations or too many.
        """
        assert self._bare, "call first() before"
        found = _match(_SERVER_FIRST, "server-first", server_first)
        nonce, salt, iterations = found["nonce"], _decoded(found["salt"]), int(found["iterations"])
        if not nonce.startswith(self.nonce) or nonce == self.nonce:
            raise SaslMessageError("the server's nonce does not continue the client's nonce")
        if not ITERATIONS_MIN <= iterations <= CLIENT_ITERATIONS_MAX:
            raise SaslMessageError(
                f"the server asks for {iterations} iterations, and {ITERATIONS_MIN} to {CLIENT_ITERATIONS_MAX} are accepted"
            )
        salted = salted_password(self.mechanism, self.password, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self.mechanism.digest)
        keys = keys_of(self.mechanism, salted)
        unproven = f"c=biws,r={nonce}"
        auth_message = auth_message_of(self._bare, server_first, unproven)
        self._signature = server_signature(self.mechanism, keys, auth_message)
        proof = _xor(client_key, hmac.digest(keys.stored_key, auth_message, self.mechanism.digest))
        return f"{unproven},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Check the message server-final: the server must know the user's credential, too.

        Raises:
            SaslMessageError: the server reports an error, or its signature is wrong.
        """
        assert self._signature is not None, "call final() before"
        found = _match(_SERVER_FINAL, "server-final", server_final)
        if found["error"] is not None:
            raise SaslMessageError(f"the server refuses the login: {found['error']}")
        if not hmac.compare_digest(_decoded(found["signature"]), self._signature):
            raise SaslMessageError(
                "the server's signature is wrong, so the server does not know the user's credential"
            )
