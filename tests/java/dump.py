"""Apache Kafka's own reader of files, kafka.tools.DumpLogSegments: what it makes of a directory."""

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from peers import apache_kafka
from tests.quick_java import QUICK_JAVA

SHORT_LIVED = ("-Xmx256m", *QUICK_JAVA.split())  # what starts soonest
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
# What it says of a file in which something does not hold; the lines of records are not looked at.
COMPLAINT = re.compile(
    r"(?i)mismatch|corrupt|exception|error|out of order|not found|non-consecutive|isvalid: false"
)


@dataclass(slots=True)
class Dump:
    """What the tool printed.

    Attributes:
        lines: by file.
        complaints: whatever it found wrong, in any of them.
    """

    lines: dict[Path, list[str]] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)

    def of(self, suffix: str) -> list[tuple[Path, dict[str, str]]]:
        """The lines that have fields, of all files with this suffix, in the order of their offsets."""
        return [
            (path, fields(line))
            for path in sorted(self.lines)
            if path.suffix == suffix
            for line in self.lines[path]
            if ": " in line and not line.startswith(("|", "Log starting offset"))
        ]

    def records(self) -> list[dict[str, str]]:
        """The fields of each record of the log files, in the order of their offsets."""
        return [
            fields(line.removeprefix("| "))
            for path in sorted(self.lines)
            for line in self.lines[path]
            if line.startswith("| ")
        ]


def fields(line: str) -> dict[str, str]:
    """`a: 1 b: 2` as a dictionary; a value may hold spaces, a name may not."""
    return {name: value.strip() for name, value in re.findall(r"(\w+): (.*?)(?= \w+: |$)", line)}


def files_of(directory: Path) -> list[Path]:
    """The files of one partition that Kafka knows."""
    return sorted(path for path in directory.iterdir() if path.suffix in SUFFIXES)


def dump(*files: Path, options: tuple[str, ...] = ("--print-data-log",)) -> Dump:
    """Run the tool over files. It reads every record, and holds every index entry against the log.

    Args:
        files: of partitions; those of one call are all decoded alike.
        options: how records are decoded, or which check is to be made.
    """
    command = apache_kafka.command_of(
        "kafka.tools.DumpLogSegments",
        "--deep-iteration",
        "--files",
        ",".join(map(str, files)),
        *options,
        jvm_options=SHORT_LIVED,
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    found = Dump()
    at: list[str] = []
    for line in done.stdout.splitlines():
        if line.startswith("Dumping "):
            at = found.lines.setdefault(Path(line.removeprefix("Dumping ")), [])
            continue
        at.append(line)
        if not line.startswith("|") and COMPLAINT.search(line):
            found.complaints.append(line)
    found.complaints += [line for line in done.stderr.splitlines() if "SLF4J" not in line and line.strip()]
    assert sorted(found.lines) == sorted(files)
    return found
