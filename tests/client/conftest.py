"""The native client by each of its faces, of the broker that all tests share."""

import pytest

from tests.client.faces import FACES, connected


@pytest.fixture(params=FACES, ids=lambda face: face.name)
def face(request):
    return request.param


@pytest.fixture
def client(face, stablelog_broker):
    with connected(face, stablelog_broker.bootstrap) as client:
        yield client
