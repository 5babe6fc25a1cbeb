"""The client's side of DescribeCut, which returns a cut. A cut consists of a commit sequence R and of one offset for
each partition: before this offset, the partition has all its commits up to R, and no later ones.
"""

from stablelog.client.blocking.cluster import blocking
from stablelog.client.core import cuts as core
from stablelog.client.core.cuts import Cut, PendingMarker

__all__ = ["Cut", "PendingMarker", "describe_cut"]

describe_cut = blocking(core.describe_cut)
