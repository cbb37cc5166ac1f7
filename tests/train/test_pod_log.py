"""The log of a container over connections that break: each line is read once and in order."""

from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from train.simulated_kubelet import Connection, Entry, Kubelet

from kfp_distributed.components.train.run.runners.kubernetes.logs.pod_log import LogReader

pytestmark = pytest.mark.takes(2)

BEGIN = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def stamped(second, text, fraction=0, zone="Z"):
    return f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}.{fraction:09d}{zone} {text}\n".encode()


def read(reader, *data):
    reader.resume_query()
    return [line.text for chunk in data for line in reader.feed(chunk, 0.0)]


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
    assert lines[-1].text.startswith("step 9")
    # The timestamp is that of the first 16 KiB.
    assert (lines[0].time, lines[-1].time) == (BEGIN + 1, None)


def test_a_line_has_its_timestamp():
    reader, data = LogReader(), b"".join(stamped(1 + number // 3, str(number), 5 * 10**8) for number in range(5))
    data += b"failed to create fsnotify watcher\n" + stamped(9, "", zone="+02:00") + stamped(9, "x" * 20_000)
    reader.resume_query()
    lines = [*reader.feed(data[:50], 0.0), *reader.feed(data[50:], 0.0), *reader.feed(b"", 0.0)]
    assert [(text[:6], time if time is None else time - BEGIN) for text, time in lines] == [
        ("0", 1.5),
        ("1", 1.5),
        ("2", 1.5),
        ("3", 2.5),
        ("4", 2.5),
        ("failed", None),
        ("", 9 - 7200),
        ("xxxxxx", None),
    ]


def test_a_long_line_is_split_and_goes_on_after_a_break():
    """The connection breaks twice within the same line, the second time before the place of the first one."""
    reader, text = LogReader(), "".join(f"{number:07d}€" for number in range(20_000))
    data = stamped(1, "one") + stamped(1, text, 1)
    lines = [line for size in (100_001, 70_000, None) for line in read(reader, data[:size])]
    assert "".join(lines) == f"one{text}"
    assert [len(line) for line in lines] == [3, 65536, 65536, 28928]


def test_a_progress_bar_goes_on_after_a_break():
    reader, bar, lines = LogReader(), "", []
    for second in range(20):
        bar += f"\rstep {second}"
        reader.resume_query()
        lines += [line.text for line in reader.feed(stamped(1, bar)[:-1], float(second))]
    assert lines == ["step 0", "step 5", "step 10", "step 15"]


def test_of_more_lines_than_are_remembered_none_is_shown_again():
    reader, data = LogReader(), b"".join(stamped(1, "line", number) for number in range(200_000))
    assert len(read(reader, data)) == 200_000
    assert read(reader, data, stamped(1, "new", 200_000)) == ["new"]


def test_a_line_that_a_rotation_divides_is_shown_and_then_its_rest_again():
    """Nothing in the new file tells that its first line is a rest."""
    reader = LogReader()
    assert read(reader, stamped(1, "first part, second part")) == ["first part, second part"]
    assert read(reader, stamped(1, "second part", 1), stamped(1, "new", 2)) == ["second part", "new"]


@pytest.mark.parametrize("size", [20, 31, 33, None])
def test_the_place_within_a_line_is_known(size):
    """20 bytes are a part of the timestamp, 31 the timestamp."""
    reader, data = LogReader(), stamped(1, "one")
    read(reader, data[:size])
    place = reader.place_in_line
    assert (place is not None) == (size is not None)
    read(reader, data[:size])
    assert reader.place_in_line == place
    assert [line.text for line in reader.feed(b"", 0.0)] == {20: [], 31: [], 33: ["on"], None: []}[size]


LONGEST = 100
"""Characters after which the reader cuts a line in the property test, instead of 64 Ki."""

PART = 40
"""Bytes after which the container runtime cuts a line into parts there, instead of 16 KiB."""


class Line(NamedTuple):
    nanoseconds: int
    text: str

    def entries(self, number):
        data = f"{self.text}\n".encode()
        starts = range(0, len(data), PART)
        return [Entry(number, self.nanoseconds + at, data[at : at + PART]) for at in starts]

    @property
    def pieces(self):
        visible = self.text.rpartition("\r")[2]
        return [visible[at : at + LONGEST] for at in range(0, len(visible) or 1, LONGEST)]


def text_of(number, kind):
    texts = {
        "long": f"{number}: " + "long € " * (7 * number % 60),
        "bar": "\r".join(f"{number}: {percent} %" for percent in range(0, 101, 10)),
    }
    return texts.get(kind, f"line {number}")


WRITE = st.tuples(
    st.just("write"),
    st.sampled_from(["short", "short", "equal", "long", "bar"]),
    # Nanoseconds after the line before it, and nanoseconds by which it is late: stderr may be behind stdout.
    st.sampled_from([0, 1, 10**6, 10**8, 999_999_999, 10**9, 5 * 10**9]),
    st.sampled_from([0, 0, 1, 10**9, 2 * 10**9]),
)
READ = st.tuples(st.just("read"), st.integers(1, 700))
ROTATE_OR_BREAK = st.sampled_from([("rotate",), ("break",)])


@settings(max_examples=300)
@given(st.lists(st.one_of(WRITE, WRITE, READ, ROTATE_OR_BREAK), max_size=60), st.sampled_from(["Z", "+02:00"]))
# A late line of two parts, of which only the second is sent again.
@example(
    [("write", "short", 999_999_999, 0), ("write", "long", 0, 2 * 10**9), ("write", "short", 1, 0), ("read", 999)], "Z"
)
# A late line that was not read before the connection broke.
@example([("write", "short", 0, 0), ("read", 999), ("write", "short", 0, 2 * 10**9)], "Z")
def test_each_line_that_the_kubelet_serves_is_shown_once_and_in_order(steps, zone):
    """A line that is never sent completely may be shown in part."""
    kubelet, reader, clock = Kubelet(zone), LogReader(LONGEST), 10**10
    connection, unread, received = Connection(kubelet, reader.resume_query()), [], Counter()
    lines, shown, complete = [], [], set()
    for step, *arguments in [*steps, ("break",), ("read", 10**9)]:
        if step == "write":
            kind, elapsed, late = arguments
            clock += elapsed
            # Nothing tells a line from an equal one with an equal timestamp in the file before.
            is_equal = kind == "equal" and kubelet.files[-1]
            lines.append(lines[-1] if is_equal else Line(clock - late, text_of(len(lines), kind)))
            kubelet.files[-1] += lines[-1].entries(len(lines) - 1)
        elif step == "rotate":
            kubelet.files.append([])
        elif step == "break":
            connection, unread, received = Connection(kubelet, reader.resume_query()), [], Counter()
        else:
            unread += connection.read()
            size = arguments[0]
            while unread and size:
                number, data = unread.pop(0)
                shown += [line.text for line in reader.feed(data[:size], -1.0)]
                if data[size:]:
                    unread.insert(0, (number, data[size:]))
                else:
                    received[number] += 1
                size = max(0, size - len(data))
            complete |= {number for number, parts in received.items() if parts == len(lines[number].entries(number))}
    shown += [line.text for line in reader.feed(b"", -1.0)]
    at = 0
    for number, line in enumerate(lines):
        if number in complete:
            assert shown[at : at + len(line.pieces)] == line.pieces
            at += len(line.pieces)
        else:
            begun = line.text
            while shown[at:] and begun and (text := shown[at].rstrip("\ufffd")) in begun:
                begun = begun.partition(text)[2] if text else ""
                at += 1
    assert shown[at:] == []
