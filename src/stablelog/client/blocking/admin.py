"""Administration with the blocking client: `client.admin.topics.create("orders")`.

Each area of administration, such as `topics`, is a class here and a module in `client.core.admin`. The methods of the
class are the functions of the module, without their first argument `cluster`, which has the connections to the brokers.
Each call uses connections of its own, so several threads may administer with one client.
"""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.cluster_pool import ClusterPool
from stablelog.client.core import cluster as core
from stablelog.client.core import partitions
from stablelog.client.core.admin import acls, brokers, configs, groups, quotas, topics, transactions, users
from stablelog.client.core.steps import Steps
from stablelog.client.signatures import show_result

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


class AdminArea:
    """The base of the classes for one area of administration, such as topics. Each method runs the function of its name
    in `client.core.admin`, over connections of its own.

    Args:
        clusters: the client's pool of cluster objects, which hold the connections to the brokers.
    """

    def __init__(self, clusters: ClusterPool[BlockingCluster]) -> None:
        self._clusters = clusters

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._clusters.bootstrap}>"

    def _run(self, steps: Callable[[core.Cluster], Steps[ResultT]]) -> ResultT:
        """Run the steps (a generator of I/O operations) of one administrative call with a cluster object (connections
        to the brokers) of the pool, and return their result. All requests of the call together must end before the
        client's deadline.
        """
        cluster = self._clusters.lend_cluster()
        try:
            return cluster.run(cluster.core.run_until_deadline(steps(cluster.core)))
        finally:
            self._clusters.return_cluster(cluster)


def _lending(
    steps: Callable[Concatenate[core.Cluster, P], Steps[ResultT]],
) -> Callable[Concatenate[AdminArea, P], ResultT]:
    """Return a method of a class for an area of administration, such as topics, made of the function `steps` in
    `client.core.admin`. The method lends `steps` a cluster object (connections to the brokers) as the first argument.
    It runs the generator of I/O operations that `steps` returns, and returns its result.
    """

    @wraps(steps)
    def call(area: AdminArea, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        return area._run(lambda cluster: steps(cluster, *args, **kwargs))  # noqa: SLF001 - a method of the area

    show_result(call, steps)
    return call


class BrokerAdmin(AdminArea):
    """Requests for the brokers of the cluster."""

    list = _lending(brokers.list_brokers)
    log_directories = _lending(brokers.log_directories)


class TopicAdmin(AdminArea):
    """Requests for topics, their partitions, offsets and records."""

    list = _lending(topics.list_topics)
    describe = _lending(topics.describe_topic)
    create = _lending(topics.create_topic)
    add_partitions = _lending(topics.add_partitions)
    delete = _lending(topics.delete_topic)
    delete_records = _lending(topics.delete_records)
    offsets = _lending(partitions.list_offsets)


class ConfigAdmin(AdminArea):
    """Requests for the settings of topics, brokers and groups."""

    describe = _lending(configs.describe_configs)
    alter = _lending(configs.alter_configs)


class GroupAdmin(AdminArea):
    """Requests for consumer groups and their committed offsets."""

    list = _lending(groups.list_groups)
    describe = _lending(groups.describe_group)
    offsets = _lending(groups.committed_offsets)
    commit_offsets = _lending(groups.commit_offsets)
    delete_offsets = _lending(groups.delete_offsets)
    delete = _lending(groups.delete_group)


class TransactionAdmin(AdminArea):
    """Requests for the transactions of all producers."""

    list = _lending(transactions.list_transactions)
    describe = _lending(transactions.describe_transaction)
    producers = _lending(transactions.describe_producers)
    abort = _lending(transactions.abort_transaction)
    abort_hanging = _lending(transactions.abort_hanging)


class UserAdmin(AdminArea):
    """Requests for the users whose SCRAM credentials (hashed passwords) the brokers store."""

    list = _lending(users.list_users)
    set_password = _lending(users.set_password)
    remove_password = _lending(users.remove_password)


class AclAdmin(AdminArea):
    """Requests for access rules (ACLs): to list, create and delete them."""

    list = _lending(acls.list_acls)
    add = _lending(acls.add_acls)
    remove = _lending(acls.remove_acls)


class QuotaAdmin(AdminArea):
    """Requests for quotas, which limit the rates of users, client ids and IP addresses."""

    list = _lending(quotas.list_quotas)
    alter = _lending(quotas.alter_quotas)


class Admin:
    """Administration of a cluster, over the connections of a client. The methods are grouped by area: each attribute
    has those of one area.

    Args:
        clusters: the client's pool of cluster objects, which hold the connections to the brokers.

    Attributes:
        brokers: the brokers of the cluster.
        topics: topics, their partitions, offsets and records.
        configs: settings of topics, brokers and groups.
        groups: consumer groups and their committed offsets.
        transactions: transactions of all producers.
        users: the users that log in with a stored credential.
        acls: ACLs.
        quotas: client quotas.
    """

    def __init__(self, clusters: ClusterPool[BlockingCluster]) -> None:
        self.brokers = BrokerAdmin(clusters)
        self.topics = TopicAdmin(clusters)
        self.configs = ConfigAdmin(clusters)
        self.groups = GroupAdmin(clusters)
        self.transactions = TransactionAdmin(clusters)
        self.users = UserAdmin(clusters)
        self.acls = AclAdmin(clusters)
        self.quotas = QuotaAdmin(clusters)
        self._clusters = clusters

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._clusters.bootstrap}>"
