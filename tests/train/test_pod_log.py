"""The log of a container over connections that break: each line is read once and in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_distributed.components.train.runners.kubernetes.pod_log import LogReader


def stamped(second, text, fraction=0, zone="Z"):
    return f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}.{fraction:09d}{zone} {text}\n".encode()


def read(reader, *data):
    reader.resume_query()
    return [line for chunk in data for line in reader.feed(chunk, 0.0)]


def test_lines_are_joined_from_chunks_of_any_size():
    data = stamped(1, "one") + stamped(1, "") + stamped(2, "thrée")
    for size in (1, 2, 7, 1000):
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        assert read(LogReader(), *pieces) == ["one", "", "thrée"]


def test_a_last_line_without_line_feed_is_read():
    assert read(LogReader(), stamped(1, "one")[:-1], b"") == ["one"]
    assert read(LogReader(), b"short", b"") == ["short"]


def test_a_message_of_the_kubelet_is_a_line_without_timestamp():
    reader = LogReader()
    message = b"failed to create fsnotify watcher: too many open files\n"
    assert read(reader, stamped(1, "one"), message, stamped(2, "two")) == ["one", message.decode().strip(), "two"]
    assert reader.resume_query() == {"sinceTime": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    "message",
    [
        b"unable to retrieve container logs for containerd://0222",
        b'failed to try resolving symlinks in path "/var/log/pods/0.log": lstat /var/log/pods/0.log: no such file',
    ],
)
def test_the_message_of_a_missing_log_is_left_out(message):
    assert read(LogReader(), stamped(1, "one"), message + b"\n", stamped(2, "two"), message, b"") == ["one", "two"]


def test_a_progress_bar_becomes_a_line_every_few_seconds():
    reader = LogReader()
    reader.resume_query()
    lines = reader.feed(stamped(1, "")[:-1], 0.0)
    for second in range(100):
        lines += reader.feed(f"\rstep {second}".encode() * 50, float(second))
    assert 15 <= len(lines) <= 25
    assert lines[-1].startswith("step 9")


def test_a_long_line_is_split():
    assert [len(line) for line in read(LogReader(), stamped(1, "x" * 200_000))] == [65536, 65536, 65536, 3392]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=40),
    st.lists(st.integers(0, 2000), max_size=6),
    st.sampled_from(["Z", "+02:00"]),
)
def test_every_line_is_read_once_wherever_the_connection_breaks(steps, cuts, zone):
    """Timestamps usually increase, but stderr may be a second behind stdout."""
    second, log = 0, []
    for number, (increment, behind) in enumerate(steps):
        second += increment
        log.append((max(0, second - behind // 2), f"line {number}"))
    reader, lines = LogReader(), []
    for cut in [*cuts, None]:
        since = reader.resume_query().get("sinceTime", "")
        # The server leaves out older lines and sends the others in the order of the file.
        sent = b"".join(stamped(at, text, zone=zone) for at, text in log if stamped(at, "").decode()[:19] >= since[:19])
        lines += reader.feed(sent[:cut], 0.0)
        if cut is None:
            lines += reader.feed(b"", 0.0)
    assert lines == [text for _, text in log]


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 200)), max_size=6),
)
def test_every_line_is_read_once_when_the_log_is_rotated(steps, connections):
    """The kubelet rotates a large log file. After a broken connection it does not send the lines of the old file."""
    log = [(sum(steps[: number + 1]), f"line {number}") for number in range(len(steps))]
    reader, lines, first_second = LogReader(), [], 0
    for cut, second in [*connections, (None, 0)]:
        since = reader.resume_query().get("sinceTime", "")
        # Lines that were not read are not rotated away, and neither is a part of a second.
        first_second = max(first_second, min([second, *(at for at, _ in log[len(lines) :])]))
        file = [(at, text) for at, text in log if at >= first_second and stamped(at, "").decode()[:19] >= since[:19]]
        lines += reader.feed(b"".join(stamped(at, text) for at, text in file)[:cut], 0.0)
    assert lines == [text for _, text in log]
