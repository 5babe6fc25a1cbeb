"""AlterClientQuotas (49): set and remove quotas. Changes are durable before the response.

Behaviour: all quotas of an entity (such as a user) are changed, or none of them. A refused entity does not affect the
others. An entity or a key that is named twice is refused, as in Apache Kafka. The quotas take effect with the next
request of each client. Version notes: v1 flexible.
"""

from collections import Counter
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi, for_each
from stablelog.broker.loop.turns import in_turns
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_cluster
from stablelog.security.quotas.entities import Alteration, entity_of
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.alter_client_quotas.v1 import request as asked
    from kio.schema.alter_client_quotas.v1.response import AlterClientQuotasResponse, EntryData

API = ServedApi(
    ApiKey.ALTER_CLIENT_QUOTAS,
    first_version=0,
    last_version=1,
    is_alone=True,
    rights=(on_cluster(Operation.ALTER_CONFIGS),),
)
messages = API.messages


def _parse_entry(entry: "asked.EntryData") -> Alteration:
    """Return the change of quotas that an entry of the request asks for.

    Raises:
        RefusedError: the entity is not valid, or a key is named twice.
    """
    entity = entity_of((part.entity_type, part.entity_name) for part in entry.entity)
    values: dict[str, float | None] = {}
    for op in entry.ops:
        if op.key in values:
            raise RefusedError(
                ErrorCode.invalid_request, f"Duplicate quota key {op.key!r}, not updating quota for {entity}"
            )
        values[op.key] = None if op.remove else op.value
    return Alteration(entity, values)


def _entry_response(entry: "asked.EntryData", refused: RefusedError | None) -> "EntryData":
    return messages.EntryData(
        error_code=ErrorCode.none if refused is None else ErrorCode(refused.code),
        error_message=None if refused is None else str(refused),
        entity=tuple(
            [
                messages.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
                for part in entry.entity
            ]
        ),
    )


async def handle(
    broker: Broker, request: "asked.AlterClientQuotasRequest", context: Context
) -> "AlterClientQuotasResponse":
    """Change the quotas of each entity (such as a user) in the request, and return an error code for each, `none` if
    its quotas were changed.
    """
    try:
        context.require(Operation.ALTER_CONFIGS, ResourceType.CLUSTER)
    except RefusedError as denied:
        refusal = denied
        return messages.AlterClientQuotasResponse(
            throttle_time=NO_THROTTLE,
            entries=await for_each(request.entries, lambda entry: _entry_response(entry, refusal)),
        )
    outcomes: list[RefusedError | None] = []
    changes: dict[int, Alteration] = {}
    async for number, entry in in_turns(enumerate(request.entries)):
        try:
            changes[number] = _parse_entry(entry)
            outcomes.append(None)
        except RefusedError as refused:
            outcomes.append(refused)
    named = Counter([change.entity async for change in in_turns(changes.values())])
    async for number, change in in_turns(list(changes.items())):
        if named[change.entity] > 1:
            outcomes[number] = RefusedError(
                ErrorCode.invalid_request, f"Ignoring duplicate entity {change.entity}"
            )
            del changes[number]
    try:
        made = await broker.quotas.alter_quotas(list(changes.values()), validate_only=request.validate_only)
    except RefusedError as refused:  # The disk has refused the write.
        made = [refused] * len(changes)
    for number, outcome in zip(changes, made, strict=True):
        outcomes[number] = outcome
    return messages.AlterClientQuotasResponse(
        throttle_time=NO_THROTTLE,
        entries=await for_each(
            zip(request.entries, outcomes, strict=True), lambda each: _entry_response(each[0], each[1])
        ),
    )
