"""The step on a Dask cluster writes the same bytes as in one process, and goes on after a kill."""

import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from dask_processes import start_cluster
from rows_of_sources import csv_text, images, json_lines, parquet

from kfp_distributed.components.prepare_data import prepare as prepare_module
from kfp_distributed.components.prepare_data import read
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.prepare import prepare
from kfp_distributed.components.prepare_data.tables import image_files
from kfp_distributed.components.prepare_data.writing import write
from kfp_distributed.components.worker_pool.dask_engine import DaskEngine
from kfp_distributed.components.worker_pool.stored_tasks import StoredTasks
from kfp_distributed.processes import ProcessGroup
from kfp_distributed.storage import open_store
from kfp_distributed.storage.object_stores.embedded import embedded_object_store

pytestmark = pytest.mark.takes(80)

SPLITS = ("train", "validation", "test")
METHOD_VARIABLE = "DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD"
"""Variable with the way in which Dask starts a worker: see the fixture `_forked_workers`."""


@pytest.fixture
def started(monkeypatch):
    """The StoredTasks of all steps."""
    found = []
    create = StoredTasks.__init__

    def record(self, *arguments):
        create(self, *arguments)
        found.append(self)

    monkeypatch.setattr(StoredTasks, "__init__", record)
    return found


def check(outputs, source, workers="shared", **arguments):
    here, there = outputs(source, 0, **arguments), outputs(source, workers, **arguments)
    assert there[0] == here[0]
    assert there[1].keys() == here[1].keys()
    assert [name for name, content in here[1].items() if there[1][name] != content] == []
    return here


OPTIONS = {
    "groups": ("csv", {"group_column": "group", "label_column": "y", "task": "regression"}),
    "times": ("csv", {"time_column": "time"}),
    "kept": ("parquet", {"label_column": "", "task": "none"}),
    "json": ("jsonl", {"columns": {"town": "text"}, "missing": "drop"}),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("kind", "options"), OPTIONS.values(), ids=OPTIONS)
def test_bytes_of_tables(file, outputs, kind, options):
    content = {"csv": csv_text, "parquet": parquet, "jsonl": json_lines}[kind]()
    check(outputs, file(f"data.{kind}", content), **options)


def test_digits_and_arrays(outputs, tmp_path):
    check(outputs, "digits", name="digits")
    np.savez(tmp_path / "data.npz", x=np.arange(400.0).reshape(100, 4), label=np.arange(100) % 2)
    check(outputs, tmp_path / "data.npz", name="npz")


def test_images_are_read_again_in_colour_and_keep_their_notes(outputs, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(read, "CHUNK_BYTES", 2**20)
    monkeypatch.setattr(image_files, "SAMPLE", 2)  # Both are grey.
    check(outputs, images(tmp_path / "images"))
    here, there = (
        [line for line in text.splitlines() if not line.startswith("read ")]
        for text in capfd.readouterr().out.split("test: ")[:2]
    )
    assert any("aspect ratio" in line for line in here)
    assert any("are stored in colour" in line for line in here)
    assert there[1:] == here


@pytest.mark.usefixtures("small")
def test_sources_of_splits_and_like(file, outputs):
    source, other = file("data.csv", csv_text()), file("test.csv", csv_text())
    manifests, _ = check(outputs, source, sources={"test": str(other)}, group_column="")
    options = {"like": manifests["train"], "validation_fraction": 0.5, "test_fraction": 0.5}
    check(outputs, source, name="like", **options)


@pytest.mark.usefixtures("small")
def test_wrong_rows(file, outputs, tmp_path):
    lines = csv_text(has_line_ends=False).split("\n")
    for number in range(2000, 2030):
        lines[number] = "1,2"
    source = file("data.csv", "\n".join(lines))
    messages = []
    for workers in (0, "shared"):
        with pytest.raises(ValueError, match="these are the first 20 rows") as error:
            outputs(source, workers)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert not any((tmp_path / "scratch").iterdir())
    check(outputs, source, name="skip", on_bad_row="skip")


@pytest.mark.usefixtures("small")
def test_codes_are_read_again(file, outputs):
    lines = ["code,y,label", *(f"{row},{row % 13},{'ab'[row % 2]}" for row in range(4000)), "0123,1,a", "0123,1,b"]
    source = file("data.csv", "\n".join(lines))
    ends = []
    for workers in (0, "shared"):
        with pytest.raises(ValueError, match="different values") as error:
            outputs(source, workers)
        ends.append(str(error.value))
    assert ends[0] == ends[1]


@pytest.mark.usefixtures("small")
def test_a_cluster_of_others_with_scratch_and_shards_in_an_object_store(file, tmp_path, outputs, monkeypatch):
    source = file("data.csv", csv_text())
    here = outputs(source, 0)
    uris = {split: f"s3://pipelines/run/{split}_dataset" for split in SPLITS}
    out = tmp_path / "remote"
    datasets = {split: SimpleNamespace(path=str(out / split), uri=uris[split], metadata={}) for split in SPLITS}
    with (
        embedded_object_store(tmp_path / "objects") as server,
        monkeypatch.context() as environment,
        ProcessGroup() as processes,
    ):
        (tmp_path / "objects" / "pipelines").mkdir()
        for name, value in server.environment().items():
            environment.setenv(name, value)
        address = start_cluster(processes, tmp_path / "dask")
        engine = DaskEngine("s3://pipelines/scratch", scheduler=address)
        manifests = prepare(str(source), Options(shards=3), datasets, str(out / "overview"), engine=engine)
        store = open_store("s3://pipelines")
        for split, manifest in manifests.items():
            assert manifest.shards == here[0][split].shards
            assert manifest.shards_uri == f"s3://pipelines/run/shards/{split}_dataset"
            for shard in manifest.shards:
                assert store.read(f"run/shards/{split}_dataset/{shard.path}") == here[1][f"{split}/{shard.path}"]
            assert [path.name for path in (out / split).iterdir()] == ["dataset.json"]
        assert store.list("scratch") == []


@pytest.mark.usefixtures("small")
def test_an_error_of_the_machine_keeps_the_scratch_for_the_next_start(file, tmp_path, outputs, started, monkeypatch):
    source = file("data.csv", csv_text())
    here = outputs(source, 0)
    with monkeypatch.context() as patch:
        patch.setattr(write, "group_bytes", fail)
        with pytest.raises(OSError, match="the network is away"):
            outputs(source, "shared")
    assert len(results(tmp_path / "scratch")) == started[0].started
    assert outputs(source, "shared")[1] == here[1]
    assert started[1].started == started[1].count - started[0].count
    assert not any((tmp_path / "scratch").iterdir())


def fail(*arguments):
    raise OSError("the network is away")


@pytest.mark.usefixtures("small")
def test_rows_that_no_task_needs_are_deleted_and_a_restart_does_not_miss_them(
    file, tmp_path, outputs, started, monkeypatch
):
    source, scratch = file("data.csv", csv_text()), tmp_path / "scratch"
    here = outputs(source, 0)
    while_shards_are_written = []
    run = StoredTasks.run

    def record(self, task, items, /):
        while_shards_are_written.append(names(scratch))
        return run(self, task, items)

    with monkeypatch.context() as patch:
        patch.setattr(StoredTasks, "run", record)
        patch.setattr(prepare_module, "take_shards", fail)
        with pytest.raises(OSError, match="the network is away"):
            outputs(source, "shared")
    before, during, after = *while_shards_are_written[-2:], names(scratch)
    assert any(name.startswith("chunk-") for name in before["pieces-0"])
    assert not any(name.startswith("chunk-") for name in during["pieces-0"])
    assert during["divided"]
    assert not after.get("divided")
    assert outputs(source, "shared")[1] == here[1]
    assert started[1].started == 0


def names(scratch):
    """Names of the objects in each folder of the scratch of a step."""
    found = {}
    for path in scratch.glob("*/*/*"):
        found.setdefault(path.parent.name, []).append(path.name)
    return found


@pytest.mark.parametrize("arguments", [{}, {"workers": -1}, {"workers": 2, "scheduler": "tcp://10.0.0.7:8786"}])
def test_wrong_arguments(arguments):
    with pytest.raises(ValueError, match=r"workers is .* and scheduler"):
        DaskEngine("/tmp", **arguments)


def workers_of(process):
    """The processes in which Dask runs tasks: the children of its nannies."""
    nannies = [child for child in process.children() if "distributed.cli.dask_worker" in child.cmdline()]
    return [worker for nanny in nannies for worker in nanny.children()]


@pytest.mark.command_line
@pytest.mark.usefixtures("small")
def test_a_killed_worker_loses_nothing(file, tmp_path, outputs, started):
    """It is one of three workers that the step starts. The cluster that other tests share has two."""
    before = {*psutil.Process().children(recursive=True)}
    killed = []

    def kill_one():
        while len(results(tmp_path / "scratch")) < 8:
            time.sleep(0.01)
        killed.append(workers_of(psutil.Process())[0])
        killed[0].kill()

    thread = threading.Thread(target=kill_one, daemon=True)
    thread.start()
    check(outputs, file("data.csv", csv_text()), 3)
    thread.join()
    assert not killed[0].is_running()
    assert started[0].started > 50
    assert not any((tmp_path / "scratch").iterdir())
    assert {*psutil.Process().children(recursive=True)} <= before


@pytest.mark.command_line
def test_errors_of_tasks(tmp_path):
    engine, scratch = DaskEngine(str(tmp_path), 1), str(tmp_path / "step")
    with engine.start(scratch) as tasks:
        found = tasks.run(int, ["1", "2", "x", "y"])
        assert [next(found), next(found)] == [1, 2]
        with pytest.raises(ValueError, match=r"invalid literal.*'x'"):
            next(found)
        with pytest.raises(OSError, match=r"several workers ended while they ran the same task.*memory"):
            [*tasks.run(os._exit, [1])]
        assert [*tasks.run(int, ["3"])] == [3]


PROGRAM = """
import sys
from types import SimpleNamespace
from kfp_distributed.components.prepare_data import read
from kfp_distributed.components.prepare_data.tables import csv_files, text_parts
from kfp_distributed.components.prepare_data.writing import write
from kfp_distributed.components.worker_pool.dask_engine import DaskEngine
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.prepare import prepare

csv_files.FIRST_BLOCK_BYTES, csv_files.BLOCK_BYTES, text_parts.STEP_BYTES = 2**12, 2**13, 2**12
read.CHUNK_BYTES, read.PIECE_BYTES, read.AHEAD_BYTES = 2**14, 2**13, 2**12
write.group_bytes = lambda files: 4000
source, out, scratch = sys.argv[1:]
splits = ("train", "validation", "test")
datasets = {split: SimpleNamespace(path=f"{out}/{split}", uri=f"{out}/{split}", metadata={}) for split in splits}
prepare(source, Options(shards=3), datasets, f"{out}/overview", engine=DaskEngine(scratch, 1))
"""


def results(scratch):
    return [path for path in scratch.glob("*/results/*") if not path.name.startswith(".")]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("most", "number", "method"), [(5, signal.SIGKILL, "fork"), (20, signal.SIGINT, "spawn")], ids=["kill", "interrupt"]
)
def test_a_killed_step_leaves_no_process_and_goes_on(file, tmp_path, outputs, started, most, number, method):
    """One of the steps starts its worker as Dask does by default."""
    source, scratch = file("data.csv", csv_text()), tmp_path / "scratch"
    here = outputs(source, 0)
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary"), METHOD_VARIABLE: method}
    step = psutil.Popen([sys.executable, "-c", PROGRAM, source, tmp_path / "killed", scratch], env=environment)
    family = set()
    while len(results(scratch)) < most:
        assert step.poll() is None
        family |= {*step.children(recursive=True)}
        time.sleep(0.01)
    step.send_signal(number)
    step.wait()
    assert family
    assert psutil.wait_procs(family, 120)[1] == []
    assert not any((tmp_path / "killed").glob("*/dataset.json"))
    assert not [*(tmp_path / "temporary").glob("prepare-data-workers-*")]
    complete = len(results(scratch))
    assert outputs(source, "shared")[1] == here[1]
    (tasks,) = started
    assert tasks.started + complete == tasks.count
    assert not any(scratch.iterdir())
