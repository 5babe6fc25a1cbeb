"""A broker that is killed with -9 at a place that only the local disk shows, because the object store has everything already
(docs/decisions/0022-tiered-storage.md, "What a crash leaves").

The test watches the partition's directory, kills the broker when a file changes, and looks at what the kill has left. If the
broker was past the place by then, the test tries again.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from stablelog.log.files.log_start import read_log_start
from stablelog.tier.records import SegmentState
from tests.broker.tiering.life import TIERED, LocalDisk, lived
from tests.broker.tiering.restoring import live_rows, manifests
from tests.waiting import until

pytestmark = pytest.mark.extended

ATTEMPTS = 20
MANIFEST, LOG_START, DELETED = "remote-manifest", "log-start-offset", ".deleted"


@dataclass
class Scene:
    """The partition's directory as it is now.

    Attributes:
        life: of the broker.
        recorded_size: the size of the recorded manifest before the step.
        bases: the base offsets of the local segments before the step.
    """

    life: object
    recorded_size: int
    bases: list

    @property
    def directory(self) -> Path:
        return self.life.directory

    def manifest_is_being_written(self):
        return (self.directory / f"{MANIFEST}.tmp").exists()

    def manifest_is_recorded(self):
        return os.stat(self.directory / MANIFEST).st_size > self.recorded_size

    def log_start(self):
        return read_log_start(LocalDisk(), self.directory / LOG_START) or 0

    def deleted(self):
        return [name for name in os.listdir(self.directory) if name.endswith(DELETED)]

    def left(self):
        """The files of segments that are to be deleted and are not."""
        names = [name for name in os.listdir(self.directory) if name not in self.deleted()]
        return [name for name in names if name[:20].isdigit() and int(name[:20]) < self.bases[-1]]

    def published_ids(self):
        (found,) = (one for key, one in manifests(self.life.objects()).items() if key.topic == "t")
        return {row.segment_id for row in live_rows(found)}

    def unfinished_ids(self):
        states = self.life.states()
        return {
            one for one in self.life.recorded_ids() if SegmentState.COPY_FINISHED not in states.get(one, [])
        }


def copied(life):
    """Write segments, and let the broker copy them from now on."""
    life.configure(remote_log_copy_disable="true")
    life.write()
    (life.directory / f"{MANIFEST}.tmp").unlink(missing_ok=True)
    yield
    life.configure(remote_log_copy_disable="false")


def deleted(life):
    """Write and copy segments, and let the broker delete them from the local disk from now on."""
    life.configure(local_retention_bytes="-2")
    life.write()
    until(
        lambda: len(life.local_bases()) > 1 and life.recorded().end_offset == life.local_bases()[-1],
        "no copies",
    )
    yield
    life.configure(local_retention_bytes="1")


@dataclass(frozen=True)
class Row:
    """A place at which the broker is killed.

    Attributes:
        step: what the broker does; the generator's first part prepares it, and the second one begins it.
        is_time: whether it is time to kill the broker, asked again and again.
        was_there: whether the kill came at the place.
    """

    step: object
    is_time: object
    was_there: object


ROWS = {
    "a published manifest is being recorded": Row(
        copied,
        Scene.manifest_is_being_written,
        lambda scene: scene.published_ids() > scene.life.recorded_ids(),
    ),
    "a published manifest is recorded and its events are not": Row(
        copied, Scene.manifest_is_recorded, Scene.unfinished_ids
    ),
    "the local log start is recorded and no file is deleted": Row(
        deleted,
        lambda scene: scene.log_start() > scene.bases[0],
        lambda scene: scene.life.local_bases() == scene.bases and not scene.deleted(),
    ),
    "some files of the copied segments are deleted": Row(
        deleted,
        Scene.deleted,
        lambda scene: scene.deleted() and scene.left(),
    ),
}
BY_DAY = ("a published manifest is recorded and its events are not",)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=name.replace(" ", "-"), marks=[] if name in BY_DAY else [pytest.mark.night])
        for name, row in ROWS.items()
    ],
)
def test_a_kill_while_files_change(row, tmp_path, monkeypatch):
    with lived(tmp_path, monkeypatch) as life:
        life.create(TIERED)
        life.write()
        life.wait_until_remote()
        for _ in range(ATTEMPTS):
            step = row.step(life)
            next(step)
            recorded_size = os.stat(life.directory / MANIFEST).st_size
            scene = Scene(life, recorded_size, life.local_bases())
            before = life.bounds()
            next(step, None)
            until(lambda scene=scene: row.is_time(scene), "the place does not come", pause_s=0)
            life.broker.kill()
            was_there = row.was_there(scene)
            life.broker.start()
            life.wait_until_remote()
            life.check(before)
            until(lambda scene=scene: not scene.deleted(), lambda scene=scene: f"left: {scene.deleted()}")
            if was_there:
                return
    pytest.fail(f"in {ATTEMPTS} attempts no kill came at this place")
