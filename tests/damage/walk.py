"""One walk: a damaged directory is opened, read, written to, opened again, and restored.

What clients are told is right, or it is refused and the refusal names the file, once the scrub has read all segments:
until then a batch whose body has changed can be handed out. So the scrub reads everything before clients are answered.
"""

import contextlib
import logging
from dataclasses import dataclass, field, replace
from pathlib import Path

from stablelog.batch.header import headers_in
from stablelog.broker.upkeep.scrub import Scrub
from stablelog.commit_order.verify import verify_view
from stablelog.errors import StablelogError
from stablelog.log.verify import verify_directory
from stablelog.ops.verify import recovery_points, verify_data_directory
from tests.broker.desk import COMMIT, DATA, opened
from tests.damage.compare import Differences, goes_on
from tests.damage.directories import BROKER, Writer, copied, run, write_plainly
from tests.damage.look import Seen, check_every_offset, look

MISSING, TORN, FLIPPED = "missing", "torn", "a flipped bit"
RIGHT, REBUILT, CUT, GONE = "right", "rebuilt", "cut", "gone"
REFUSED, OFFLINE, NO_START = "refused", "offline", "no start"
NAMED = (REFUSED, OFFLINE, NO_START)
EPOCH_FILE = "leader-epoch-checkpoint"
COMPACTED = "keys-0"


@dataclass(frozen=True)
class Damage:
    """What a disk does to a file or a directory.

    Attributes:
        path: of the file or directory.
        what: MISSING, TORN or FLIPPED.
        at: bytes that are left, or the position of the byte that is changed.
        bit: of that byte.
    """

    path: Path
    what: str
    at: int = 0
    bit: int = 0

    def __str__(self):
        where = {MISSING: "", TORN: f" at byte {self.at}", FLIPPED: f": bit {self.bit} of byte {self.at}"}
        return f"{self.path}, {self.what}{where[self.what]}"

    @property
    def partition(self):
        """(topic, index) of the partition that it concerns; None if it is a file of the data directory."""
        home = self.path if self.path.parent == DATA else self.path.parent
        if (
            home.parent != DATA
            or "." in home.name.rpartition("-")[2]
            or not home.name.rpartition("-")[2].isdigit()
        ):
            return None
        topic, _, index = home.name.rpartition("-")
        return topic, int(index)

    def apply(self, disk):
        """Damage the disk."""
        if self.what is MISSING:
            if disk.is_dir(self.path):
                disk.remove_dir(self.path)
                disk.sync_dir(self.path.parent)
            else:
                disk.lose(self.path)
            return
        content = bytearray(disk.read_bytes(self.path))
        if self.what is TORN:
            del content[self.at :]
        else:
            content[self.at] ^= 1 << self.bit
        disk.damage(self.path, bytes(content))

    def restore(self, disk, whole):
        """Put the file back as it was, and with it what was appended to it since."""
        if whole.is_dir(self.path):
            disk.make_dir(self.path)
            for name in whole.list_dir(self.path):
                disk.write_atomic(self.path / name, whole.read_bytes(self.path / name))
            return
        content = whole.read_bytes(self.path)
        if self.what is FLIPPED and disk.exists(self.path):
            there = bytearray(disk.read_bytes(self.path))
            there[self.at] ^= 1 << self.bit
            if there[: len(content)] == content:
                content = bytes(there)
        disk.write_atomic(self.path, content)


class Heard(logging.Handler):
    """What the broker logs from warnings on, while the block runs."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())

    def __enter__(self):
        logger = logging.getLogger("stablelog")
        logger.addHandler(self)
        self._propagated, logger.propagate = logger.propagate, False
        return self

    def __exit__(self, *_):
        logger = logging.getLogger("stablelog")
        logger.removeHandler(self)
        logger.propagate = self._propagated

    @property
    def text(self):
        return "\n".join(self.lines)


@dataclass
class Life:
    """A start of a broker, and what became of it.

    Attributes:
        refusal: why it did not start; empty if it did.
        seen: what clients were told.
        log: what the broker logged.
        epoch: its leader epoch.
    """

    refusal: str = ""
    seen: Seen = field(default_factory=Seen)
    log: str = ""
    epoch: int = -1

    @property
    def text(self):
        """All in which a refusal is named."""
        return "\n".join([self.refusal, self.log, *self.seen.offline.values()])


@contextlib.asynccontextmanager
async def started(disk):
    async with opened(disk, topics=(), prove=False, **BROKER) as desk:
        yield desk


def live(disk, *, every=(), scrub=False, write="", kill=False):
    """Start a broker, look at everything, write on if told to, and stop or kill it.

    Args:
        disk: where its data lies.
        every: partitions that are read from every offset; None for all.
        scrub: whether the scrub reads all segments first.
        write: a word in what is written to each open partition; nothing is written without one.
        kill: whether it is killed.

    Returns:
        What became of it, and the disk.
    """
    found = Life()
    left = disk

    async def life():
        nonlocal left
        async with started(disk) as desk:
            found.epoch = desk.broker.topics.leader_epoch
            if scrub:
                by = Scrub(desk.broker.partitions, desk.broker.tasks, lambda: 1 << 50)
                await by.scrub_all()
                by.close()
            found.seen = await look(desk)
            for at, seen in found.seen.partitions.items():
                if every is None or at in every:
                    await check_every_offset(desk, at, seen)
            if write:
                await write_on(desk, write)
            if kill:
                left = copied(disk)

    with Heard() as heard:
        try:
            run(life())
        except StablelogError as error:
            if found.epoch >= 0:
                raise
            found.refusal = f"{type(error).__name__}: {error}"
    found.log = heard.text
    return found, left


async def write_on(desk, word):
    """A transaction over all open partitions of each transaction group, and records outside of any."""
    targets = {}
    for topic in desk.broker.topics:
        if not topic.is_internal:
            targets.setdefault(topic.group, []).extend(
                (topic.name, index) for index in sorted(desk.broker.partitions.of_topic(topic))
            )
    for group, those in targets.items():
        if not those:
            continue
        writer = await Writer(desk, f"{group}/{word}" if group else word).begin()
        await writer.write("commit", *those)
        await writer.end(COMMIT)
        for topic, index in those:
            await write_plainly(desk, topic, index, word)
    await desk.durable()


# -- the walk -------------------------------------------------------------------------------------------------------


class Place:
    """A directory that is damaged again and again.

    Args:
        name: of it.
        disk: with it.
    """

    def __init__(self, name, disk):
        self.name = name
        self.disk = disk
        self._is_clean = disk.exists(DATA / ".kafka_cleanshutdown")
        self._synced = recovery_points(disk, DATA)
        copy = copied(disk)
        whole, _ = live(copy, every=None)
        assert not whole.refusal, whole.refusal
        assert not whole.seen.offline, whole.seen.offline
        assert not any(refused for at in whole.seen.partitions.values() for refused in at.refused)
        self.truth = whole.seen
        self.differences = Differences(whole.seen, whole.epoch)
        self._cut_anyway = set(cuts(whole))  # what a power cut left torn
        self.left = copy  # by a start without damage, and a stop

    def walk(self, damages, *, every=()):
        """Walk with damages in different partitions, or with one.

        Returns:
            The outcome of each.

        Raises:
            AssertionError: something wrong was told after a pass of the scrub, or a refusal does not name its file.
        """
        disk = copied(self.disk)
        for damage in damages:
            damage.apply(disk)
        found = {damage: findings(disk, damage) for damage in damages}
        first, disk = live(disk, every=every, scrub=True, write="after")
        outcomes = {damage: self._outcome(damage, first) for damage in damages}
        problems = [*self._unnamed(outcomes, first, found), *self._unkept(outcomes, disk)]
        if not first.refusal:
            problems += self._differences(outcomes, first)
        for damage, outcome in outcomes.items():
            if outcome in NAMED:
                damage.restore(disk, self.disk)
        second, disk = live(disk, write="again" if first.refusal else "")
        problems += self._after_restart(outcomes, first, second)
        for damage, outcome in outcomes.items():
            if outcome is RIGHT and self._is_rebuilt(damage, disk):
                outcomes[damage] = REBUILT
        assert not problems, "\n".join(
            [f"{self.name}: " + "; ".join(map(str, damages)), *problems, first.text]
        )
        return outcomes

    @staticmethod
    def _unnamed(outcomes, life, found):
        for damage, outcome in outcomes.items():
            if outcome in (*NAMED, CUT) and not named(damage, life.text):
                yield f"{damage} is not named in: {life.text}"
            # Of a sealed log without a summary, what its indexes lack is all that verify can say.
            # And what node the directory is of, only a start knows.
            is_known = damage.path.name != "meta.properties"
            if outcome in NAMED and is_known and str(damage.path.with_suffix("")) not in found[damage]:
                yield f"verify finds nothing of {damage}: {found[damage]}"

    def _unkept(self, outcomes, disk):
        for damage, outcome in outcomes.items():
            if outcome is CUT:
                kept = [path for path in disk.files(damage.path.parent) if ".cut" in path.name]
                # A log that ends behind a whole batch loses nothing more itself, and the segments behind it are cut.
                behind = [path for path in self.disk.files(damage.path.parent) if path.suffix == ".log"]
                contents = [self._damaged(damage), *map(self.disk.read_bytes, behind)]
                bytes_kept = [disk.read_bytes(path) for path in kept if disk.size(path)]
                if not any(content.endswith(cut) for cut in bytes_kept for content in contents):
                    yield f"the bytes that were cut after {damage} are not kept"

    def _differences(self, outcomes, life):
        shorter = {damage.partition for damage, outcome in outcomes.items() if outcome in (CUT, GONE)}
        # Where compaction has removed the batch with which an epoch began, the rebuilt file has the next one.
        rebuilt = {
            damage.partition
            for damage in outcomes
            if damage.path.name == EPOCH_FILE and damage.path.parent.name == COMPACTED
        }
        yield from self.differences.find(life.seen, may_be_cut=shorter, epochs_rebuilt=rebuilt)
        hurt = {damage.partition for damage, outcome in outcomes.items() if outcome in (OFFLINE, REFUSED)}
        there = {at for at, seen in life.seen.partitions.items() if any(seen.refused)} | {*life.seen.offline}
        yield from (f"{at} is refused, and nothing of it was damaged" for at in there - hurt)

    def _after_restart(self, outcomes, first, second):
        if second.refusal:
            yield f"the next start: {second.refusal}"
        elif first.refusal:
            yield from (f"restored: {why}" for why in self.differences.find(second.seen))
        else:
            shorter = {damage.partition for damage, outcome in outcomes.items() if outcome in (CUT, GONE)}
            # Only topics: of a coordinator's log, what it says of groups and transactions is compared.
            told = {at: seen for at, seen in first.seen.partitions.items() if at in shorter}
            expected = replace(self.truth, partitions=self.truth.partitions | told)
            found = [*goes_on(expected, second.seen), *written(second.seen, first.seen)]
            found += [f"{at} is offline: {why}" for at, why in second.seen.offline.items()]
            refused = [at for at, seen in second.seen.partitions.items() if any(seen.refused)]
            found += [f"reads of {at} are refused" for at in refused]
            yield from (f"the next start: {why}" for why in found)

    def _is_lost_in_a_crash(self, damage, end):
        """Whether a log ends between two batches behind what was recorded as synced, as it does after a power cut."""
        if self._is_clean or damage.path.suffix != ".log" or damage.what is FLIPPED:
            return False
        content = b"" if damage.what is MISSING else self._damaged(damage)
        is_whole = sum(header.size for _, header in headers_in(content)) == len(content)
        return is_whole and end >= self._synced.get(damage.path.parent, 0)

    def _outcome(self, damage, life):
        if life.refusal:
            return NO_START
        at = damage.partition
        if at in life.seen.offline:
            return OFFLINE
        seen, known = life.seen.partitions.get(at), self.truth.partitions.get(at)
        if seen is not None and any(seen.refused):
            return REFUSED
        if at is not None and any(
            f"{DATA / f'{at[0]}-{at[1]}'}/" in line for line in cuts(life) if line not in self._cut_anyway
        ):
            return CUT
        end, whole_end = self._ends(damage) if seen is None else (seen.high_watermark, known.high_watermark)
        if end < whole_end and self._is_lost_in_a_crash(damage, end):
            return GONE
        return RIGHT

    def _ends(self, damage):
        """The offsets behind the last batches of a coordinator's log: with the damage, and without; (0, 0) of other files."""
        if damage.partition is None or not damage.partition[0].startswith("__") or damage.what is MISSING:
            return 0, 0
        if damage.path.suffix != ".log":
            return 0, 0
        contents = self._damaged(damage), self.disk.read_bytes(damage.path)
        return tuple(
            max((header.last_offset + 1 for _, header in headers_in(content)), default=0)
            for content in contents
        )

    def _is_rebuilt(self, damage, disk):
        """Whether the file is whole again."""
        if not disk.exists(damage.path) or disk.is_dir(damage.path):
            return False
        whole = damage.what is MISSING or disk.read_bytes(damage.path) != self._damaged(damage)
        return whole and not named(damage, findings(disk, damage))

    def _damaged(self, damage):
        disk = copied(self.disk)
        damage.apply(disk)
        return disk.read_bytes(damage.path)


def named(damage, text):
    """Whether a text names the file."""
    return str(damage.path) in text


def cuts(life):
    """The log lines of a start that cut the end of a log."""
    return [line for line in life.log.splitlines() if "were truncated and" in line]


def findings(disk, damage):
    """What `stablelog verify` says of the data directory and of the partition that is damaged, as text."""
    found = list(verify_data_directory(disk, DATA))
    if damage.partition is not None and disk.is_dir(
        directory := DATA / f"{damage.partition[0]}-{damage.partition[1]}"
    ):
        found += verify_directory(
            disk, directory, recovery_point=recovery_points(disk, DATA).get(directory, 0)
        )
        found += verify_view(disk, directory)
    return "\n".join(f"{finding.path} {finding.message}" for finding in found)


def written(seen, before):
    """What is wrong with what was written to the open partitions, in words."""
    for at in before.partitions:
        after = seen.partitions.get(at)
        if after is not None and len(after.batches[0]) < len(before.partitions[at].batches[0]) + 3:
            yield f"{at[0]}-{at[1]} lacks what was written after the damage"
