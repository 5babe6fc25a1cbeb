"""The diagnosis: the facts, the findings among them, and both as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stablelog.ops.doctor.facts import (
    BrokerFacts,
    DirectoryFacts,
    Finding,
    Limits,
    ShownSetting,
    Versions,
    Volume,
)
from stablelog.ops.doctor.findings import (
    broker_findings,
    clock_findings,
    directory_findings,
    limit_findings,
    version_findings,
    volume_findings,
)


@dataclass(frozen=True)
class Diagnosis:
    """What the doctor says of a machine, a data directory and a broker.

    Attributes:
        versions: what runs.
        limits: the limits of the process.
        wall_ms: the time of the machine's clock, in ms since 1970.
        directory: the data directory; None if none was named.
        volume: the file system of the data directory; None if there is no directory.
        broker: the running broker; None if none was named.
    """

    versions: Versions
    limits: Limits
    wall_ms: int
    directory: DirectoryFacts | None = None
    volume: Volume | None = None
    broker: BrokerFacts | None = None

    @property
    def disk(self) -> Volume | None:
        """The file system of the data directory, or the one that the broker reports."""
        return self.volume or (self.broker.volume if self.broker is not None else None)

    @property
    def settings(self) -> Sequence[ShownSetting]:
        """The settings of the broker and of the data directory, without secrets."""
        return [one for facts in (self.broker, self.directory) if facts is not None for one in facts.settings]

    @property
    def findings(self) -> list[Finding]:
        """What is wrong; each finding once."""
        partitions = self.directory.partitions if self.directory is not None else None
        found = [
            *version_findings(self.versions),
            *limit_findings(self.limits, partitions or 0),
            *clock_findings(self.wall_ms),
        ]
        if self.directory is not None:
            found += directory_findings(self.directory, self.wall_ms)
        if self.volume is not None:
            found += volume_findings(self.volume)
        if self.broker is not None:
            found += broker_findings(self.broker, self.directory)
        return list(dict.fromkeys(found))

    def document(self) -> Mapping[str, Any]:
        """Return the report as a JSON document."""
        limits = asdict(self.limits)
        return {
            "versions": {
                "stablelog": self.versions.stablelog,
                "python": self.versions.python,
                "system": self.versions.system,
                "libraries": dict(self.versions.libraries),
            },
            "limits": limits,
            "disk": None if self.disk is None else _disk(self.disk),
            "directory": None if self.directory is None else _directory(self.directory),
            "broker": None if self.broker is None else _broker(self.broker),
            "settings": [one._asdict() for one in self.settings],
            "findings": [one._asdict() for one in self.findings],
        }


def _disk(volume: Volume) -> Mapping[str, Any]:
    return {
        "path": volume.path,
        "file_system": volume.file_system,
        "total_bytes": volume.total,
        "free_bytes": volume.free,
        "free_inodes": volume.inodes_free,
        "reserve_bytes": volume.reserve,
    }


def _directory(facts: DirectoryFacts) -> Mapping[str, Any]:
    return {
        "path": str(facts.path),
        "topics": facts.topics,
        "partitions": facts.partitions,
        "lock": facts.lock,
        "lock_holder": None if facts.holder is None else facts.holder.process_id,
        "is_stopped_cleanly": facts.is_stopped_cleanly,
    }


def _broker(facts: BrokerFacts) -> Mapping[str, Any]:
    return {
        "bootstrap": facts.bootstrap,
        "brokers": None if facts.brokers is None else len(facts.brokers),
        "topics": facts.topics,
        "partitions": facts.partitions,
        "offline": facts.offline,
    }
