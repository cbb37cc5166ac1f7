"""A container's log over connections that break: each line once and in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_distributed.components.train.runners.kubernetes.pod_log import LogReader


def stamped(second, text, fraction=0, zone="Z"):
    return f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}.{fraction:09d}{zone} {text}\n".encode()


def read(reader, *data):
    reader.place()
    return [line for each in data for line in reader.feed(each, 0.0)]


def test_lines_in_pieces():
    data = stamped(1, "one") + stamped(1, "") + stamped(2, "thrée")
    for size in (1, 2, 7, 1000):
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        assert read(LogReader(), *pieces) == ["one", "", "thrée"]


def test_the_end_without_a_line_end():
    assert read(LogReader(), stamped(1, "one")[:-1], b"") == ["one"]
    assert read(LogReader(), b"short", b"") == ["short"]


def test_what_the_kubelet_says_itself_is_a_line_and_no_time():
    reader = LogReader()
    said = b"failed to create fsnotify watcher: too many open files\n"
    assert read(reader, stamped(1, "one"), said, stamped(2, "two")) == ["one", said.decode().strip(), "two"]
    assert reader.place() == {"sinceTime": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    "said",
    [
        b"unable to retrieve container logs for containerd://0222",
        b'failed to try resolving symlinks in path "/var/log/pods/0.log": lstat /var/log/pods/0.log: no such file',
    ],
)
def test_that_the_kubelet_has_no_log_any_more_is_no_line(said):
    assert read(LogReader(), stamped(1, "one"), said + b"\n", stamped(2, "two"), said, b"") == ["one", "two"]


def test_a_progress_bar_is_told_now_and_then_and_takes_no_memory():
    reader = LogReader()
    reader.place()
    told = reader.feed(stamped(1, "")[:-1], 0.0)
    for second in range(100):
        told += reader.feed(f"\rstep {second}".encode() * 50, float(second))
    assert 15 <= len(told) <= 25
    assert told[-1].startswith("step 9")


def test_a_long_line_comes_in_pieces():
    assert [len(line) for line in read(LogReader(), stamped(1, "x" * 200_000))] == [65536, 65536, 65536, 3392]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=40),
    st.lists(st.integers(0, 2000), max_size=6),
    st.sampled_from(["Z", "+02:00"]),
)
def test_every_line_comes_once_wherever_the_connection_breaks(steps, cuts, zone):
    """Seconds mostly grow; one output may be a second behind the other."""
    second, log = 0, []
    for number, (grows, behind) in enumerate(steps):
        second += grows
        log.append((max(0, second - behind // 2), f"line {number}"))
    reader, told = LogReader(), []
    for cut in [*cuts, None]:
        since = reader.place().get("sinceTime", "")
        # As the server does: what is older than that is left out, the rest comes in the order of the file.
        sent = b"".join(stamped(at, text, zone=zone) for at, text in log if stamped(at, "").decode()[:19] >= since[:19])
        told += reader.feed(sent[:cut], 0.0)
        if cut is None:
            told += reader.feed(b"", 0.0)
    assert told == [text for _, text in log]


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 200)), max_size=6),
)
def test_every_line_comes_once_when_the_file_begins_anew(steps, connections):
    """The kubelet puts a file away that has become large: its lines do not come again after a connection that broke."""
    log = [(sum(steps[: number + 1]), f"line {number}") for number in range(len(steps))]
    reader, told, begins = LogReader(), [], 0
    for cut, second in [*connections, (None, 0)]:
        since = reader.place().get("sinceTime", "")
        # No line goes that was not read, nor a part of a second.
        begins = max(begins, min([second, *(at for at, _ in log[len(told) :])]))
        file = [(at, text) for at, text in log if at >= begins and stamped(at, "").decode()[:19] >= since[:19]]
        told += reader.feed(b"".join(stamped(at, text) for at, text in file)[:cut], 0.0)
    assert told == [text for _, text in log]
