"""`stablelog cut`: show a cut, a position between two commits in all partitions of some topics: the number of the last
commit before it, and an offset for each partition. Also show the markers that later commits wait for.
"""

from typing import Annotated

import typer

from stablelog.cli.admin import known_topic
from stablelog.cli.broker import CommandBroker, with_broker
from stablelog.cli.options import AsJson, command_app, examples
from stablelog.cli.output import print_json, print_table
from stablelog.client.blocking.cuts import describe_cut
from stablelog.wire.extension.cut import RESOLVED
from stablelog.wire.extension.transaction_groups import group_in_words

app = command_app()


@app.command(epilog=examples("stablelog cut orders stock", "stablelog cut orders --at 17 --json"))
@with_broker
def cut(
    topics: Annotated[list[str], typer.Argument(help="Commit-ordered topics of one transaction group.")],
    at: Annotated[
        int, typer.Option(help="A commit sequence; -1 for the last one that is resolved.")
    ] = RESOLVED,
    as_json: AsJson = False,
    *,
    broker: CommandBroker,
) -> None:
    """Show a cut: a commit sequence R, and one offset for each partition. A reader up to these offsets gets exactly the
    transactions with a commit sequence up to R. The command also shows the commit markers that are not written yet.
    """
    admin = broker.admin()
    for topic in topics:
        # Check each topic first: for a missing topic `known_topic` fails at once, but `describe_cut` would retry until
        # its deadline.
        known_topic(admin, topic)
    with broker.cluster() as cluster:
        found = describe_cut(cluster, topics, at)
    offsets = [(topic, partition, offset) for (topic, partition), offset in found.offsets.items()]
    if as_json:
        print_json(
            {
                "group": found.group,
                "commit_sequence": found.commit_sequence,
                "last_commit_sequence": found.last_commit_sequence,
                "offsets": [dict(zip(("topic", "partition", "offset"), row, strict=True)) for row in offsets],
                "holders": [holder._asdict() for holder in found.holders],
            }
        )
        return
    title = (
        f"In {group_in_words(found.group)} every commit up to {found.commit_sequence} is whole before these offsets; "
        f"the last commit is {found.last_commit_sequence}"
    )
    print_table(title, ("topic", "partition", "offset"), offsets)
    if found.holders:
        columns = ("commit", "transactional id", "topic", "partition")
        print_table("Markers that are not durable yet", columns, found.holders)
