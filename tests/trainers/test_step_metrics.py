"""The metrics of steps: which points are kept, and what of them is in the file, in lines and in TensorBoard's logs."""

import json
import math
import sys
import threading
from itertools import pairwise

import pytest

from kfp_distributed.storage import open_store
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest
from kfp_distributed.trainers import train_specification
from kfp_distributed.trainers.runtime.checkpoints import folder_uploads, gathered_metrics
from kfp_distributed.trainers.runtime.outputs import step_metrics
from kfp_distributed.trainers.runtime.outputs.metrics_file import read_model_metrics
from kfp_distributed.trainers.runtime.outputs.step_metrics import StepRecorder
from kfp_distributed.trainers.runtime.outputs.step_points import MAX_METRICS, MAX_POINTS, StepPoints
from kfp_distributed.trainers.sync import flush, record_epoch, record_step


def recorded(steps, points=None):
    points = points or StepPoints()
    for step in steps:
        points.add(step, {"loss": 1 / step})
    return points


@pytest.mark.parametrize("count", [1, 1999, 2000, 5000, 100_000])
def test_few_points_of_many_steps_are_kept_and_they_are_the_last_of_their_interval(count):
    rows = recorded(range(1, count + 1)).rows()
    assert count <= MAX_POINTS - 1 or MAX_POINTS / 2 - 1 <= len(rows) <= MAX_POINTS
    assert rows[-1] == {"step": count, "loss": 1 / count}
    gaps = {after["step"] - before["step"] for before, after in pairwise(rows[:-1])}
    assert len(gaps) <= 1


def test_a_rare_metric_keeps_all_points_beside_a_frequent_one():
    points = StepPoints()
    for step in range(1, 20_001):
        points.add(step, {"loss": 0.5} | ({"val_loss": 0.25} if step % 500 == 0 else {}))
    assert [row["step"] for row in points.rows() if "val_loss" in row] == list(range(500, 20_001, 500))


def test_what_is_kept_does_not_depend_on_interruptions():
    whole = recorded(range(1, 9001)).rows()
    first = recorded(range(1, 5000))
    first.add(4000, {"loss": 7.0})
    assert first.rows()[-1] == {"step": 4000, "loss": 7.0}
    resumed = recorded(range(4000, 9001), StepPoints(json.loads(json.dumps(first.rows()))))
    assert resumed.rows() == whole


def test_points_after_the_step_at_which_a_training_goes_on_are_removed():
    points = StepPoints()
    points.add(10, {"loss": 1.0})
    points.add(20, {"loss": 0.5, "val_loss": 0.6})
    points.add(15, {"loss": 0.75})
    assert points.rows() == [{"step": 10, "loss": 1.0}, {"step": 15, "loss": 0.75}]


@pytest.mark.parametrize("count", [25, 5003], ids=["all_points", "thinned_points"])
def test_a_score_before_the_training_removes_no_points(count):
    """The Trainer of transformers gives 0 as the number of the step until it has loaded the checkpoint."""
    before = recorded(range(1, count + 1)).rows()
    points = StepPoints(before)
    points.add(0, {"loss": 9.0, "val_loss": 8.0})
    points.add(0, {"val_loss": 7.0})
    assert [row for row in points.rows() if row["step"]] == before
    assert points.rows()[0]["val_loss"] == 7.0
    points.add(count + 1, {"loss": 0.5})
    assert points.rows()[-2:] == [before[-1], {"step": count + 1, "loss": 0.5}]


def test_a_training_that_begins_again_after_its_first_score_removes_the_points_of_the_one_before():
    points = recorded(range(1, 26))
    points.add(0, {"val_loss": 7.0})
    points.add(1, {"loss": 0.5})
    assert points.rows() == [{"step": 0, "val_loss": 7.0}, {"step": 1, "loss": 0.5}]


def test_the_number_of_metrics_is_bounded():
    points = StepPoints()
    for number in range(MAX_METRICS + 2):
        points.add(1, {f"metric_{number:03}": 0.0})
    assert len(points.rows()[0]) == MAX_METRICS + 1
    assert points.left_out == {"metric_100", "metric_101"}


@pytest.fixture
def file(tmp_path, monkeypatch):
    before = [*gathered_metrics.writers]
    gathered_metrics.writers.clear()
    monkeypatch.setattr(gathered_metrics, "printed", set())
    yield tmp_path / "training.json"
    gathered_metrics.writers[:] = before


def test_epochs_and_steps_are_kept_beside_each_other(file, monkeypatch, capsys):
    monkeypatch.setenv("KFP_DISTRIBUTED_REPLICA", "master-0")
    record_step(file, 1, 4, {"loss": 1.0})
    record_step(file, 2, 4, {"loss": 0.5})
    record_epoch(file, "master-0", 1, 2, {"val_loss": 0.75})
    record_step(file, 3, 4, {"loss": 0.25})
    assert flush()
    assert json.loads(file.read_text()) == {
        "replica": "master-0",
        "epochs": [{"epoch": 1, "val_loss": 0.75}],
        "steps": [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}, {"step": 3, "loss": 0.25}],
    }
    assert capsys.readouterr().out.splitlines() == ["step 1/4 loss=1.0000", "epoch 1/2 val_loss=0.7500"]
    assert read_model_metrics(file) == {"epoch": 1, "val_loss": 0.75, "step": 3, "loss": 0.25}


def test_the_file_is_written_and_a_line_printed_every_ten_seconds_and_after_the_last_step(file, capsys, monkeypatch):
    now = 100.0
    recorder = StepRecorder(file, lambda: now)
    gathered_metrics.writers.append(recorder.write)
    for step in range(1, 61):
        now += 0.5
        recorder.record(step, 60, {"loss": 1 / step})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["1/60", "21/60", "41/60", "60/60"]
    assert len(json.loads(file.read_text())["steps"]) == 60


@pytest.mark.parametrize("steps", [0, 1000, 1_000_000])
def test_a_long_training_that_ends_early_has_all_its_points(file, steps):
    for step in range(1, 1001):
        record_step(file, step, steps, {"loss": 1 / step})
    flush()
    assert len(json.loads(file.read_text())["steps"]) == 1000


def test_the_latest_value_of_each_metric_is_shown_also_of_one_that_is_recorded_rarely(file, monkeypatch, capsys):
    now, posted = 100.0, []
    monkeypatch.setattr(step_metrics, "report_progress", posted.append)
    recorder = StepRecorder(file, lambda: now)
    for step in range(1, 13):
        recorder.record(step, 0, {"loss": 1 / step})
        if step in (4, 5):  # Right after the loss of the same step, as the Trainer of transformers does.
            recorder.record(step, 0, {"val_loss": 2.0 / step})
        now += 2.0
    assert capsys.readouterr().out.splitlines() == [
        "step 1/0 loss=1.0000",
        "step 6/0 loss=0.1667 val_loss=0.4000",
        "step 11/0 loss=0.0909",
    ]
    # Each status replaces the one before.
    assert [{*progress.metrics} for progress in posted] == [{"loss"}, {"loss", "val_loss"}, {"loss", "val_loss"}]
    assert posted[-1].metrics == {"loss": 1 / 11, "val_loss": 0.4}


def test_a_metric_that_becomes_nan_is_named_once(file, capsys):
    for step, loss in enumerate([0.5, math.nan, math.nan, 0.5, math.inf], 1):
        record_step(file, step, 9, {"loss": loss})
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert warnings == ["warning: loss is nan in step 2", "warning: loss is inf in step 5"]


def test_the_numbers_of_epochs_and_steps_are_no_metrics(file, capsys):
    """A row with two numbers would be one of epochs and of steps, in the report, in MLflow and in the model."""
    file.write_text('{"epochs": [], "steps": [{"step": 1, "epoch": 0.01, "loss": 1.0}]}')
    record_step(file, 2, 100, {"loss": 0.5, "epoch": 0.02})
    record_epoch(file, "master-0", 1, 2, {"loss": 0.25, "epoch": 7, "step": 70})
    assert flush()
    content = json.loads(file.read_text())
    assert content["steps"] == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}]
    assert content["epochs"] == [{"epoch": 1, "loss": 0.25}]
    assert capsys.readouterr().out.splitlines() == ["step 2/100 loss=0.5000", "epoch 1/2 loss=0.2500"]
    content["epochs"][0]["step"] = 70  # As a program writes it that does not call record_epoch.
    file.write_text(json.dumps(content))
    assert read_model_metrics(file) == {"epoch": 1, "step": 2, "loss": 0.25}


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((1, 2, {"loss": "low"}), TypeError, "record_step: the metric 'loss' is 'low' (str)"),
        ((-1, 2, {}), ValueError, "step=-1"),
        ((1, -2, {}), ValueError, "steps=-2"),
        ((1, 2, {"loss": 0.5, "step": 7}), ValueError, "a metric has the name 'step' (with the value 7)"),
    ],
)
def test_what_is_no_step_is_refused_and_nothing_is_written(file, arguments, error, text):
    with pytest.raises(error) as caught:
        record_step(file, *arguments)
    assert text in str(caught.value)
    assert not file.exists()


def test_the_points_of_a_failed_program_are_stored(file, monkeypatch):
    """Its other files are not, because it may have been writing them."""
    sent, checkpoints = [], file.parent / "checkpoints"
    (metrics := file.parent / "metrics").mkdir()
    checkpoints.mkdir()
    monkeypatch.setattr(folder_uploads, "kept_folders", [])
    folder_uploads.keep(metrics, lambda snapshot, _: sent.append((snapshot.folder / "training.json").read_text()))
    folder_uploads.keep(checkpoints, lambda *_: sent.append("checkpoint"), is_complete=lambda *_: False)
    for step in (1, 2, 3):
        record_step(metrics / "training.json", step, 9, {"loss": 1.0})
    (checkpoints / "half").write_text("x")
    folder_uploads.flush(by_program=False)
    assert [row["step"] for row in json.loads(sent[-1])["steps"]] == [1, 2, 3]
    assert "checkpoint" not in sent


def test_a_thread_may_write_the_file_while_the_program_records(file):
    """A thread ends a replica: it stores the metrics and the complete checkpoint while the training continues."""
    recorder = StepRecorder(file)
    errors, is_over, before = [], threading.Event(), sys.getswitchinterval()

    def write():
        while not is_over.is_set():
            try:
                recorder.write()
            except Exception as error:  # noqa: BLE001 - of a thread, the test would not see it
                errors.append(error)
                return

    thread = threading.Thread(target=write)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for step in range(1, 1500):
            recorder.record(step, 0, {f"metric_{number}": 0.5 for number in range(5)})
    finally:
        sys.setswitchinterval(before)
        is_over.set()
        thread.join()
    assert errors == []
    recorder.write()
    assert len(json.loads(file.read_text())["steps"]) == 1499


@pytest.mark.parametrize("error", [RuntimeError("broken"), OSError("the disk is full")], ids=repr)
def test_metrics_that_cannot_be_written_cost_neither_a_checkpoint_nor_other_metrics(file, monkeypatch, capsys, error):
    def fail():
        raise error

    sent, checkpoints = [], file.parent / "checkpoints"
    checkpoints.mkdir()
    monkeypatch.setattr(folder_uploads, "kept_folders", [])
    folder_uploads.keep(checkpoints, lambda *_: sent.append("checkpoint"), is_complete=lambda *_: True)
    gathered_metrics.writers.append(fail)
    record_step(file, 1, 0, {"loss": 1.0})
    record_step(file, 2, 0, {"loss": 0.5})
    (checkpoints / "new").write_text("x")
    assert folder_uploads.flush(by_program=False)
    assert sent == ["checkpoint"]
    assert [row["step"] for row in json.loads(file.read_text())["steps"]] == [1, 2]
    assert capsys.readouterr().out.count("metrics not written: ") == 1


def test_points_that_could_not_be_written_are_written_later(file, monkeypatch):
    recorder = StepRecorder(file.parent / "missing" / "training.json")
    (file.parent / "missing").write_text("a file")
    recorder.record(1, 0, {"loss": 1.0})
    with pytest.raises(OSError, match="missing"):
        recorder.write()
    (file.parent / "missing").unlink()
    assert recorder.write()
    assert not recorder.write()


def record_until_it_is_good_enough(model_dir, metrics_dir, steps: int):
    from pathlib import Path

    from kfp_distributed.trainers.sync import record_step

    for step in range(1, 1001):
        record_step(Path(metrics_dir, "training.json"), step, steps, {"loss": 1 / step})
        if step == 50:
            break
    Path(model_dir, "weights").write_text("1")


@pytest.mark.parametrize("steps", [0, 1000], ids=["unknown_end", "early_end"])
def test_the_model_gets_the_metrics_of_the_last_step_of_a_training_that_stops_early(make_replicas, digits, steps):
    program = train_specification(record_until_it_is_good_enough)
    replicas = make_replicas(program, {"steps": steps}, {"worker": 1}, digits)
    replicas.start_all()
    assert replicas.wait("worker-0") == 0, replicas.text("worker-0")
    manifest = ModelManifest.from_json(open_store(replicas.job.model_uri).read(MODEL_MANIFEST))
    assert manifest.metrics == {"step": 50, "loss": 1 / 50}
    stored = json.loads(open_store(replicas.job.metrics_uri).read("training.json"))
    assert stored["steps"][-1] == {"step": 50, "loss": 1 / 50}


def test_threads_that_write_one_file_lose_neither_epochs_nor_steps(file):
    recorder = StepRecorder(file)
    before = sys.getswitchinterval()

    def record():
        for step in range(1, 201):
            recorder.record(step, 0, {"loss": 1.0})
            recorder.write()

    thread = threading.Thread(target=record)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for epoch in range(1, 201):
            record_epoch(file, "master-0", epoch, 200, {"loss": 1.0})
    finally:
        sys.setswitchinterval(before)
        thread.join()
    content = json.loads(file.read_text())
    assert [row["epoch"] for row in content["epochs"]] == list(range(1, 201))
    assert [row["step"] for row in content["steps"]] == list(range(1, 201))


def test_tensorboard_without_its_package_is_named_once(file, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("KFP_DISTRIBUTED_TENSORBOARD_DIR", str(tmp_path / "logs"))
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    for step in (1, 2):
        record_step(file, step, 9, {"loss": 1.0, "val_loss": 1.0})
    text = "no logs for TensorBoard: add tensorboardX to the packages of train_specification"
    assert capsys.readouterr().out.splitlines().count(text) == 1


def test_a_program_that_blocks_the_import_of_tensorflow_records_steps(file, monkeypatch, tmp_path):
    monkeypatch.setenv("KFP_DISTRIBUTED_TENSORBOARD_DIR", str(tmp_path / "other-logs"))
    for module in ("tensorflow", "tensorboardX"):
        monkeypatch.setitem(sys.modules, module, None)
    record_step(file, 1, 1, {"loss": 1.0})
    assert json.loads(file.read_text())["steps"] == [{"step": 1, "loss": 1.0}]


def test_tensorboard_gets_the_first_point_of_each_interval(file, monkeypatch, tmp_path):
    import tensorflow as tf

    monkeypatch.setenv("KFP_DISTRIBUTED_TENSORBOARD_DIR", str(tmp_path / "logs"))
    for step in range(1, 4001):
        record_step(file, step, 4000, {"val_loss": float(step)})
    (log,) = (tmp_path / "logs" / "validation").glob("*.v2")
    events = map(tf.compat.v1.Event.FromString, tf.data.TFRecordDataset(str(log)).as_numpy_iterator())
    points = [
        (event.step, value.tag, float(tf.make_ndarray(value.tensor)))
        for event in events
        for value in event.summary.value
    ]
    assert points == [(step, "loss", float(step)) for step in (*range(1, 2000), *range(2000, 4001, 2))]
