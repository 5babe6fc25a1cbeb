"""DescribeCut as a blocking call: the cut of commit-ordered topics at a commit sequence."""

from stablelog.client.blocking.cluster import blocking
from stablelog.client.core import cuts as core
from stablelog.client.core.cuts import Cut, PendingMarker

__all__ = ["Cut", "PendingMarker", "describe_cut"]

describe_cut = blocking(core.describe_cut)
