"""Addresses of brokers in the form "host:port"."""

from stablelog.errors import UnavailableError


def host_and_port(address: str) -> tuple[str, int]:
    """Return the host (text) and the port (number) of an address "host:port". An IPv6 address stands in brackets, as in
    "[::1]:9092".

    Raises:
        UnavailableError: the address has no valid port.
    """
    host, _, port = address.strip().rpartition(":")
    try:
        number = int(port)
    except ValueError as error:
        raise invalid_address(address) from error
    return host.strip("[]"), number


def invalid_address(address: str) -> UnavailableError:
    """Return the error for an address that is not "host:port". It is an UnavailableError, because no broker can be
    there.
    """
    return UnavailableError(f"no broker responds at {address!r}: write an address as host:port")
