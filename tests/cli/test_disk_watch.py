"""`stablelog produce` on a full disk says what it waits for, and when it goes on."""

import errno
import threading

import pytest

from stablelog.cli import consume, disk_watch, produce, record_reader, write_settings
from stablelog.errors import DiskError, UnavailableError
from tests.full_disk import served
from tests.waiting import until


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines"
    path.write_text("".join(f"{n}\n" for n in range(50)))
    return path


@pytest.fixture
def broker(monkeypatch):
    monkeypatch.setattr(disk_watch, "SILENCE_S", 0.2)
    with served() as made:
        made.call(lambda broker: broker.topic_files.create("t", 1, {}))
        yield made


class Told:
    """What the commands say on stderr."""

    def __init__(self, monkeypatch):
        self.lines = []
        monkeypatch.setattr(disk_watch, "print_to_stderr", self.lines.append)


def write(broker, lines, transactional_id=None):
    produce.produce("t", lines, transactional_id=transactional_id, bootstrap=[broker.bootstrap])


@pytest.mark.parametrize("transactional_id", [None, "me"])
def test_produce_says_that_the_disk_is_full_and_goes_on_when_it_has_room(
    broker, lines, monkeypatch, capsys, transactional_id
):
    told = Told(monkeypatch)
    monkeypatch.setattr(produce, "TIMEOUT_S", 300.0)
    broker.fill()
    producing = threading.Thread(target=write, args=(broker, lines, transactional_id))
    producing.start()
    until(lambda: told.lines, "the command says what it waits for")
    assert told.lines == [
        f"waiting: the disk of {broker.bootstrap} is full (data directory /data); records are sent when the disk has space"
    ]
    broker.grow()
    producing.join(300)
    assert not producing.is_alive()
    assert told.lines[1:] == [f"the command continues: the disk of {broker.bootstrap} has space"]
    assert "wrote 50 records to t" in capsys.readouterr().out


@pytest.mark.extended
def test_a_command_that_gives_up_on_a_full_disk_says_so(broker, lines, monkeypatch):
    Told(monkeypatch)
    monkeypatch.setattr(write_settings, "DELIVERY_TIMEOUT_S", 1.5)
    monkeypatch.setattr(produce, "TIMEOUT_S", 1.0)
    broker.fill()
    for transactional_id in (None, "me"):
        with pytest.raises(UnavailableError, match=f"the disk of {broker.bootstrap} is full"):
            write(broker, lines, transactional_id)


def test_nothing_is_said_of_a_disk_with_room_or_a_broker_that_does_not_answer(broker, monkeypatch):
    told = Told(monkeypatch)
    assert disk_watch.full_disk(broker.bootstrap) is None
    assert disk_watch.full_disk("127.0.0.1:1") is None
    asked = []
    monkeypatch.setattr(disk_watch, "full_disk", asked.append)
    with disk_watch.disk_watch(broker.bootstrap, lambda: True):
        until(lambda: len(asked) > 1, "the broker is asked")
    assert told.lines == []


def below_half(broker):
    """Fill the disk, with less than half of the reserve left: groups are refused."""
    broker.fill()

    def release(made):
        made.reserve.record_failure(DiskError("writing", errno.ENOSPC))
        for _ in range(10):
            made.reserve.release()
        broker.disk.fill()

    broker.call(release)


def read(broker, group="g"):
    consume.consume("t", group=group, bootstrap=[broker.bootstrap])


def test_consume_says_that_its_group_takes_no_members_and_goes_on_when_it_does(
    broker, lines, monkeypatch, capsys
):
    told, text = Told(monkeypatch), "group g may accept no members until the disk has space"
    write(broker, lines)
    below_half(broker)
    consuming = threading.Thread(target=read, args=(broker,))
    consuming.start()
    until(lambda: told.lines, "the command says what it waits for")
    assert told.lines == [f"waiting: the disk of {broker.bootstrap} is full (data directory /data); {text}"]
    broker.grow()
    consuming.join(60)
    assert not consuming.is_alive()
    assert told.lines[1:] == ["the command continues: group g is joined"]
    assert capsys.readouterr().out.endswith("48\n49\n")


@pytest.mark.extended
def test_offsets_that_a_full_disk_does_not_take_end_consume_with_a_sentence(broker, lines, monkeypatch):
    Told(monkeypatch)
    monkeypatch.setattr("stablelog.cli.broker.DEADLINE_S", 1.0)
    write(broker, lines)
    print_bytes = record_reader.print_bytes

    def fill(content):
        print_bytes(content)
        if content.startswith(b"0\n"):
            below_half(broker)

    monkeypatch.setattr(record_reader, "print_bytes", fill)
    with pytest.raises(
        UnavailableError,
        match=f"the offsets of group g were not committed, .*: the disk of {broker.bootstrap} is full",
    ):
        read(broker)


def test_a_command_that_fails_does_not_wait_for_what_the_broker_says_of_its_disk(monkeypatch):
    monkeypatch.setattr(disk_watch, "SILENCE_S", 0.01)
    asked, answer = threading.Event(), threading.Event()

    def full_disk(_bootstrap):
        asked.set()
        answer.wait(60)

    monkeypatch.setattr(disk_watch, "full_disk", full_disk)
    with pytest.raises(KeyboardInterrupt), disk_watch.disk_watch("nowhere:1", lambda: True):
        assert asked.wait(60)
        raise KeyboardInterrupt
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "watch")
    answer.set()
    thread.join()
