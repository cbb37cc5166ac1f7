"""Steps that a fork of a program records."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.takes(8)

FORK = """
import multiprocessing, os, sys
from pathlib import Path
from kfp_distributed.trainers.sync import flush, record_step

def record(first, last, metric="loss"):
    for step in range(first, last + 1):
        record_step(Path(sys.argv[1]), step, 0, {metric: 1.0})

def fork(function):
    if sys.argv[2] == "multiprocessing":
        (child := multiprocessing.get_context("fork").Process(target=function)).start()
        return child.join
    if (child := os.fork()) == 0:
        function()
        sys.exit()
    return lambda: os.waitpid(child, 0)

record(0, 3)
"""


@pytest.fixture(params=["multiprocessing", "os"])
def steps_of(request, tmp_path):
    """A function that runs a program with a fork that ends by its exit functions, and returns the recorded steps."""

    def run(program):
        command = [sys.executable, "-c", FORK + program, str(tmp_path / "training.json"), request.param]
        subprocess.run(command, check=True, cwd=tmp_path, timeout=20)
        return json.loads((tmp_path / "training.json").read_text())["steps"]

    return run


def test_a_fork_that_loads_rows_overwrites_no_steps(steps_of):
    """It has a copy of the steps so far."""
    rows = steps_of("""
readable, writable = os.pipe()
wait = fork(lambda: os.read(readable, 1))
record(4, 100)
flush()
os.write(writable, b"x")
wait()
""")
    assert [row["step"] for row in rows] == list(range(101))


def test_the_steps_of_a_fork_that_trains_are_kept_beside_those_before_and_after_it(steps_of):
    rows = steps_of("""
fork(lambda: record(4, 100))()
record(100, 101, "test_loss")
""")
    assert [row["step"] for row in rows] == list(range(102))
    assert rows[100] == {"step": 100, "loss": 1.0, "test_loss": 1.0}


def test_a_step_before_the_last_one_of_a_fork_removes_none_of_its_steps(steps_of):
    """Such as a test of the checkpoint of an earlier step."""
    rows = steps_of("""
fork(lambda: record(4, 100))()
record(50, 50, "test_loss")
flush()
record(60, 60, "test_loss")
""")
    assert [row["step"] for row in rows] == list(range(101))
    assert [row["step"] for row in rows if "test_loss" in row] == [50, 60]


@pytest.mark.parametrize("flush", ["", "flush()"])
@pytest.mark.parametrize("begin", ["", "fork(lambda: record(4, 100))()"])
def test_a_process_that_begins_again_removes_the_steps_after_it(steps_of, begin, flush):
    rows = steps_of(f"""
{begin}
record(50, 50)
{flush}
record(40, 40)
""")
    assert [row["step"] for row in rows] == [*range(41 if begin else 4), *([] if begin else [40])]


def test_a_process_that_continues_the_checkpoint_of_a_fork_removes_the_steps_after_it(steps_of):
    rows = steps_of("""
fork(lambda: record(4, 100))()
record(51, 60)
""")
    assert [row["step"] for row in rows] == list(range(61))


@pytest.mark.parametrize("begin", ["", 'record(0, 0, "loss")'])
def test_it_removes_other_metrics_of_these_steps_too(begin, steps_of):
    rows = steps_of(f"""
def train():
    record(4, 100)
    record(100, 100, "val_loss")

fork(train)()
{begin}
record(51, 60)
""")
    assert [row["step"] for row in rows] == list(range(61))
    assert not any("val_loss" in row for row in rows)


def test_a_fork_that_begins_again_removes_the_steps_of_another(steps_of):
    rows = steps_of("""
fork(lambda: record(4, 100))()
fork(lambda: record(51, 60))()
""")
    assert [row["step"] for row in rows] == list(range(61))


def test_a_fork_records_whatever_a_thread_was_writing(steps_of):
    rows = steps_of("""
import threading
from kfp_distributed.trainers.runtime.outputs.metrics_file import update_metrics_file

other, is_over = Path("other.json"), threading.Event()
threading.Thread(target=lambda: [update_metrics_file(other, {}) for _ in iter(is_over.is_set, True)]).start()
for step in range(4, 24):
    fork(lambda: record(step, step))()
is_over.set()
""")
    assert [row["step"] for row in rows] == list(range(24))


def test_a_fork_records_while_threads_take_and_send_snapshots(steps_of):
    """The threads of its parent hold locks, which no thread of the fork releases."""
    rows = steps_of("""
import threading
from kfp_distributed.trainers.runtime.checkpoints import folder_uploads

folder, endless = Path("metrics_dir"), os.pipe()[0]
folder.mkdir()
sent, taken = threading.Event(), threading.Event()

def hold(event):
    event.set()
    os.read(endless, 1)

folder_uploads.keep(folder, lambda snapshot, changed: hold(sent))
for event in (sent, taken):
    (folder / f"file-{id(event)}").write_text("1")
    threading.Thread(target=flush, daemon=True).start()
    event.wait()
    folder_uploads.take_snapshot = lambda *arguments: hold(taken)
fork(lambda: record(4, 6))()
os._exit(0)
""")
    assert [row["step"] for row in rows] == list(range(7))


KEPT = """
from kfp_distributed.trainers.runtime.checkpoints import folder_uploads

main, (readable, writable) = os.getpid(), os.pipe()

def send(snapshot, changed):
    os.write(writable, b"parent " if os.getpid() == main else b"fork ")

folder_uploads.keep(Path(sys.argv[1]).parent, send)
flush()
"""


def test_the_parent_stores_the_steps_of_a_fork(steps_of):
    """Two processes that send one file may leave the older one in the store."""
    steps_of(f"""{KEPT}
fork(lambda: record(4, 6))()
flush()
assert os.read(readable, 99) == b"parent parent "
""")


def test_a_fork_takes_no_snapshot_of_its_parent(steps_of, tmp_path):
    steps_of(f"""{KEPT}
record(4, 4)
folder_uploads._uploads.capture(by_program=True, waits=False)
waiting = folder_uploads.kept_folders[0].waiting.folder
fork(lambda: (record(5, 5), flush()))()
assert [*waiting.iterdir()]
flush()
assert os.read(readable, 99) == b"parent fork parent "
""")
    assert not tmp_path.with_name(f"{tmp_path.name}-snapshots").exists()


def test_a_fork_has_a_writer_of_its_own_for_tensorboard(steps_of):
    """The thread that empties the queue of the writer of its parent is not in the fork."""
    rows = steps_of("""
import queue, threading, types

class SummaryWriter:
    names = set()

    def __init__(self, folder, flush_secs, filename_suffix=""):
        self.values, name = queue.Queue(10), f"{folder} {filename_suffix}"
        assert name not in self.names
        self.names.add(name)
        threading.Thread(target=lambda: [self.values.get() for _ in iter(int, 1)], daemon=True).start()

    def add_scalar(self, tag, value, number):
        self.values.put(value)

sys.modules["tensorboardX"] = types.SimpleNamespace(SummaryWriter=SummaryWriter)
os.environ["KFP_DISTRIBUTED_TENSORBOARD_DIR"] = "logs"
record(4, 20)
fork(lambda: record(21, 40))()
""")
    assert [row["step"] for row in rows] == list(range(41))
