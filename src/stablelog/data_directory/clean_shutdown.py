"""The file `.kafka_cleanshutdown`, by which a broker marks that it has stopped cleanly.

Format: docs/reference/formats.md, "A data directory".
"""

import logging
from pathlib import Path
from typing import Final

from stablelog.env.disk import Disk
from stablelog.errors import DamageError, adding_path, refuse_unknown_version
from stablelog.json_text import parse_json

log = logging.getLogger(__name__)

CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
CLEAN_SHUTDOWN_VERSION: Final = 0
CLEAN_SHUTDOWN: Final = b'{"version":%d,"brokerEpoch":-1}' % CLEAN_SHUTDOWN_VERSION


def check_clean_shutdown(disk: Disk, path: Path) -> None:
    """Check the content of the file that marks a clean stop. An empty file is valid, because old releases of Kafka
    write one.

    Raises:
        UnknownFormatError: a later release has written the file.
        DamageError: the file is damaged.
        FileNotFoundError: the file does not exist.
    """
    content = disk.read_bytes(path)
    if not content:
        return
    try:
        read = parse_json(content)
        version = int(read["version"])
        int(read["brokerEpoch"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamageError(f"{path} is damaged: the file must contain a version and a broker epoch") from error
    with adding_path(path):
        refuse_unknown_version("the sign of a clean stop", version, CLEAN_SHUTDOWN_VERSION)
    if version != CLEAN_SHUTDOWN_VERSION:
        raise DamageError(
            f"{path} is damaged: the file has version {version}, and only version "
            f"{CLEAN_SHUTDOWN_VERSION} exists"
        )


def was_stopped_cleanly(disk: Disk, path: Path) -> bool:
    """Return whether the last broker has stopped cleanly: it has if the file `path` exists, even if the file is
    damaged.

    Raises:
        UnknownFormatError: a later release has written the file.
    """
    try:
        check_clean_shutdown(disk, path)
    except FileNotFoundError:
        return False
    except DamageError as damaged:
        log.warning(
            "the broker treats its last stop as clean, although the file that records the stop is "
            "damaged: %s",
            damaged,
        )
    return True
