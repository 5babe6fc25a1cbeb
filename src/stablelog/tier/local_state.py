"""The files in which a partition's directory records its remote tier.

`remote-manifest` is a copy of the last published manifest, the list of the partition's segments in the store. The
broker writes this file before it deletes local segments that the manifest names. At a start, the broker therefore knows
which segments are in the store without a request to the store. If the file and the last manifest in the store differ,
the manifest in the store is valid. Files whose names begin with `remote-manifest-part-` are copies of the manifest's
parts, objects that list older segments.

`remote-log-start` records a log start offset that has moved since the manifest was published.

Format: docs/reference/formats.md, "Tiered storage", "Local files".
"""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stablelog.env.disk import Disk, read_if_there
from stablelog.errors import DamageError, adding_path
from stablelog.log.files.log_start import encode_log_start, read_log_start
from stablelog.log.files.names import REMOTE_LOG_START_FILE, REMOTE_MANIFEST_FILE, REMOTE_PART_PREFIX
from stablelog.tier.manifest import Manifest, ManifestPart, decode_manifest, read_part
from stablelog.tier.remote_segment import RemoteSegment


@dataclass(frozen=True)
class LocalState:
    """The files in which a partition's directory records its remote tier: the last published list of the segments in
    the store, and the log start offset.

    Attributes:
        disk: the disk of the partition.
        directory: the partition's directory.
    """

    disk: Disk
    directory: Path

    def read_manifest(self) -> Manifest | None:
        """Return the manifest (list of the partition's segments in the store) that was recorded last; None if there is
        none. The log start offset may have moved since then (`read_start`).

        Raises:
            UnknownFormatError: a later release has written a file.
            DamageError: a file is damaged, or the file of a part is missing.
            DiskError: a file cannot be read.
        """
        path = self.directory / REMOTE_MANIFEST_FILE
        content = read_if_there(self.disk, path)
        if content is None:
            return None
        try:
            with adding_path(path):
                return decode_manifest(content, self._read_part)
        except DamageError as error:
            raise DamageError(f"{path} is damaged: {error}") from None

    def _read_part(self, part: ManifestPart) -> list[RemoteSegment]:
        path = self._part_path(part.part_id)
        content = read_if_there(self.disk, path)
        if content is None:
            raise DamageError(f"the manifest's part {path.name} is missing")
        try:
            with adding_path(path):
                return read_part(part, content)
        except DamageError as error:
            raise DamageError(f"the manifest's part {path.name} is damaged: {error}") from None

    def _part_path(self, part_id: uuid.UUID) -> Path:
        return self.directory / f"{REMOTE_PART_PREFIX}{part_id.hex}"

    def read_start(self) -> int:
        """Return the log start offset that is recorded in the file `remote-log-start`; 0 if there is no such file.

        Raises:
            UnknownFormatError: a later release has written the file.
            DamageError: the file is damaged. The message names the file.
            DiskError: the file cannot be read.
        """
        return read_log_start(self.disk, self.directory / REMOTE_LOG_START_FILE) or 0

    def log_start(self, local_start: int) -> int:
        """Return the log start offset of a partition, over local and remote segments. `local_start` is the first offset
        of its local log. The result is smaller than that if the first records are only in the object store. Raises the
        errors of `read_manifest`.
        """
        manifest = self.read_manifest()
        if manifest is None:
            return local_start
        return min(max(manifest.log_start, self.read_start()), local_start)

    def write_manifest(
        self, content: bytes, parts: Iterable[ManifestPart] = (), new: Mapping[uuid.UUID, bytes] | None = None
    ) -> None:
        """Record a published manifest, the list of the partition's segments in the store, with its parts in the
        partition's directory. The files are durable when this method returns.

        Args:
            content: the payload of the manifest.
            parts: the parts that the manifest names, objects that list older segments.
            new: the contents of those parts that are not recorded yet, by the id of the part.

        Raises:
            DiskError: the disk has failed or is full. The directory then records either the earlier manifest or this
                one.
        """
        for part_id, part_content in (new or {}).items():
            self.disk.write_atomic(self._part_path(part_id), part_content)
        self.disk.write_atomic(self.directory / REMOTE_MANIFEST_FILE, content)
        named = {self._part_path(part.part_id).name for part in parts}
        for name in self.disk.list_dir(self.directory):
            if name.startswith(REMOTE_PART_PREFIX) and name not in named:
                self.disk.remove(self.directory / name)

    def write_start(self, start_offset: int) -> None:
        """Record a log start offset of the partition in the file `remote-log-start`, which is durable when this method
        returns. If DiskError is raised, the offset that was recorded before is still in effect.
        """
        self.disk.write_atomic(self.directory / REMOTE_LOG_START_FILE, encode_log_start(start_offset))
