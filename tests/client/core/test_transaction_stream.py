"""The transactions of one partition in the order of their commits, and the wait for the next ones."""

from stablelog.client.core.cluster import Cluster
from stablelog.client.core.long_poll import WAIT_MAX_S
from stablelog.client.core.transaction_stream import PAUSE_MAX_S
from stablelog.wire.api import ApiKey
from tests.client.core.test_transaction_reader import by, reader
from tests.client.model_broker import ADDRESS, ModelBroker, ModelShell


@by
def test_what_is_resolved_late_is_asked_for_at_short_intervals_and_then_no_more(cut):
    broker = ModelBroker()
    shell = ModelShell(broker)
    shell.planned = [
        (1, lambda: broker.commit({0: [b"late"]}, resolved=False)),
        (5, broker.unresolved.clear),
    ]
    shell.run(reader(Cluster(ADDRESS), cut=cut, wait_s=60))
    ((at, _),) = shell.given
    assert 5 <= at <= 5 + PAUSE_MAX_S if cut else at == 1
    assert len(broker.asked) <= 2 * 66 / WAIT_MAX_S + 4 / PAUSE_MAX_S + 30


def test_partitions_at_their_end_are_looked_at_together_while_another_is_read():
    broker = ModelBroker()
    shell = ModelShell(broker)
    for number in range(1000):
        broker.commit({0: [b"%d" % number]})
    shell.run(reader(Cluster(ADDRESS), cut=False, wait_s=0))
    assert len(shell.given) == 1000
    assert broker.asked.count(ApiKey.DESCRIBE_COMMITS) < 20
