"""Transactions of our own client at Apache Kafka."""

import pytest

from stablelog.client.core.connection import BrokerConnection
from tests.client.blocking.test_producer import made
from tests.client.faces import FACES
from tests.client.plain_transactions import ALWAYS, WITH_FATES, WITH_GROUPS, Case, group, name_of
from tests.clients.drivers import unique

pytestmark = [pytest.mark.java, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(params=["second dialect", pytest.param("first dialect", marks=pytest.mark.night)])
def case(request, monkeypatch, shared_kafka):
    # One face each: the other one runs the same steps.
    face = FACES[request.param == "first dialect"]
    if request.param == "first dialect":
        monkeypatch.setattr(BrokerConnection, "features", {})
    return Case(
        face, shared_kafka, lambda name, partitions: made(shared_kafka.bootstrap, unique(name), partitions)
    )


@pytest.mark.parametrize("scenario", ALWAYS, ids=name_of)
def test_a_transaction(case, scenario):
    scenario(case)


@pytest.mark.parametrize("scenario", WITH_GROUPS, ids=name_of)
def test_a_transaction_with_offsets(case, scenario):
    scenario(case, group())


@pytest.mark.parametrize("fate", ["request", "answer"])
@pytest.mark.parametrize("scenario", WITH_FATES, ids=name_of)
def test_a_transaction_in_doubt(case, scenario, fate):
    scenario(case, fate)
