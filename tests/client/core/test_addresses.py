"""Addresses of brokers in the form "host:port"."""

import pytest

from stablelog.client.core.addresses import host_and_port
from stablelog.errors import UnavailableError


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("h:9092", ("h", 9092)),
        (" h.example:1 ", ("h.example", 1)),
        ("[::1]:9092", ("::1", 9092)),
        ("::1:5", ("::1", 5)),
    ],
)
def test_an_address_has_a_host_and_a_port(address, found):
    assert host_and_port(address) == found


@pytest.mark.parametrize("address", ["", "h", "h:", "h:x", "[::1]"])
def test_an_address_without_a_port_is_refused_with_its_form(address):
    with pytest.raises(UnavailableError, match=r"no broker responds at .*: write an address as host:port"):
        host_and_port(address)
