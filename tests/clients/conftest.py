"""The clients that every scenario is told to."""

import pytest

from peers import apache_kafka
from tests.clients.drivers import DRIVERS


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.name)
def client(request, stablelog_broker):
    try:
        return request.param(stablelog_broker.bootstrap)
    except apache_kafka.NotToBeHad as missing:
        pytest.skip(str(missing))
