"""ApiVersions (18): the APIs with their versions, and the features of the broker.

Version notes: v3 flexible, with features; v4 features whose minimum version is 0. The response header is always v0, and
a request of an unknown version gets a v0 response with error 35.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, ServedApi
from stablelog.broker.apis.served import served_apis
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.api_versions.v4.request import ApiVersionsRequest
    from kio.schema.api_versions.v4.response import ApiVersionsResponse

API = ServedApi(ApiKey.API_VERSIONS, first_version=0, last_version=4)
messages = API.messages

# By feature: its minimum, maximum and finalized version. With transaction.version 2 each transaction has its own
# producer epoch (KIP-890). Clients that support version 2 use it. With group.version 1 the broker has the consumer group
# protocol (KIP-848).
FEATURES = {"transaction.version": (0, 2, 2), "group.version": (0, 1, 1)}


def versions_response(error: ErrorCode = ErrorCode.none) -> "ApiVersionsResponse":
    """Return the response with all APIs, their versions and the features.

    Args:
        error: the error code of the response.
    """
    return messages.ApiVersionsResponse(
        error_code=error,
        api_keys=tuple(
            messages.ApiVersion(api_key=key, min_version=api.first_version, max_version=api.last_version)
            for key, api in served_apis().items()
        ),
        throttle_time=NO_THROTTLE,
        supported_features=tuple(
            messages.SupportedFeatureKey(name=name, min_version=first, max_version=last)
            for name, (first, last, _) in FEATURES.items()
        ),
        finalized_features_epoch=1,
        finalized_features=tuple(
            messages.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, (_, _, level) in FEATURES.items()
        ),
        zk_migration_ready=False,
    )


async def handle(_broker: Broker, _request: "ApiVersionsRequest", _context: Context) -> "ApiVersionsResponse":
    """Return the APIs, their versions and the features."""
    return versions_response()
