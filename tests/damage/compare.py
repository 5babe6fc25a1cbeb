"""How what clients are told of a damaged directory differs from what they are told of a whole one."""

from dataclasses import replace

from tests.damage.look import ISOLATIONS


class Differences:
    """Compares with the truth.

    Args:
        truth: what clients are told of the undamaged directory.
        start_epoch: the leader epoch of the start that told it. What a start itself has appended has its epoch,
            which is greater where there were more starts.
    """

    def __init__(self, truth, start_epoch):
        self.truth = truth
        self._start_epoch = start_epoch

    def find(self, seen, *, may_be_cut=(), epochs_rebuilt=()):
        """What is wrong, in words. Partitions that are offline, and reads that are refused, are not.

        Args:
            seen: what clients are told.
            may_be_cut: partitions whose log ends before that of the truth.
            epochs_rebuilt: partitions whose leader epochs may begin later than those of the truth.
        """
        truth, lost = self.truth, {*seen.offline, *may_be_cut}
        if seen.identity != truth.identity:
            yield f"the cluster is {seen.identity}, not {truth.identity}"
        if seen.configs != truth.configs:
            yield f"the settings are {seen.configs}, not {truth.configs}"
        if seen.group_offsets != truth.group_offsets:
            yield f"the offsets of groups are {seen.group_offsets}, not {truth.group_offsets}"
        for name in sorted({*seen.transactions, *truth.transactions}):
            yield from self._transaction(name, seen.transactions.get(name), lost)
        for group in sorted({*seen.cuts, *truth.cuts}):
            yield from self._cut(group, self._next_records(seen.cuts.get(group)), lost)
        for at, known in truth.partitions.items():
            if at in seen.partitions and at not in may_be_cut:
                yield from (
                    f"{at[0]}-{at[1]}: {why}"
                    for why in self._partition(
                        seen.partitions[at], known, epochs_rebuilt=at in epochs_rebuilt
                    )
                )
            elif at not in lost:
                yield f"{at[0]}-{at[1]} is neither open nor offline"

    def _transaction(self, name, seen, lost):
        known = self.truth.transactions.get(name)
        if seen == known:
            return
        is_preparing = seen is not None and known is not None and seen[0].startswith("Prepare")
        if is_preparing and seen[1:3] == known[1:3] and lost and set(seen[3]) <= lost:
            return  # the markers of a closed partition wait for it
        if any(topic.startswith("__") for topic, _ in lost) and (
            seen is None or (known is not None and seen[1] == known[1] and seen[2] <= known[2])
        ):
            return  # what the coordinator wrote last is lost: an earlier state
        yield f"transaction {name} is {seen}, not {known}"

    def _cut(self, group, seen, lost):
        known = self._next_records(self.truth.cuts.get(group))
        if seen == known:
            return
        if (
            seen is not None
            and seen[0] != "none"
            and any(f"{topic}-{index}" in seen[1] for topic, index in lost)
        ):
            return
        if any(topic in ("ordered", "ledger") or topic.startswith("__") for topic, _ in lost):
            return  # what is cut is not in the cut
        yield f"the cuts of {group!r} are {seen}, not {known}"

    def _next_records(self, cuts):
        """The same with the offsets of the next committed records: nothing lies between them and the cut."""
        if cuts is None:
            return None

        def moved(topic, index, offset, *rest):
            batches = self.truth.partitions[topic, index].batches[1]
            following = (max(batch.base_offset, offset) for batch in batches if batch.last_offset >= offset)
            return topic, index, next(following, offset), *rest

        by_sequence = {
            sequence: (error, [moved(*row) for row in rows]) for sequence, (error, rows) in cuts[3].items()
        }
        return *cuts[:3], by_sequence

    def _partition(self, seen, known, *, epochs_rebuilt):
        for name in ("starts", "stable_offset", "high_watermark"):
            if getattr(seen, name) != getattr(known, name):
                yield f"{name} is {getattr(seen, name)}, not {getattr(known, name)}"
        if self._producers(seen) != self._producers(known):
            yield f"producers are {self._producers(seen)}, not {self._producers(known)}"
        for epoch in range(self._start_epoch):
            answer, wanted = (self._epoch_end(one, known.starts[0], epoch) for one in (seen, known))
            is_later = epochs_rebuilt and answer[:2] == wanted[:2] and answer[2] >= wanted[2]
            if answer != wanted and answer[0] != "kafka_storage_error" and not is_later:
                yield f"leader epoch {epoch} ends at {answer}, not {wanted}"
        for isolation in ISOLATIONS:
            yield from self._batches(seen, known, isolation)

    def _producers(self, seen):
        """Repeated markers have the coordinator epoch of the start that repeats them."""
        return [(*row[:3], min(row[3], self._start_epoch), *row[4:]) for row in seen.producers]

    @staticmethod
    def _epoch_end(seen, log_start, epoch):
        error, found, end = seen.epochs[epoch]
        return (error, epoch, "deleted") if 0 <= end <= log_start else (error, found, end)

    def _batches(self, seen, known, isolation):
        # No CRC covers a batch's leader epoch. Where it is held against the epochs' file, the partition's epochs are refused.
        is_named = any(answer[0] == "kafka_storage_error" for answer in seen.epochs.values())
        epoch_max = -1 if is_named else self._start_epoch
        told, wanted = (
            [
                replace(batch, leader_epoch=min(batch.leader_epoch, epoch_max))
                for batch in one.batches[isolation]
            ]
            for one in (seen, known)
        )
        refused = set(seen.refused[isolation])
        if refused:
            wanted = [batch for batch in wanted if batch in told or batch.last_offset not in refused]
        if told != wanted:
            first = next(
                (pair for pair in zip(told, wanted, strict=False) if pair[0] != pair[1]),
                (len(told), len(wanted)),
            )
            yield f"isolation {isolation}: {first[0]} is told, not {first[1]}"


def goes_on(before, after):
    """What is wrong with what clients are told after more was written, in words.

    Args:
        before: what clients were told before.
        after: what they are told now.
    """
    for at, known in before.partitions.items():
        seen = after.partitions.get(at)
        if seen is None:
            yield f"{at[0]}-{at[1]} is open no longer: {after.offline.get(at)}"
            continue
        if seen.starts != known.starts:
            yield f"{at[0]}-{at[1]}: the log's start is {seen.starts}, and was {known.starts}"
        for isolation in ISOLATIONS:
            was, now = known.batches[isolation], seen.batches[isolation]
            if now[: len(was)] != was:
                yield f"{at[0]}-{at[1]}: what readers of isolation {isolation} got is not what they get"
    for at, why in before.offline.items():
        if at not in after.offline:
            yield f"{at[0]}-{at[1]} was offline ({why}) and is open"
    for key, known in before.group_offsets.items():
        if after.group_offsets.get(key) != known:
            yield f"the offset {key} was {known} and is {after.group_offsets.get(key)}"
    for name, known in before.configs.items():
        if after.configs.get(name) != known:
            yield f"the settings of {name} were {known} and are {after.configs.get(name)}"
