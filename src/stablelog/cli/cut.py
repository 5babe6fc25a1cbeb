"""`stablelog cut`: shows the last resolved commit, its offset in each partition, and the markers that it waits for."""

from stablelog.cli.admin import known_topic
from stablelog.cli.output import print_json, print_table
from stablelog.client.cluster import Cluster
from stablelog.client.cuts import describe_cut
from stablelog.wire.extension.cut import RESOLVED
from stablelog.wire.extension.transaction_groups import group_in_words


def cut(bootstrap: str, topics: list[str], at: int | None, *, as_json: bool) -> None:
    """Print the cut of these topics."""
    for topic in topics:
        known_topic(bootstrap, topic)  # fails at once for a missing topic; a reader would wait for it
    with Cluster(bootstrap) as cluster:
        found = describe_cut(cluster, topics, RESOLVED if at is None else at)
    if as_json:
        print_json(
            {
                "group": found.group,
                "commit_sequence": found.commit_sequence,
                "last_commit_sequence": found.last_commit_sequence,
                "offsets": [
                    {"topic": topic, "partition": partition, "offset": offset}
                    for (topic, partition), offset in found.offsets.items()
                ],
                "holders": [holder._asdict() for holder in found.holders],
            }
        )
        return
    rows = [[topic, partition, offset] for (topic, partition), offset in found.offsets.items()]
    title = f"In {group_in_words(found.group)} every commit up to {found.commit_sequence} is whole before these offsets; the last one is {found.last_commit_sequence}"
    print_table(title, ["topic", "partition", "offset"], rows)
    if found.holders:
        waits = [list(holder) for holder in found.holders]
        print_table("Markers that are awaited", ["commit", "transactional id", "topic", "partition"], waits)
