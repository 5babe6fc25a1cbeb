"""Every command against Apache Kafka: it succeeds, or says in one line what Apache Kafka does not have."""

import pytest

from tests.cli.every_command import ROWS
from tests.cli.test_every_command import check, fill
from tests.commands import run

pytestmark = [pytest.mark.java, pytest.mark.filterwarnings("ignore")]


def test_every_command_works_with_apache_kafka(shared_kafka):
    """One after the other: the last ones delete what the first ones use."""
    at = shared_kafka.bootstrap
    fill(at)
    for row in ROWS:
        done = run(*row.filled(topic="t", group="g", id="x", user="zoe"), bootstrap=at, given=row.given)
        check(done, row.kafka)
