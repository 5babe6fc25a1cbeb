"""Records of remote segments, as the serializer of a release of Apache Kafka writes them.

    python -m tests.java.tier_records

prints those of a Kafka without the field `TxnIndexEmpty` (KIP-1058), which Kafka 4.0 added.
"""

import subprocess
from pathlib import Path

from peers import apache_kafka

WITHOUT_THE_FIELD = "3.9.1"
SOURCE = Path(__file__).with_name("TierRecords.java")
KINDS = ("segment", "update", "partition delete", "snapshot")


def written_by(version: str) -> dict[str, str]:
    """One record of each kind, in hexadecimal, as this release of Kafka writes it.

    Raises:
        apache_kafka.NotToBeHad: there is no Java, no Maven, or the jars cannot be fetched.
    """
    artifacts = (apache_kafka.Artifact("org.apache.kafka", "kafka-storage", version),)
    jars = apache_kafka.fetched(
        apache_kafka.FOLDER, f"storage-{version}", f"kafka-storage {version}", artifacts
    )
    classes = apache_kafka.compiled(SOURCE, jars)
    command = [apache_kafka.java(), "-cp", f"{classes}:{jars}/*", SOURCE.stem]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return dict(zip(KINDS, done.stdout.split(), strict=True))


if __name__ == "__main__":
    for kind, content in written_by(WITHOUT_THE_FIELD).items():
        print(f"{kind}: {content}")
