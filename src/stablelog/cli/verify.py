"""`stablelog verify`: check the files of a partition or of a data directory without a broker."""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from stablelog.cli.inspect import partitions_of, progress_of
from stablelog.cli.options import AsJson, command_app, examples
from stablelog.cli.output import FINDINGS, counted, print_done, print_json
from stablelog.commit_order.verify import verify_view
from stablelog.env.local_disk import LocalDisk
from stablelog.errors import DiskError
from stablelog.log.recovery.damage import Expected
from stablelog.log.verify import FileFinding, verify_directory
from stablelog.ops.verify import expectations, until_unreadable, verify_data_directory

TRIES: Final = 5

app = command_app()


@app.command(epilog=examples("stablelog verify data"))
def verify(
    directory: Annotated[Path, typer.Argument(help="A partition's directory, or a data directory.")],
    as_json: AsJson = False,
) -> None:
    """Check all logs, and every index against its log. The exit code is 1 if there are findings. This command writes
    nothing.
    """
    disk = LocalDisk(read_only=True)
    directory = directory.absolute()
    partitions = partitions_of(disk, directory)
    is_partition = partitions == [directory]
    findings = [] if is_partition else list(verify_data_directory(disk, directory))
    # First read the files that describe a log, such as indexes and summaries, then the log itself. A running broker
    # only appends to logs, so the log then has at least the described content.
    expected = {}
    try:
        expected = expectations(disk, directory.parent if is_partition else directory)
    except DiskError as error:
        findings.append(
            FileFinding(
                directory, f"the logs of this directory cannot be compared with its list of topics: {error}"
            )
        )
    with progress_of(len(partitions), as_json=as_json) as advance:
        for partition in partitions:
            findings += _findings(disk, partition, expected.get(partition, Expected()))
            advance()
    # Report a fault only once, although the checks of the data directory and of a partition may both find it.
    findings = list(dict.fromkeys(findings))
    if as_json:
        print_json([{"file": str(finding.path), "problem": finding.message} for finding in findings])
    else:
        for finding in findings:
            sys.stdout.write(f"{finding.path}: {finding.message}\n")
        print_done(
            f"{counted(len(partitions), 'partition')}, {counted(len(findings), 'finding')}", as_json=False
        )
    if findings:
        sys.exit(FINDINGS)


def _findings(disk: LocalDisk, partition: Path, expected: Expected) -> list[FileFinding]:
    """Check the files of a partition, and return the findings: what is wrong with them. `expected` says what the files
    of the data directory should contain. If a running broker deletes the partition during the check, the result is
    empty. If a running broker deletes a segment during the check, the check starts again.
    """
    tries = 0
    while True:
        try:
            found = [
                *until_unreadable(
                    partition,
                    verify_directory(
                        disk,
                        partition,
                        recovery_point=expected.recovery_point,
                        gapless_epoch=expected.gapless_epoch,
                    ),
                ),
                *until_unreadable(partition, verify_view(disk, partition)),
            ]
        except FileNotFoundError:
            tries += 1
            if partition.exists() and tries == TRIES:
                raise
        else:
            return found if partition.exists() else []
        if not partition.exists():
            return []
