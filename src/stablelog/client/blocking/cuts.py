"""The request DescribeCut as a blocking call. It asks for a cut of commit-ordered topics: the offset in each partition
between the commits up to a commit sequence (the number of a commit) and the later ones.
"""

from stablelog.client.blocking.cluster import blocking
from stablelog.client.core import cuts as core
from stablelog.client.core.cuts import Cut, PendingMarker

__all__ = ["Cut", "PendingMarker", "describe_cut"]

describe_cut = blocking(core.describe_cut)
