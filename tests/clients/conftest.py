"""The clients that every scenario is told to."""

import pytest

from peers import apache_kafka
from tests.clients.drivers import DRIVERS


@pytest.fixture
def target_broker(stablelog_broker):
    """The broker that the clients talk to. A module may have another one."""
    return stablelog_broker


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.name)
def client(request, target_broker):
    try:
        return request.param(target_broker.bootstrap)
    except apache_kafka.NotAvailableError as missing:
        pytest.skip(str(missing))
