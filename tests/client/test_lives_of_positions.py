"""A program that stores the position of its reader, through the life of its topics: records are removed before it has read
them, the broker is killed, partitions come, and the program seeks and pauses.

What was removed unread is a DataLossError and never silent, and what the program has got does not come again.
STABLELOG_POSITION_STEPS says how many steps a life has.
"""

import os

import pytest

import stablelog
from stablelog.client.blocking.cluster import EARLIEST, LATEST, BlockingCluster
from stablelog.errors import DataLossError
from tests.client.faces import FACES, connected
from tests.scale import randomness, seeds
from tests.waiting import until

pytestmark = pytest.mark.extended

STEP_COUNT = int(os.environ.get("STABLELOG_POSITION_STEPS", "14"))
BROKER = {"log_retention_check_interval_ms": 50, "log_segment_delete_delay_ms": 0}
TOPIC = {"stablelog.order": "commit", "segment.bytes": "1500", "retention.ms": "-1"}
# More than one topic of several groups can only be read by partition.
MODES = {"cut": (True, {"one": "", "two": ""}), "partitions": (False, {"one": "", "two": "other"})}
STEPS = (
    *["write"] * 3,
    *["read"] * 4,
    *["restart", "partition", "delete", "size", "time", "back", "offset", "pause", "new"],
)


def rows_of(transactions):
    return [(record.topic, record.partition, record.offset) for one in transactions for record in one.records]


class Life:
    """Topics, and a program that reads them.

    Attributes:
        truth: the commit sequence and the group of each record, by (topic, partition, offset).
        had: the records that the program has got, or has passed over by a seek.
        excused: the records that were removed before the program began at the beginning.
        losses: how often the program was told of a loss.
    """

    def __init__(self, broker, rng, mode):
        self.broker, self.rng = broker, rng
        self.cut, self.groups = MODES[mode]
        self.counts = dict.fromkeys(self.groups, 2)
        self.truth, self.had, self.excused = {}, set(), set()
        self.text, self.places = None, []
        self.losses = 0
        with stablelog.connect(broker.bootstrap) as client:
            for topic, group in self.groups.items():
                config = {**TOPIC, **({"stablelog.group": group} if group else {})}
                client.admin.topics.create(topic, partitions=2, configs=config)

    def client(self):
        return connected(self.rng.choice(FACES), self.broker.bootstrap)

    def starts(self, spec=EARLIEST):
        targets = [(topic, index) for topic, count in self.counts.items() for index in range(count)]
        with BlockingCluster(self.broker.bootstrap) as cluster:
            found = cluster.list_offsets(dict.fromkeys(targets, spec))
        return {target: at.offset for target, at in found.items()}

    def removed(self):
        starts = self.starts()
        return {row for row in self.truth if row[2] < starts[row[:2]]}

    # --- steps ---

    def write(self):
        with self.client() as client:
            for _ in range(self.rng.randrange(1, 8)):
                group = self.rng.choice(sorted(set(self.groups.values())))
                targets = [
                    (topic, index)
                    for topic, count in self.counts.items()
                    if self.groups[topic] == group
                    for index in range(count)
                ]
                with client.transaction(group) as txn:
                    futures = [
                        txn.write(topic, value=bytes(100), partition=index)
                        for topic, index in self.rng.sample(targets, self.rng.randrange(1, 3))
                        for _ in range(2)
                    ]
                sequence = txn.commit().commit_sequence
                self.truth |= {tuple(one.result()): (sequence, group) for one in futures}

    def restart(self):
        (self.broker.kill if self.rng.random() < 0.5 else self.broker.stop)()
        self.broker.start()

    def partition(self):
        topic = self.rng.choice(sorted(self.counts))
        self.counts[topic] += 1
        with stablelog.connect(self.broker.bootstrap) as client:
            client.admin.topics.add_partitions(topic, self.counts[topic])

    def delete(self):
        (topic, index), end = self.rng.choice(sorted(self.starts(LATEST).items()))
        with stablelog.connect(self.broker.bootstrap) as client:
            client.admin.topics.delete_records({(topic, index): self.rng.randrange(end + 1)})

    def size(self):
        self.retain(**{"retention.bytes": "0"})

    def time(self):
        self.retain(**{"retention.ms": "1"})

    def retain(self, **config):
        """Remove what retention removes with this setting, and set it back."""
        topic = self.rng.choice(sorted(self.groups))
        with stablelog.connect(self.broker.bootstrap) as client:
            before = {name: TOPIC.get(name) for name in config}
            client.admin.configs.alter("topic", topic, config)
            until(lambda: self.is_only_the_last_segment_left(topic), lambda: f"{topic}: {self.starts()}")
            client.admin.configs.alter("topic", topic, before)

    def is_only_the_last_segment_left(self, topic):
        """The files of earlier segments may stay, because later transactions have records in them."""
        starts = self.starts()
        return all(
            starts[topic, index]
            >= max(int(path.stem) for path in self.broker.data.glob(f"{topic}-{index}/*.log"))
            for index in range(self.counts[topic])
        )

    # --- the program ---

    def begin(self, client):
        """A reader at the stored position; at the beginning if there is none."""
        return client.read(
            list(self.groups), cut=self.cut, wait=0, after=0 if self.text is None else self.text
        )

    def read(self, count_max=None):
        count_max = self.rng.randrange(1, 12) if count_max is None else count_max
        with self.client() as client:
            reader = self.begin(client)
            self.take(reader, count_max)
            reader.close()

    def take(self, reader, count_max):
        """Read so many transactions. After a loss, begin again without a position, as docs/reference/client.md says."""
        try:
            for _ in range(count_max):
                one = next(reader, None)
                if one is None:
                    break
                if self.text is None:
                    self.excuse(one)
                found = rows_of([one])
                assert not self.had & set(found), "twice"
                assert not set(found) - self.truth.keys()
                self.had |= set(found)
                self.text = str(reader.position)
                self.places.append((self.text, set(self.had), set(self.excused)))
        except DataLossError:
            assert self.removed(), "nothing was removed"
            self.losses += 1
            self.text, self.had, self.excused, self.places = None, set(), set(), []

    def excuse(self, first):
        """What is gone when the program gets its first transaction from the beginning on."""
        self.excused = self.removed()
        if self.cut and self.excused:  # all transactions before the first one that is whole in all partitions
            self.excused |= {
                row for row, (sequence, _) in self.truth.items() if sequence < first.commit_sequence
            }
        if not self.cut and self.excused:  # transactions of which a part of a partition is left
            torn = {(row[:2], self.truth[row]) for row in self.excused}
            self.excused |= {row for row in self.truth if (row[:2], self.truth[row]) in torn}

    def back(self):
        """Seek to an earlier position, of the same reader."""
        if self.places:
            with self.client() as client:
                reader = self.begin(client)
                place = self.rng.randrange(len(self.places))
                self.text, had, excused = self.places[place]
                self.had, self.excused = set(had), set(excused)
                del self.places[place + 1 :]
                reader.seek(self.text)
                self.take(reader, 3)
                reader.close()

    def offset(self):
        """Seek to an offset of one partition that is not removed."""
        if self.cut or self.text is None:
            return
        left = sorted(self.truth.keys() - self.removed())
        if not left:
            return
        topic, index, offset = self.rng.choice(left)
        whole = {row for row in self.truth if self.truth[row] == self.truth[topic, index, offset]}
        begin = min(row[2] for row in whole if row[:2] == (topic, index))
        if begin in {row[2] for row in self.removed() if row[:2] == (topic, index)}:
            return
        with self.client() as client:
            reader = self.begin(client)
            reader.seek_to_offset(topic, index, offset)
            mine = {row for row in self.truth if row[:2] == (topic, index)}
            self.had = self.had - mine | {row for row in mine if row[2] < begin}
            self.text, self.places = str(reader.position), []
            self.take(reader, 3)
            reader.close()

    def pause(self):
        if self.cut:
            return
        topic = self.rng.choice(sorted(self.groups))
        index = self.rng.choice([None, 0, 1])
        with self.client() as client:
            reader = self.begin(client)
            reader.pause(topic, index)
            before = set(self.had)
            self.take(reader, 5)
            paused = {row for row in self.had - before if row[0] == topic and index in (None, row[1])}
            assert not paused
            if self.text is not None:
                reader.resume(topic, index)
                self.take(reader, 5)
            reader.close()

    def new(self):
        """Seek to the new commits."""
        with self.client() as client:
            reader = client.read(list(self.groups), cut=self.cut, wait=0, after=None)
            assert next(reader, None) is None
            self.text, self.places = str(reader.position), []
            self.had, self.excused = set(self.truth), set()
            reader.close()

    def check(self):
        """Read to the end. Each record was got, or was gone before the program began."""
        for _ in range(3):
            self.read(10**6)
        missing = self.truth.keys() - self.had - self.excused
        assert not missing or (self.text is None and not self.truth.keys() - self.removed()), sorted(missing)


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("mode", MODES)
def test_what_is_removed_unread_is_told_and_nothing_comes_twice(tmp_path, mode, seed):
    rng = randomness("life", mode, seed)
    with stablelog.serve(tmp_path, **BROKER) as broker:
        life = Life(broker, rng, mode)
        for step in ["write", "read", *(rng.choice(STEPS) for _ in range(STEP_COUNT))]:
            getattr(life, step)()
        life.check()


def compacted_up_to_the_last_segment(data, topic, partition_count):
    checkpoint = data / "cleaner-offset-checkpoint"
    lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
    cleaned = {
        tuple(line.split()[:2]): int(line.split()[2]) for line in lines if line.startswith(f"{topic} ")
    }
    last = {
        (topic, str(index)): max(int(path.stem) for path in data.glob(f"{topic}-{index}/*.log"))
        for index in range(partition_count)
    }
    return cleaned == last


@pytest.mark.parametrize("face", [FACES[0], pytest.param(FACES[1], marks=pytest.mark.night)])
def test_committed_offsets_hold_while_the_topic_is_compacted(tmp_path, face):
    """A commit-ordered topic cannot be compacted. In others, what is compacted away is no loss: a later record of its key
    is left, and comes once.
    """
    config = {"cleanup.policy": "compact", "segment.bytes": "2048", "min.cleanable.dirty.ratio": "0.01"}
    keys = {}
    with (
        stablelog.serve(tmp_path, log_cleaner_backoff_ms=20) as broker,
        connected(face, broker.bootstrap) as client,
    ):
        with stablelog.connect(broker.bootstrap) as admin:
            admin.admin.topics.create("t", partitions=2, configs=config)

        def write(numbers):
            for number in numbers:
                with client.transaction() as txn:
                    key = b"%d" % (number % 7)
                    futures = [txn.write("t", value=bytes(60), key=key, partition=index) for index in (0, 1)]
                keys.update({tuple(future.result()): key for future in futures})

        def handed_out(reader, count):
            return [tuple(next(reader)[:3]) for _ in range(count)]

        write(range(20))
        with client.subscribe("t", group="g", wait=30) as reader:
            first = handed_out(reader, 10)  # each partition has seven keys
            reader.commit()
        write(range(20, 60))
        until(lambda: compacted_up_to_the_last_segment(tmp_path, "t", 2), "the topic is not compacted")
        with client.subscribe("t", group="other", wait=30) as other:
            left = [tuple(next(other)[:3])]
            ends = {("t", index): max(row[2] for row in keys if row[1] == index) for index in (0, 1)}
            while not {(*target, end) for target, end in ends.items()} <= set(left):
                left.append(tuple(next(other)[:3]))
        assert len(left) == len(set(left)) < len(keys)
        for gone in keys.keys() - set(left):
            assert any(row[:2] == gone[:2] and row[2] > gone[2] and keys[row] == keys[gone] for row in left)
        wanted = set(left) - set(first)
        with client.subscribe("t", group="g", wait=30) as reader:
            assert set(handed_out(reader, len(wanted))) == wanted
            reader.seek_to_beginning()
            assert set(handed_out(reader, len(left))) == set(left)
