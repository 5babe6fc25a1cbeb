"""The types that the calls of `Client.admin`, which administer a cluster, take and return."""

from stablelog.client.blocking.admin import Admin
from stablelog.client.core.admin.configs import Config, ConfigSource
from stablelog.client.core.admin.groups import CommittedOffset, Group, ListedGroup, Member
from stablelog.client.core.admin.quotas import Quotas
from stablelog.client.core.admin.topics import CreatedTopic
from stablelog.client.core.admin.transactions import ActiveProducer, DescribedTransaction, ListedTransaction
from stablelog.client.core.admin.users import Credential
from stablelog.client.topics import ListedOffset, PartitionDescription, TopicDescription
from stablelog.wire.acls import (
    AclBinding,
    AclFilter,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)
from stablelog.wire.sasl.scram import Mechanism

__all__ = [
    "AclBinding",
    "AclFilter",
    "ActiveProducer",
    "Admin",
    "CommittedOffset",
    "Config",
    "ConfigSource",
    "CreatedTopic",
    "Credential",
    "DescribedTransaction",
    "Group",
    "ListedGroup",
    "ListedOffset",
    "ListedTransaction",
    "Mechanism",
    "Member",
    "Operation",
    "PartitionDescription",
    "Pattern",
    "PatternType",
    "Permission",
    "Quotas",
    "ResourceType",
    "TopicDescription",
]
