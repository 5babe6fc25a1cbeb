"""UpdateFeatures (57): change the finalized versions of features. The versions of the broker's features cannot change.

Behaviour: a request for the version that a feature already has is a success. A request for another version, or for an
unknown feature, is refused as a whole with INVALID_UPDATE_VERSION. Version notes: v1 validate_only, and the type of the
update (upgrade or downgrade); v2 the response has no entry for each feature.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi, for_each
from stablelog.broker.apis.api_versions import FEATURES
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_cluster
from stablelog.wire.api import ApiKey
from stablelog.wire.message_classes import Messages

if TYPE_CHECKING:
    from kio.schema.update_features.v1.response import UpdatableFeatureResult, UpdateFeaturesResponse
    from kio.schema.update_features.v2.request import FeatureUpdateKey, UpdateFeaturesRequest

API = ServedApi(
    ApiKey.UPDATE_FEATURES,
    first_version=0,
    last_version=2,
    is_heavy=True,
    rights=(on_cluster(Operation.ALTER),),
)
# The response is made in version 1: version 2 lacks its results.
messages = Messages(ApiKey.UPDATE_FEATURES, 1)

UPGRADE_TYPES = (1, 2, 3)  # an upgrade, a safe downgrade, an unsafe downgrade


def _refuse_change(update: "FeatureUpdateKey") -> None:
    """Refuse an update, unless it names the version that the feature already has.

    Raises:
        RefusedError: the update names another version; the error code is invalid_update_version.
    """
    feature, version = update.feature, update.max_version_level
    if feature not in FEATURES:
        why = "the broker does not have this feature"
    elif version != FEATURES[feature][2]:
        why = f"the version is always {FEATURES[feature][2]}"
    elif update.upgrade_type not in UPGRADE_TYPES:
        why = f"the type of the update, {update.upgrade_type}, is unknown"
    else:
        return
    raise RefusedError(
        ErrorCode.invalid_update_version,
        f"no feature was updated, because feature {feature} cannot get version {version}: {why}",
    )


async def handle(
    _broker: Broker, request: "UpdateFeaturesRequest", context: Context
) -> "UpdateFeaturesResponse":
    """Return success if each update names the present version of its feature, and an error otherwise."""
    error, why = ErrorCode.none, None
    results: tuple[UpdatableFeatureResult, ...] = ()
    try:
        context.require(Operation.ALTER, ResourceType.CLUSTER)
        await for_each(request.feature_updates, _refuse_change)
        results = await for_each(
            request.feature_updates,
            lambda update: messages.UpdatableFeatureResult(
                feature=update.feature, error_code=ErrorCode.none, error_message=None
            ),
        )
    except RefusedError as refused:
        error, why = ErrorCode(refused.code), str(refused)
    return messages.UpdateFeaturesResponse(
        throttle_time=NO_THROTTLE, error_code=error, error_message=why, results=results
    )
