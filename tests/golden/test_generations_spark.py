"""Checkpoints that Spark wrote over earlier code, gone on with by today's: each row is delivered once."""

import pytest

from tests.golden.generation import SPARK, generations
from tests.golden.generation_spark import QUERIES, TIMEOUT_S, start, values_of
from tests.golden.serving import BrokerAt
from tests.spark.starting import in_time

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.extended]


@pytest.mark.parametrize(
    "generation",
    [
        *(pytest.param(one, id=str(one.number), marks=pytest.mark.night) for one in generations()[:-1]),
        pytest.param(generations()[-1], id=str(generations()[-1].number)),
    ],
)
def test_a_query_goes_on_from_its_checkpoint(spark, tmp_path, generation):
    """From the middle of a stream, after a micro-batch that is committed in the log and not in the checkpoint."""
    directory = generation.unpack(SPARK, tmp_path)
    told = generation.expected(SPARK)
    with BrokerAt(directory / "data", told["written_ms"]) as broker:
        for name, (topics, target, _) in QUERIES.items():
            seen = told["queries"][name]
            assert set(seen["delivered"]) < set(seen["read from"])
            assert values_of(broker.bootstrap, topics) == seen["read from"]
            assert values_of(broker.bootstrap, [target]) == seen["delivered"]

        def ended():
            queries = [start(spark, broker.bootstrap, name, directory) for name in QUERIES]
            return [query.awaitTermination(TIMEOUT_S) for query in queries]

        assert all(in_time(ended))
        for name, (_, target, _) in QUERIES.items():
            assert values_of(broker.bootstrap, [target]) == told["queries"][name]["read from"]
        assert not broker.faults.lines
