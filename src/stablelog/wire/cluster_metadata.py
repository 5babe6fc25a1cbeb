"""Metadata requests and responses with the authorized operations of the cluster."""

from dataclasses import dataclass

from kio.schema.metadata.v13.request import MetadataRequest
from kio.schema.metadata.v13.response import MetadataResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadataRequest(MetadataRequest):  # type: ignore[misc]  # mypy does not follow kio
    """A Metadata request of versions 8 to 10.

    Attributes:
        include_cluster_authorized_operations: whether the response contains the authorized operations of the cluster.
            Later versions leave this to DescribeCluster.
    """

    include_cluster_authorized_operations: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadataResponse(MetadataResponse):  # type: ignore[misc]  # mypy does not follow kio
    """A Metadata response of versions 8 to 10.

    Attributes:
        cluster_authorized_operations: the operations that the client may carry out on the cluster, as an integer with
            one bit for each (`stablelog.security.acls.bits`).
    """

    cluster_authorized_operations: int
