"""Listeners: the named addresses on which a broker accepts connections, each with its security protocol.

Names and meanings are those of Kafka's settings `listeners`, `advertised.listeners` and
`listener.security.protocol.map` (KIP-103).
"""

import ipaddress
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from stablelog.settings import INT_MAX, SettingType
from stablelog.types import SecurityProtocol

LISTENER_PREFIX: Final = "listener.name."  # The name of a setting for one listener begins with this.
PORT_MAX: Final = 65535
LISTENER_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
LOOPBACK: Final = "127.0.0.1"


class Address(NamedTuple):
    """The address of a listener, as written in `listeners` or `advertised.listeners`."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


class Listener(NamedTuple):
    """A listener of the broker.

    Attributes:
        name: its name, in upper case.
        protocol: its security protocol.
        host: the host name or address that is bound.
        port: the port that is bound; 0 for a free one.
        advertised: the host and port that clients are told to use. A port of 0 stands for the port that is bound.
    """

    name: str
    protocol: SecurityProtocol
    host: str
    port: int
    advertised: tuple[str, int]

    @property
    def is_sasl(self) -> bool:
        """Whether clients log in with SASL."""
        return self.protocol.is_sasl

    @property
    def address(self) -> str:
        """The host and port that are bound, for messages."""
        return f"{self.host}:{self.port}"


# The listener of requests that come by no socket.
LOCAL: Final = Listener("PLAINTEXT", SecurityProtocol.PLAINTEXT, LOOPBACK, 0, (LOOPBACK, 0))


def is_loopback(host: str) -> bool:
    """Return whether this host is a loopback address or name, so that only programs on this machine can reach a
    listener on it.
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def reachable_host(host: str) -> str:
    """Return the host that clients on this machine use to reach a listener on `host`. If `host` means all addresses of
    the machine, this is the loopback address.
    """
    return {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound


def _parse_address(text: str) -> Address:
    name, separator, rest = text.strip().partition("://")
    host, colon, port = rest.rpartition(":")
    if not separator or not colon or not LISTENER_NAME.fullmatch(name) or not port.isdecimal():
        raise ValueError
    if not 0 <= int(port) <= PORT_MAX:
        raise ValueError(f"port {port} is not valid: a port is a number from 0 to {PORT_MAX}")
    return Address(name.upper(), host.strip("[]") or LOOPBACK, int(port))


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Parse `NAME://host:port,NAME://host:port`, and return the addresses in this order. An empty host means the
    loopback address.

    Raises:
        ValueError: an address is not valid, or a name or an address is given twice.
    """
    found = tuple(_parse_address(part) for part in text.split(","))
    names = [one.name for one in found]
    if len(set(names)) < len(names):
        raise ValueError("two listeners have the same name: give each listener a name of its own")
    bound = [(one.host, one.port) for one in found if one.port]
    if len(set(bound)) < len(bound):
        raise ValueError("two listeners have the same address: give each listener an address of its own")
    return found


def _parse_protocols(text: str) -> Mapping[str, SecurityProtocol]:
    protocols: dict[str, SecurityProtocol] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, separator, protocol = part.partition(":")
        if not separator or not LISTENER_NAME.fullmatch(name.strip()):
            raise ValueError
        if protocol.strip().upper() not in SecurityProtocol.__members__:
            raise ValueError(
                f"the security protocol {protocol.strip()!r} is unknown; the protocols are "
                f"{', '.join(SecurityProtocol.__members__)}"
            )
        protocols[name.strip().upper()] = SecurityProtocol[protocol.strip().upper()]
    return protocols


def _parse_counts(text: str) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        host, _, count = part.rpartition(":")
        try:
            address = str(ipaddress.ip_address(host.strip().strip("[]")))
        except ValueError:
            raise ValueError(f"{host!r} is not an IP address") from None
        if not count.strip().isdecimal() or int(count) > INT_MAX:
            raise ValueError(f"the number of connections of {address} must be 0 to {INT_MAX}")
        counts[address] = int(count)
    return counts


ADDRESSES: Final = SettingType(parse_addresses, "NAME://host:port, or several with commas between them")
OPTIONAL_ADDRESSES: Final = SettingType(
    lambda text: parse_addresses(text) if text.strip() else (), f"{ADDRESSES.valid}, or empty"
)
PROTOCOLS: Final = SettingType(_parse_protocols, "NAME:PROTOCOL, or several with commas between them")
CONNECTION_COUNTS: Final = SettingType(
    _parse_counts, "address:number, or several with commas between them, or empty"
)
