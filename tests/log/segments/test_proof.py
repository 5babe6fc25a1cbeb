"""The proof of a log file and its scrub: what they accept, what they name, and what they read for it."""

import ctypes
import random
from itertools import pairwise

import pytest
from crc32c import crc32c

from stablelog.batch.filtering import without_records
from stablelog.batch.header import HEADER, read_header
from stablelog.batch.records import Record, encode_batch
from stablelog.errors import DamageError
from stablelog.log.segments import proof
from stablelog.log.segments.proof import DamagedBatch, prove_headers, scrub
from stablelog.testing.sim_disk import SimDisk
from tests.log.timeline import DIRECTORY

PATH = DIRECTORY / f"{0:020d}.log"


def log_of(sizes, *, empty=()):
    """The batches of a log: one record each, of these many bytes; those at the places `empty` have none left."""
    found = []
    for place, size in enumerate(sizes):
        batch = encode_batch([Record(0, 1, None, bytes(size))], base_offset=10 * place, leader_epoch=1)
        found.append(without_records(read_header(batch)) if place in empty else batch)
    return found


def crc_of(batches):
    return crc32c(b"".join(batch[: HEADER.size] for batch in batches))


class WatchedFile:
    """A file that tells what is read of it, and gets a piece of its map into memory if `is_ready` says so.

    The rest of the map holds nonsense: a reader that looks there too early or too far does not see the file.
    """

    def __init__(self, content, map_size=0, is_ready=lambda: True):
        self.size = len(content)
        self.mapped = memoryview(bytearray(b"\xee" * map_size)) if map_size else None
        self.reads, self.populated = [], []
        self.is_closed = False
        self._content, self._is_ready = content, is_ready

    def read(self, position, size):
        found = self._content[position : position + size]
        self.reads.append(len(found))
        return found

    def will_need(self, position, size):
        assert 0 <= position < position + size <= self.size

    def populate(self, view):
        if not self._is_ready():
            return False
        begin = address(view) - address(self.mapped)
        view[:] = self._content[begin : begin + len(view)]
        self.populated.append((begin, begin + len(view)))
        return True

    def close(self):
        self.is_closed = True


def address(view):
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


class OneFileDisk:
    """A disk that opens one file."""

    def __init__(self, file):
        self._file = file

    def open(self, path):
        assert path == PATH
        return self._file


def proven(file, size, crc):
    """Prove the beginning of a file. Returns the number of pieces in which that goes."""
    pieces = 1
    try:
        for _ in prove_headers(OneFileDisk(file), PATH, size, crc, file.mapped):
            pieces += 1
    finally:
        assert file.is_closed
    return pieces


@pytest.mark.parametrize("seed", range(40))
def test_a_proof_accepts_the_batches_that_were_synced_and_no_others(seed, monkeypatch):
    """However much is read, copied and mapped at a time, and whatever part of the map is in memory."""
    chance = random.Random(seed)
    chance.shuffle(choices := [61, 62, 100, 500])
    monkeypatch.setattr(proof, "CHUNK_SIZE", choices[0])
    for name in ("PIECE_SIZE", "SKIPPED_SIZE", "LARGE_SIZE"):
        monkeypatch.setattr(proof, name, chance.choice([1, 80, 150, 300, 2000]))
    sizes = [chance.choice([0, 1, 5, 60, 300]) for _ in range(chance.randint(1, 12))]
    batches = log_of(sizes, empty=[place for place in range(len(sizes)) if chance.random() < 0.2])
    content, crc = b"".join(batches), crc_of(batches)
    behind = chance.choice([b"", b"\0" * 70, log_of([9])[0]])  # what was appended since, or is torn
    for map_size in (0, len(content)):

        def file(content, map_size=map_size):
            return WatchedFile(content, map_size, lambda: chance.random() < 0.7)

        proven(file(content + behind), len(content), crc)
        begins = [sum(map(len, batches[:place])) for place in range(len(batches))]
        for begin in begins:
            for at in (0, 8, 12, 22, 60):
                changed = bytearray(content)
                changed[begin + at] ^= 1 << chance.randrange(8)
                with pytest.raises(DamageError, match="are not those that were synced"):
                    proven(file(bytes(changed) + behind), len(content), crc)
        with pytest.raises(DamageError, match="are not those that were synced"):
            proven(file(content + behind), len(content), crc ^ 1)
        with pytest.raises(
            DamageError, match=f"holds only {len(content) - 1} bytes, but {len(content)} bytes were durable"
        ):
            proven(file(content[:-1]), len(content), crc)


@pytest.mark.parametrize("rest", [1, 59, 60])
@pytest.mark.parametrize("is_mapped", [False, True])
def test_bytes_behind_the_last_batch_that_are_no_header_are_damage(rest, is_mapped):
    """As the changed length of a batch leaves them. The file has more behind them."""
    (batch,) = log_of([100])
    size = len(batch) + rest
    file = WatchedFile(batch + bytes(200), size * is_mapped)
    with pytest.raises(DamageError, match=f"at byte {len(batch)}: "):
        proven(file, size, crc_of([batch]))


def test_the_proof_of_a_log_file_that_is_gone_names_it():
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    with pytest.raises(DamageError, match=f"{PATH} is missing, and was durable"):
        list(prove_headers(disk, PATH, 1, 0))


def read_for(batches, *, is_mapped=False):
    """How many reads a proof takes, how many bytes they read, and how many are got into memory by the map."""
    content = b"".join(batches)
    file = WatchedFile(content, len(content) * is_mapped)
    proven(file, len(content), crc_of(batches))
    return len(file.reads), sum(file.reads), sum(end - begin for begin, end in file.populated)


def test_small_batches_are_read_many_at_a_time_and_of_large_ones_the_headers_alone():
    small, large = log_of([100] * 5000), log_of([20_000] * 50)
    size, chunk_size = sum(map(len, small)), proof.CHUNK_SIZE
    reads, read_size, _ = read_for(small)
    assert reads <= size // chunk_size + 3
    assert read_size < 1.1 * size
    reads, read_size, _ = read_for(large)
    assert reads <= len(large)
    assert read_size <= chunk_size + len(large) * HEADER.size
    assert read_for(small, is_mapped=True) == (0, 0, size)
    assert read_for(large, is_mapped=True) == (0, 0, sum(map(len, large)))


def test_of_batches_larger_than_a_bound_the_map_gets_no_piece_into_memory(monkeypatch):
    monkeypatch.setattr(proof, "LARGE_SIZE", 10_000)
    monkeypatch.setattr(proof, "PIECE_SIZE", 100_000)
    large = log_of([20_000] * 50)
    reads, read_size, populated = read_for(large, is_mapped=True)
    assert populated == 100_000, "the first piece, of which nothing is known before"
    assert 40 <= reads <= 50
    assert read_size == reads * HEADER.size
    monkeypatch.setattr(proof, "LARGE_SIZE", 30_000)
    assert read_for(large, is_mapped=True)[:2] == (0, 0)


@pytest.mark.parametrize("is_mapped", [False, True])
def test_a_proof_yields_after_each_piece(is_mapped, monkeypatch):
    """Others are served meanwhile: a piece ends behind the first chunk that reaches its size."""
    batches = log_of([100] * 1000)
    content, crc = b"".join(batches), crc_of(batches)
    for parts in (1, 2, 10):
        monkeypatch.setattr(proof, "PIECE_SIZE", len(content) // parts)
        monkeypatch.setattr(proof, "CHUNK_SIZE", 2000)
        file = WatchedFile(content, len(content) * is_mapped)
        assert parts <= proven(file, len(content), crc) + 1 <= parts + 2
        if is_mapped:
            assert file.populated[0] == (0, len(content) // parts)
            assert file.populated[-1][1] == len(content)
            assert all(begin >= end - 170 for (_, end), (begin, _) in pairwise(file.populated))


def test_a_proof_names_the_first_batch_that_is_not_what_it_was():
    batches = log_of([10, 20, 30])
    content, crc = b"".join(batches), crc_of(batches)
    first, second = len(batches[0]), len(batches[0] + batches[1])
    unknown = "the offset or the leader epoch of a batch has changed"
    for at, new, why in (
        (0, bytes(7) + b"\1", unknown),  # the offset of the first batch
        (first, bytes(8), "the batch of offset 0, byte {0}, does not follow offset 0"),
        (first, bytes(7) + b"\1", unknown),  # 1 follows 0
        (second, bytes(7) + b"\x0a", "the batch of offset 10, byte {1}, does not follow offset 10"),
        (second, bytes(7) + b"\x0b", unknown),
        (second + 12, b"\0\0\0\2", unknown),  # a leader epoch
        (first + 30, b"\1", "the CRC of the batch at offset 10, byte {0}, does not match its bytes"),
        (second + 8, b"\0\0\1\0", "a torn batch at byte {1}: "),
        (second + 8, b"\0\0\0\0", "batch at byte {1} has batch_length 0, which no batch can have"),
        (first + 16, b"\1", "batch at byte {0} has magic 1"),
    ):
        changed = content[:at] + new + content[at + len(new) :]
        with pytest.raises(DamageError) as raised:
            proven(WatchedFile(changed + bytes(900)), len(content), crc)
        assert str(raised.value).startswith(f"{PATH}: the batches are not those that were synced; ")
        assert why.format(first, second) in str(raised.value), (at, new)


# -- the scrub ------------------------------------------------------------------------------------------------------


def scrubbed(content, size):
    """What the scrub yields: how many bytes each step has read, and the damaged batches."""
    file = WatchedFile(content)
    found = list(scrub(OneFileDisk(file), PATH, size))
    assert file.is_closed
    return (
        [one for one in found if isinstance(one, int)],
        [one for one in found if isinstance(one, DamagedBatch)],
    )


def test_a_scrub_tells_after_each_step_how_much_it_has_read(monkeypatch):
    batches = log_of([100] * 10)
    size, content = len(batches[0]), b"".join(batches)
    assert len(content) == 10 * size
    for step_size, steps in (
        (1, [size] * 10),
        (size, [size] * 10),
        (size + 1, [2 * size] * 5),
        (3 * size, [3 * size] * 3 + [size]),
        (1 << 20, [10 * size]),
    ):
        monkeypatch.setattr(proof, "SCRUB_SIZE", step_size)
        assert scrubbed(content + b"appended since", len(content)) == (steps, [])
    assert scrubbed(b"", 0) == ([], [])


def test_a_scrub_names_each_batch_whose_bytes_have_changed_and_reads_on():
    batches = log_of([5, 50, 500, 7])
    size = sum(map(len, batches))
    begins = [sum(map(len, batches[:place])) for place in range(4)]
    for places in ((), (0,), (1, 3), (0, 1, 2, 3)):
        changed = bytearray(b"".join(batches))
        for place in places:
            changed[begins[place] + len(batches[place]) - 1] ^= 1
        wanted = [DamagedBatch(begins[place], len(batches[place]), 10 * place) for place in places]
        assert scrubbed(bytes(changed), size) == ([size], wanted)
    assert scrubbed(b"".join(batches)[:-1], size) == (
        [size],
        [DamagedBatch(begins[3], len(batches[3]), 30)],
    ), "the file has become shorter"
    with pytest.raises(DamageError):
        scrubbed(b"".join(batches)[: begins[3] + 60], size)
