"""Requests to list and change client quotas (KIP-546)."""

from collections.abc import Mapping
from typing import NamedTuple

from stablelog.client.core.cluster import Cluster
from stablelog.client.core.steps import Steps
from stablelog.client.responses import check
from stablelog.wire.quotas import MatchType, in_words

# Type of the entity ("user", "client-id" or "ip") -> its name; None for the default of the type.
QuotaEntity = Mapping[str, str | None]


class Quotas(NamedTuple):
    """The quotas of one entity (a user, a client id, both, or an IP address): the entity, and the value of each quota
    by its key, such as "producer_byte_rate".
    """

    entity: dict[str, str | None]
    values: dict[str, float]


def list_quotas(
    cluster: Cluster, entity: QuotaEntity | None = None, *, strict: bool = False
) -> Steps[list[Quotas]]:
    """Return the quotas of all entities, or of those with given types and names. An entity says to whom a quota
    applies: a user, a client id, both, or an IP address.

    Args:
        cluster: the brokers.
        entity: the types and names that an entity must have, such as {"user": "alice"}; None for all entities.
        strict: whether to leave out entities that also have a type which is not in `entity`.

    Raises:
        RefusedError: a type is unknown, or the user may not see quotas.
        UnavailableError: no broker responds.
    """
    from kio.schema.describe_client_quotas.v1.request import ComponentData, DescribeClientQuotasRequest

    components = tuple(
        ComponentData(
            entity_type=kind, match_type=MatchType.DEFAULT if name is None else MatchType.EXACT, match=name
        )
        for kind, name in (entity or {}).items()
    )
    request = DescribeClientQuotasRequest(components=components, strict=strict)

    def attempt() -> Steps[list[Quotas]]:
        connection = yield from cluster.any_connection()
        response = yield from connection.request_steps(request)
        check(response.error_code, "listing quotas", response.error_message)
        return [
            Quotas(
                {part.entity_type: part.entity_name for part in entry.entity},
                {value.key: value.value for value in entry.values},
            )
            for entry in response.entries or ()
        ]

    return (yield from cluster.retrying("listing quotas", attempt))


def alter_quotas(cluster: Cluster, entity: QuotaEntity, changes: Mapping[str, float | None]) -> Steps[None]:
    """Change the quotas of one entity: a user, a client id, both, or an IP address. Either all changes are made or
    none.

    Args:
        cluster: the brokers.
        entity: the types and names of the entity, such as {"user": "alice"}.
        changes: by the key of a quota, such as "producer_byte_rate", its new value; None removes the quota.

    Raises:
        RefusedError: the entity, a key or a value is not valid, or the user may not change quotas.
        UnavailableError: no broker responds.
    """
    from kio.schema.alter_client_quotas.v1.request import (
        AlterClientQuotasRequest,
        EntityData,
        EntryData,
        OpData,
    )

    entry = EntryData(
        entity=tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()),
        ops=tuple(
            OpData(key=key, value=0.0 if value is None else value, remove=value is None)
            for key, value in changes.items()
        ),
    )
    request = AlterClientQuotasRequest(entries=(entry,), validate_only=False)
    shown = in_words(entity.items())

    def attempt() -> Steps[None]:
        connection = yield from cluster.any_connection()
        (result,) = (yield from connection.request_steps(request)).entries
        check(result.error_code, f"quotas of {shown}", result.error_message)

    yield from cluster.retrying(f"changing the quotas of {shown}", attempt)
