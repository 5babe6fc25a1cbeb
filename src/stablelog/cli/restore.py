"""`stablelog restore`: make a data directory from an object store alone, after the loss of the disk."""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from stablelog.cli.options import AllowHttp, AsJson, StoreOptions, StoreUrl, command_app, examples
from stablelog.cli.output import counted, print_done, print_json, print_table
from stablelog.cli.storage import open_command_store
from stablelog.env.local_disk import LocalDisk
from stablelog.ops.restore import restore as make_directory
from stablelog.ops.restore_report import Report
from stablelog.wire.extension.transaction_groups import group_in_words

app = command_app()


@app.command(epilog=examples("stablelog restore s3://bucket/prefix --data data"))
def restore(
    url: StoreUrl,
    data: Annotated[Path, typer.Option(help="The new data directory. It must be missing or empty.")],
    allow_http: AllowHttp = False,
    options: StoreOptions = None,
    as_json: AsJson = False,
) -> None:
    """Make a data directory from an object store, after the disk of the broker is lost.

    The command says what is gone. A broker that still uses the store copies no more segments to it.
    """
    store = open_command_store(url, options, allow_http=allow_http)

    def progress(what: str, number: int, count: int) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{what}: {number + 1} of {count} ")
            sys.stderr.flush()

    report = make_directory(store, LocalDisk(), data.absolute(), time.time_ns() // 1_000_000, progress)
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    if as_json:
        print_json(_as_object(report))
        return
    _print(report)
    print_done(
        f"restored {counted(len(report.ranges), 'partition')} of cluster {report.cluster_id} in {data}; start the broker "
        f"with the same settings, among them node.id={report.node_id} and stablelog.remote.url={url}",
        as_json=False,
    )


def _print(report: Report) -> None:
    print_table(
        "What is gone: all records from `gone from` on",
        ("partition", "log start", "gone from", "last known log end", "at", "next offset"),
        [
            (
                f"{one.topic}-{one.partition}",
                one.log_start,
                one.lost_from,
                "not known" if one.log_end is None else one.log_end,
                "" if one.log_end_ms is None else _time(one.log_end_ms),
                one.next_offset,
            )
            for one in report.ranges
        ],
    )
    print_table(
        "Groups beyond what is left: their consumers get an error, and auto.offset.reset decides",
        ("group", "partition", "committed offset", "gone from"),
        [(one.group, f"{one.topic}-{one.partition}", one.offset, one.lost_from) for one in report.groups],
    )
    print_table(
        "Torn transactions: committed, and only a part of them is left",
        ("transactional id", "commit sequence", "found in", "gone in"),
        [
            (one.transactional_id, one.commit_sequence, _places(one.found), _places(one.lost))
            for one in report.torn
        ],
    )
    print_table(
        "Transactions that are aborted in a partition: the store may have only some of their records there",
        ("transactional id", "commit sequence", "partition", "first offset", "records in the store"),
        [
            (
                "not known" if one.transactional_id is None else one.transactional_id,
                "" if one.commit_sequence < 0 else one.commit_sequence,
                f"{one.topic}-{one.partition}",
                one.first_offset,
                one.record_count,
            )
            for one in report.left_out
        ],
    )
    print_table(
        "Dynamic settings of the broker, which apply again",
        ("setting", "value"),
        sorted({**report.default_settings, **report.settings}.items()),
    )
    sys.stdout.write(
        f"not restored, because the store has nothing of them: {', '.join(report.not_restored)}\n"
    )
    for group, sequence in report.torn_sequences.items():
        sys.stdout.write(
            f"{group_in_words(group)}: commits up to {sequence} may be torn, so no cut begins before it\n"
        )


def _places(partitions: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{topic}-{index}" for topic, index in partitions)


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")


def _as_object(report: Report) -> dict[str, object]:
    return {
        **report._asdict(),
        "settings": dict(report.settings),
        "not_restored": list(report.not_restored),
        "default_settings": dict(report.default_settings),
        "group_settings": {group: dict(configs) for group, configs in report.group_settings.items()},
        "ranges": [one._asdict() for one in report.ranges],
        "groups": [one._asdict() for one in report.groups],
        "left_out": [one._asdict() for one in report.left_out],
        "torn": [
            {**one._asdict(), "found": _list(one.found), "lost": _list(one.lost)} for one in report.torn
        ],
    }


def _list(partitions: tuple[tuple[str, int], ...]) -> list[str]:
    return [f"{topic}-{index}" for topic, index in partitions]
