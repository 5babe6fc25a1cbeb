"""The table of the greatest versions of files and records that a release reads."""

from stablelog.commit_order import index_format
from stablelog.coordinators.transactions import records as commit_log
from stablelog.data_directory import (
    catalog,
    checkpoints,
    clean_shutdown,
    formats,
    meta_properties,
    registered_file,
    settings_file,
)
from stablelog.log.files import epochs, log_start, partition_metadata, restored
from stablelog.log.indexes import summary, transaction_index
from stablelog.log.producer_state import snapshots
from stablelog.tier import manifest
from tests.reference_tables import table

BROKER, PARTITION = "broker", "partition"
FIELD, FIRST_LINE, FIRST_BYTES = "field `version`", "first line", "first two bytes"
FIRST_RECORD, FIRST_FIELD = f"{FIELD} of the first record", "first field of the value"
COMMIT_LOG, OFFSETS_LOG = formats.COMMIT_LOG_VALUES, formats.OFFSETS_LOG_VALUES
ROWS = (
    ("`cluster.json`", FIELD, catalog.VERSION, BROKER),
    ("`meta.properties`", "line `version=`", meta_properties.META_VERSION, BROKER),
    ("`broker.json`", FIELD, settings_file.SETTINGS_VERSION, BROKER),
    ("`acls.json`", FIELD, registered_file.ACLS.version, BROKER),
    ("`users.json`", FIELD, registered_file.USERS.version, BROKER),
    ("`quotas.json`", FIELD, registered_file.QUOTAS.version, BROKER),
    ("`.kafka_cleanshutdown`", FIELD, clean_shutdown.CLEAN_SHUTDOWN_VERSION, BROKER),
    ("offset checkpoints", FIRST_LINE, checkpoints.CHECKPOINT_VERSION, BROKER),
    ("`partition.metadata`", "line `version:`", partition_metadata.METADATA_VERSION, PARTITION),
    ("`leader-epoch-checkpoint`", FIRST_LINE, epochs.VERSION, PARTITION),
    ("`log-start-offset`, `view-start-offset`", FIRST_LINE, log_start.VERSION, PARTITION),
    ("`remote-manifest`", FIRST_RECORD, manifest.PARTED_VERSION, PARTITION),
    ("`remote-manifest-part-ID`", FIRST_RECORD, manifest.PART_VERSION, PARTITION),
    ("`remote-log-start`", FIRST_LINE, log_start.VERSION, PARTITION),
    ("`restored`", FIELD, restored.VERSION, PARTITION),
    ("`.summary`", FIRST_BYTES, summary.VERSION, PARTITION),
    ("`.snapshot`", FIRST_BYTES, snapshots.SNAPSHOT_VERSION, PARTITION),
    ("`.producers`", FIRST_BYTES, snapshots.PRODUCERS_VERSION, PARTITION),
    ("`.txnindex`", FIRST_BYTES, transaction_index.VERSION, PARTITION),
    ("`.commitsummary`", FIRST_BYTES, index_format.VERSION, PARTITION),
    ("commit log, a transactional id", FIRST_FIELD, COMMIT_LOG[commit_log.TRANSACTION_KIND][1], BROKER),
    ("commit log, a transaction group", FIRST_FIELD, COMMIT_LOG[commit_log.GROUP_KIND][1], BROKER),
    ("commit log, a joint commit's key", FIRST_FIELD, COMMIT_LOG[commit_log.JOINT_KIND][1], BROKER),
    (
        f"commit log, keys of the kinds {min(commit_log.OWN_KINDS)} to {max(commit_log.OWN_KINDS)}",
        "the kind, at the beginning of the record's key",
        commit_log.JOINT_KIND,
        BROKER,
    ),
    ("offsets log, a committed offset", FIRST_FIELD, OFFSETS_LOG[1][1], BROKER),
    ("offsets log, the metadata of a group", f"{FIRST_FIELD} (classic groups)", OFFSETS_LOG[2][1], BROKER),
    (
        "offsets log, consumer groups and their members",
        f"{FIRST_FIELD} (key versions 3, 5, 6, 7 and 8)",
        OFFSETS_LOG[3][1],
        BROKER,
    ),
)


def tables() -> dict[str, str]:
    header = ("file or record", "place of the version", "greatest known version", "does not start")
    return {"format-versions": table(header, ROWS)}
