"""The request DescribeCommits as a blocking call. It asks for the transactions of a commit-ordered partition: their
commit sequences (numbers of the commits), and the offsets between which their records are.
"""

from stablelog.client.blocking.cluster import blocking
from stablelog.client.core import commits as core
from stablelog.client.core.commits import Commit, Commits

__all__ = ["Commit", "Commits", "describe_commits"]

describe_commits = blocking(core.describe_commits)
