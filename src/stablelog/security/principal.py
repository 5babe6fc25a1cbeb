"""Principal: the authenticated identity of a client, as in Apache Kafka's `KafkaPrincipal`."""

from typing import Final, NamedTuple

USER: Final = "User"


class Principal(NamedTuple):
    """The identity of a client.

    Attributes:
        kind: the type of the principal. Every authenticated client has the type `User`.
        name: its name, such as a user name or the distinguished name of a client certificate.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


# The principal of a client on a listener without authentication.
ANONYMOUS: Final = Principal(USER, "ANONYMOUS")


def parse_principal(text: str) -> Principal:
    """Parse a principal such as `User:alice`.

    Raises:
        ValueError: the text is not a type and a name with a colon between them.
    """
    kind, separator, name = text.partition(":")
    if not (kind and separator and name):
        raise ValueError(f"{text!r} is not a principal: write User:name")
    return Principal(kind, name)
