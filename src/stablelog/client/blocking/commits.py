"""DescribeCommits as a blocking call: the bounds of transactions in a commit-ordered partition."""

from stablelog.client.blocking.cluster import blocking
from stablelog.client.core import commits as core
from stablelog.client.core.commits import Commit, Commits

__all__ = ["Commit", "Commits", "describe_commits"]

describe_commits = blocking(core.describe_commits)
