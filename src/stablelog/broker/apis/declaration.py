"""The declaration of an API: its versions, rights and error codes, which the broker, its documents and its tests use.
The handler of the API is a separate function.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stablelog.broker.durability.disk_reserve import WhileFull
from stablelog.broker.topics.partition_state import PartitionCodes
from stablelog.security.api_rights import Right
from stablelog.wire.api import Api
from stablelog.wire.message_classes import Messages


@dataclass(frozen=True, eq=False)
class ServedApi(Api):
    """An API that the broker serves. The module of the API has it under the name `API`.

    Attributes:
        is_login: whether the requests are messages of a login, which a listener with SASL accepts at any time.
        rights: the rights that the handler checks. Empty if each client may send the request.
        codes: the error codes for partitions that are not open, by a name that says to which requests of the API the
            codes apply; "" for all of them. Empty if requests of the API name no partition and no topic.
        while_full: how the API refuses requests while the disk is full; None if it does not refuse any.
    """

    is_login: bool = False
    rights: tuple[Right, ...] = ()
    codes: Mapping[str, PartitionCodes] = field(default_factory=dict)
    while_full: WhileFull | None = None

    @property
    def messages(self) -> Messages:
        """The classes of the API's messages with which the handler works: those of the newest version."""
        return Messages(self.key, self.last_version)
