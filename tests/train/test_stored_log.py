"""The log of a step beside the checkpoints."""

import signal
import threading
import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_distributed.components.train.run.runners.kubernetes.logs.pod_log import LogReader
from kfp_distributed.components.train.run.shown_progress.log_entry import LogEntry, precise_lines
from kfp_distributed.components.train.tell import stored_log
from kfp_distributed.components.train.tell.log_format import parse_line
from kfp_distributed.components.train.tell.stored_log import StoredLog, read_log
from kfp_distributed.storage import open_store
from kfp_distributed.storage.errors import StorageError, StoreAway

TIME = 1795442712.5
COMPRESSOR = zlib.compressobj


def lines(*numbers, replica="worker-0"):
    return [LogEntry(TIME + number, "INFO", replica, f"line {number}") for number in numbers]


@pytest.fixture
def warnings():
    return []


@pytest.fixture
def make(tmp_path, warnings):
    """Return a function that starts a log in the folder of an attempt."""

    def start(attempt="1", store=None):
        log = StoredLog(lambda level, text: warnings.append((level, text)))
        log.start(lambda: store or open_store(str(tmp_path / attempt)))
        return log

    return start


def close(log, seconds):
    """End a log as that of a cancelled step, which waits for some seconds."""
    log.end(gives_up=True)
    log.is_stored(seconds)
    log.close()


class AwayStore:
    """A store that answers when it is told to."""

    def __init__(self, store):
        self.store, self.is_away, self.asked, self.error = store, True, threading.Event(), StoreAway

    def write(self, key, data, content_type):
        self.asked.set()
        if self.is_away:
            raise self.error("store", "bucket", "x", "no answer")
        self.store.write(key, data, content_type)


def test_entries_are_stored_in_order_with_their_times(make, tmp_path, warnings):
    entries = [
        LogEntry(TIME + 0.123456, "WARNING", "job", "worker-0: pulling"),
        LogEntry(TIME, "INFO", "worker-0", ""),
        LogEntry(TIME, "INFO", "worker-0", "  ü \r \ud800"),
        LogEntry(TIME, "ERROR", "job", "two\nlines"),
    ]
    log = make()
    for entry in entries:
        log.add(entry)
    close(log, 120)
    log.add(entries[0])
    read = list(read_log(open_store(str(tmp_path))))
    assert read == [
        entries[0],
        entries[1],
        entries[2]._replace(message="  ü \r \\ud800"),
        *(entries[3]._replace(message=text) for text in ("two", "lines")),
    ]
    assert [file.name for file in (tmp_path / "1").iterdir()] == ["00000001.gz"]
    assert warnings == []


@given(st.integers(0, 4_000_000_000), st.integers(0, 999_999))
def test_times_keep_their_microseconds(seconds, microseconds):
    entry = LogEntry(seconds + microseconds / 1e6, "INFO", "worker-0", "x")
    parsed = parse_line(precise_lines(entry))
    assert round(parsed.time * 1e6) == round(entry.time * 1e6)


def test_a_part_is_stored_while_the_job_runs(make, tmp_path, monkeypatch):
    monkeypatch.setattr(stored_log, "PART_SECONDS", 0.05)
    log = make()
    log.add(lines(1)[0])
    first = tmp_path / "1" / "00000001.gz"
    waits = threading.Event()
    while not first.exists():
        assert not waits.wait(0.01)
    log.add(lines(2)[0])
    close(log, 120)
    assert list(read_log(open_store(str(tmp_path)))) == lines(1, 2)
    assert zlib.decompress(first.read_bytes(), 31).endswith(b"line 1\n")


def test_a_large_part_is_stored_at_once(make, tmp_path, monkeypatch):
    monkeypatch.setattr(stored_log, "PART_BYTES", 100_000)
    log = make()
    entries = lines(*range(10_000))
    for entry in entries:
        log.add(entry)
    close(log, 120)
    assert list(read_log(open_store(str(tmp_path)))) == entries
    assert len(list((tmp_path / "1").iterdir())) == 4


def test_parts_wait_for_a_store_that_is_away(make, tmp_path, monkeypatch, warnings):
    monkeypatch.setattr(stored_log, "PART_SECONDS", 0.01)
    monkeypatch.setattr(stored_log, "RETRY_SECONDS", 0.01)
    store = AwayStore(open_store(str(tmp_path / "1")))
    log = make(store=store)
    log.add(lines(1)[0])
    assert store.asked.wait(120)
    log.add(lines(2)[0])
    store.is_away = False
    close(log, 120)
    assert list(read_log(open_store(str(tmp_path)))) == lines(1, 2)
    assert [level for level, _ in warnings] == ["WARNING"]
    assert "no answer" in warnings[0][1]


def test_the_oldest_parts_are_dropped_if_too_many_wait(make, tmp_path, monkeypatch):
    monkeypatch.setattr(stored_log, "PART_BYTES", 65_000)
    monkeypatch.setattr(stored_log, "WAITING_BYTES", 20_000)
    store = AwayStore(open_store(str(tmp_path / "1")))
    log = make(store=store)
    entries = lines(*range(10_000))
    for entry in entries:
        log.add(entry)
    store.is_away = False
    close(log, 120)
    read = list(read_log(open_store(str(tmp_path))))
    kept = [entry for entry in read if entry.replica != "job"]
    gaps = [int(entry.message.split()[0]) for entry in read if entry.replica == "job"]
    assert gaps
    assert read[0].level == "WARNING"
    assert kept == entries[-len(kept) :]
    assert sum(gaps) + len(kept) == len(entries)


def test_the_end_waits_for_a_store_that_is_away_but_not_for_one_that_refuses(make, tmp_path, monkeypatch):
    monkeypatch.setattr(stored_log, "RETRY_SECONDS", 0.01)
    store = AwayStore(open_store(str(tmp_path / "1")))
    log = make(store=store)
    log.add(lines(1)[0])
    log.end(gives_up=False)
    assert store.asked.wait(120)
    assert not log.is_stored(0.1)
    store.is_away = False
    assert log.is_stored(120)
    assert list(read_log(open_store(str(tmp_path)))) == lines(1)

    store = AwayStore(open_store(str(tmp_path / "2")))
    store.error = StorageError
    log = make(store=store)
    log.add(lines(1)[0])
    log.end(gives_up=False)
    assert log.is_stored(120)


def test_a_store_that_never_answers_delays_the_end_no_longer_than_allowed(make, tmp_path, warnings):
    store = AwayStore(open_store(str(tmp_path / "1")))
    log = make(store=store)
    log.add(lines(1)[0])
    close(log, 0.1)
    assert store.asked.wait(120)
    assert list(read_log(open_store(str(tmp_path)))) == []
    assert warnings


def test_a_store_that_refuses_the_log_delays_the_end_by_one_request(make, tmp_path, warnings):
    before = {*threading.enumerate()}
    log = make(store=AwayStore(open_store(str(tmp_path / "1"))))
    log.add(lines(1)[0])
    begun = time.monotonic()
    close(log, 500)
    # Further requests would be sent for as long as it may wait.
    assert time.monotonic() - begun < 250
    assert [thread for thread in {*threading.enumerate()} - before if thread.name == "stored log"] == []
    assert [text.partition(":")[0] for _, text in warnings] == [
        "the log is not stored beside the checkpoints at the moment",
        "the last 1 lines of the log are not stored",
    ]


def test_lines_that_two_attempts_have_read_are_one(make, tmp_path):
    twice = [*lines(1, 2, 2, 3), *lines(2, replica="worker-1")]
    together = [entry._replace(time=int(entry.time)) for entry in twice]
    for attempt, entries in (("1", twice[:4]), ("2", [*together, *lines(4)])):
        log = make(attempt)
        for entry in entries:
            log.add(entry)
        close(log, 120)
    assert list(read_log(open_store(str(tmp_path)))) == [*twice[:4], *together[4:], *lines(4)]


class InterruptedCompressor:
    """A compressor during whose first call SIGTERM arrives. Python calls the handler when the call has returned."""

    def __init__(self, *settings):
        self._compressor, self._is_interrupted = COMPRESSOR(*settings), False

    def compress(self, data):
        compressed = self._compressor.compress(data)
        if not self._is_interrupted:
            self._is_interrupted = True
            signal.raise_signal(signal.SIGTERM)
        return compressed

    def flush(self):
        return self._compressor.flush()


def test_a_signal_during_the_compression_loses_no_line(make, tmp_path, monkeypatch):
    def end(number, frame):
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, end)
    entries = lines(*range(4000))
    monkeypatch.setattr(stored_log.zlib, "compressobj", InterruptedCompressor)
    log = make()
    added = []

    def add_all():
        for entry in entries:
            log.add(entry)
            added.append(entry)

    try:
        with pytest.raises(SystemExit):
            add_all()
    finally:
        monkeypatch.undo()
        signal.signal(signal.SIGTERM, before)
    close(log, 120)
    assert 1000 < len(added) < len(entries)
    assert list(read_log(open_store(str(tmp_path)))) == entries[: len(added) + 1]


def test_a_part_that_cannot_be_read_hides_no_other_part(make, tmp_path, monkeypatch):
    monkeypatch.setattr(stored_log, "PART_BYTES", 100_000)
    log = make()
    entries = lines(*range(10_000))
    for entry in entries:
        log.add(entry)
    close(log, 120)
    second = tmp_path / "1" / "00000002.gz"
    second.write_bytes(second.read_bytes()[:-100])
    read = list(read_log(open_store(str(tmp_path))))
    warned = [entry for entry in read if entry.replica == "job"]
    assert [entry.level for entry in warned] == ["WARNING"]
    assert "1/00000002.gz" in warned[0].message
    kept = [entry for entry in read if entry.replica != "job"]
    assert kept[0] == entries[0]
    assert kept[-1] == entries[-1]


def test_lines_that_are_lost_at_the_end_are_counted_after_an_earlier_outage_too(make, tmp_path, monkeypatch, warnings):
    monkeypatch.setattr(stored_log, "PART_SECONDS", 0.01)
    monkeypatch.setattr(stored_log, "RETRY_SECONDS", 0.01)
    store = AwayStore(open_store(str(tmp_path / "1")))
    log = make(store=store)
    log.add(lines(1)[0])
    assert store.asked.wait(120)
    store.is_away = False
    log.add(lines(2)[0])
    waits = threading.Event()
    while not (tmp_path / "1" / "00000002.gz").exists():  # By then, the end of the outage is noted.
        assert not waits.wait(0.01)
    store.is_away = True
    for entry in lines(3, 4):
        log.add(entry)
    while len(warnings) < 2:  # By then, the second outage is noted.
        assert not waits.wait(0.01)
    close(log, 0.2)
    assert warnings[-1] == ("WARNING", "the last 2 lines of the log are not stored")
    assert [text for _, text in warnings if "no answer" in text] == [warnings[0][1], warnings[1][1]]


def test_lines_of_a_second_are_one_however_two_attempts_have_read_them(make, tmp_path):
    """A retried step reads many lines at once, and the times of lines depend on which ones are read together."""
    stamped = [b"2026-11-25T22:24:1%d.%02d0000000Z row %d\n" % (row // 50, row % 50, row) for row in range(150)]
    for attempt, at_once in (("1", 1), ("2", 40)):
        log, reader = make(attempt), LogReader()
        for start in range(0, len(stamped), at_once):
            for line in reader.feed(b"".join(stamped[start : start + at_once]), 0.0):
                log.add(LogEntry(line.time, "INFO", "worker-0", line.text))
        close(log, 120)
    assert [entry.message for entry in read_log(open_store(str(tmp_path)))] == [f"row {row}" for row in range(150)]
