"""The file of the broker's dynamic settings, `broker.json`: loaded into the configuration, and replaced.

`data_directory.settings_file` encodes and decodes it.
"""

from collections.abc import Mapping
from pathlib import Path

from stablelog.broker.settings.config import NOTHING, BrokerConfig
from stablelog.data_directory.registered_file import SETTINGS, RegisteredFile
from stablelog.data_directory.settings_file import NO_GROUPS, GroupConfigs, decode_settings, encode_settings
from stablelog.env.disk import Disk, FileWriter
from stablelog.errors import UsageError


class DynamicSettings:
    """The file of the dynamic settings of one data directory: those that clients change while the broker runs.

    Args:
        writer: writes the file, such as the disk reserve, which can write on a full disk; the disk itself by default.
    """

    def __init__(self, disk: Disk, directory: Path, writer: FileWriter | None = None) -> None:
        self._file = RegisteredFile(
            SETTINGS, disk, directory, decode=decode_settings, empty=encode_settings({}), writer=writer
        )
        self.path = self._file.path
        self.load = self._file.load

    def load_into(self, config: BrokerConfig) -> None:
        """Load the dynamic settings into a configuration. Nothing is written.

        The file may have settings of a consumer group that contradict the settings with which the broker starts. They
        are accepted, and `GroupOverrides.report` names them.

        Raises:
            UnknownFormatError, DamageError: a later release has written the file; or the file is damaged.
            UsageError: this release does not accept one of the settings.
        """
        try:
            settings, defaults, groups = self.load()
            config.set_dynamic(settings, defaults)
            config.groups.replace_all(groups)
        except UsageError as invalid:
            raise UsageError(
                f"{self.path} has a setting that this release does not accept: {invalid}; start the release that wrote "
                "the file, and delete this dynamic setting there"
            ) from invalid

    def store(
        self,
        settings: Mapping[str, str],
        defaults: Mapping[str, str] = NOTHING,
        groups: GroupConfigs = NO_GROUPS,
    ) -> None:
        """Replace the dynamic settings on disk: of this broker, of all brokers, and of groups. Durable on return.

        Raises:
            RefusedError: the disk refused the write. The file holds either the new settings or the old ones.
        """
        self._file.store(encode_settings(settings, defaults, groups))
