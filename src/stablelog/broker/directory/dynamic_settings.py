"""The broker's dynamic settings on disk: settings that AlterConfigs and IncrementalAlterConfigs requests have changed.

The settings are in `broker.json`, which is replaced as a whole. A line in `meta.properties` records that the file
exists. Without that line the broker would not notice a lost file: the settings of the command line would apply again,
and retention could delete data that the dynamic settings protect.
Format: docs/formats.md, "broker.json".
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c
from kio.schema.errors import ErrorCode

from stablelog.broker.config import NOTHING, BrokerConfig
from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.env.disk import Disk
from stablelog.errors import DamageError, DiskError, RefusedError, UsageError, in_words, naming, refuse_newer

log = logging.getLogger(__name__)

SETTINGS_FILE = "broker.json"
SETTINGS_VERSION = 2
# Version 2 adds the settings of all brokers of the cluster. A file without such settings has version 1, so that the
# releases that know only version 1 can read it.
VERSION_WITHOUT_DEFAULTS = 1
META_LINE = f"stablelog.dynamic.settings={SETTINGS_FILE}"


class Dynamic(NamedTuple):
    """The dynamic settings of one data directory.

    Attributes:
        settings: those of this broker.
        defaults: those of all brokers of the cluster.
    """

    settings: dict[str, str]
    defaults: dict[str, str]


def encode_settings(settings: Mapping[str, str], defaults: Mapping[str, str] = NOTHING) -> bytes:
    """Encode the dynamic settings of this broker, and those of all brokers, as the content of `broker.json`."""
    content: dict[str, object] = {"version": VERSION_WITHOUT_DEFAULTS, "settings": dict(settings)}
    if defaults:
        content |= {"version": SETTINGS_VERSION, "defaults": dict(defaults)}
    text = json.dumps(content, separators=(",", ":")).encode()
    return text + b"\n%08x\n" % crc32c(text)


def decode_settings(content: bytes) -> Dynamic:
    """Decode the content of `broker.json`.

    Raises:
        NewerFormatError: a later release has written the file.
        DamageError: the file is damaged.
    """
    text, _, crc = content.removesuffix(b"\n").rpartition(b"\n")
    if crc != b"%08x" % crc32c(text):
        raise DamageError("its CRC does not match its content")
    try:
        read = json.loads(text)
        version = read["version"]
        refuse_newer("the broker's dynamic settings", version, SETTINGS_VERSION)
        if version not in (VERSION_WITHOUT_DEFAULTS, SETTINGS_VERSION):
            raise DamageError(
                f"it is of version {version}, and this release reads versions 1 and {SETTINGS_VERSION}"
            )
        defaults = {} if version == VERSION_WITHOUT_DEFAULTS else read["defaults"]
        return Dynamic(_as_text(read["settings"]), _as_text(defaults))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamageError(f"it does not hold settings: {in_words(error)}") from error


def _as_text(values: Mapping[object, object]) -> dict[str, str]:
    return {str(name): str(value) for name, value in values.items()}


class DynamicSettings:
    """The file of dynamic settings of one data directory.

    Args:
        meta: path of the directory's `meta.properties`.
        reserve: frees disk space for the file if the disk is full.
    """

    def __init__(self, disk: Disk, directory: Path, meta: Path, reserve: DiskReserve | None = None) -> None:
        self.path = directory / SETTINGS_FILE
        self._disk = disk
        self._reserve = reserve or DiskReserve(disk, directory, 0)
        self._meta = meta

    def load(self) -> Dynamic:
        """Read the dynamic settings; empty if no setting was ever changed. Nothing is written.

        Raises:
            NewerFormatError: a later release has written the file.
            DamageError: the file is damaged, or missing although `meta.properties` says that it exists.
        """
        try:
            with naming(self.path):
                return decode_settings(self._disk.read_bytes(self.path))
        except FileNotFoundError:
            if not self._is_noted():
                return Dynamic({}, {})
            why = "it is missing"
        except DamageError as corrupt:
            why = str(corrupt)
        raise DamageError(
            f"{self.path}, which holds the settings that were changed while the broker ran, cannot be read: {why}; "
            f"restore it, or remove it and the line {META_LINE} of {self._meta.name} to start without them"
        )

    def load_into(self, config: BrokerConfig) -> None:
        """Load the dynamic settings into a configuration. Nothing is written.

        Raises:
            NewerFormatError, DamageError: as `load`.
            UsageError: this release does not accept one of the settings; the configuration has not changed.
        """
        try:
            config.set_dynamic(*self.load())
        except UsageError as invalid:
            raise UsageError(
                f"{self.path} has a setting that this release does not accept: {invalid}; start the release that wrote the "
                "file, and delete this dynamic setting there"
            ) from invalid

    def store(self, settings: Mapping[str, str], defaults: Mapping[str, str] = NOTHING) -> None:
        """Replace the dynamic settings on disk: those of this broker, and those of all brokers. Durable on return.

        Raises:
            RefusedError: the disk refused the write. The file holds either the new settings or the old ones.
        """
        try:
            if not self._is_noted():
                if not self._disk.exists(self.path):
                    self._reserve.write_atomic(self.path, encode_settings({}))
                # Write the line in `meta.properties` after `broker.json`: if the broker crashes between the two writes,
                # the line must not name a missing file, because the broker would then refuse to start.
                content = self._disk.read_bytes(self._meta)
                separator = b"" if content.endswith(b"\n") else b"\n"
                self._reserve.write_atomic(self._meta, content + separator + f"{META_LINE}\n".encode())
            self._reserve.write_atomic(self.path, encode_settings(settings, defaults))
        except DiskError as error:
            log.error("the broker's settings cannot be stored: %s", error)
            raise RefusedError(
                ErrorCode.kafka_storage_error, f"the broker's settings cannot be stored: {error}"
            ) from error

    def _is_noted(self) -> bool:
        try:
            return META_LINE in self._disk.read_bytes(self._meta).decode(errors="replace").splitlines()
        except FileNotFoundError:
            return False
