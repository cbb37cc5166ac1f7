"""keras_classifier in this process, on a table with all kinds of columns."""

import json
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from raw_rows import assert_takes_raw_rows, validation_scores
from samples import CLASSES, COLUMNS, table

from kfp_distributed.storage import open_store
from kfp_distributed.trainers.runtime.checkpoints.stored_checkpoints import save_checkpoint
from kfp_distributed.trainers.runtime.job_description import JOB_VARIABLE, JobDescription
from kfp_distributed.trainers.runtime.monitoring.progress import parse_progress
from kfp_distributed.trainers.runtime.monitoring.sampling import current_usage

pytestmark = pytest.mark.takes(6)


@pytest.fixture
def folders(tmp_path, write_dataset, monkeypatch):
    for split, rows, seed in (("train", 301, 0), ("validation", 100, 1)):
        arrays, labels = table(rows, seed)
        write_dataset(tmp_path / split, COLUMNS, arrays, labels, CLASSES, [rows], split)
    folders = {f"{name}_dir": tmp_path / name for name in ("model", "checkpoint", "metrics", "tensorboard")}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    folders |= {f"{split}_dir": tmp_path / split for split in ("train", "validation")}
    return {name: str(folder) for name, folder in folders.items()}


def test_a_table_is_learned_resumed_and_saved_with_its_preprocessing(folders, tmp_path, capsys):
    import tensorflow as tf

    from kfp_distributed.trainers.keras_classifier import keras_classifier
    from kfp_distributed.trainers.programs.training_parameters import TrainingParameters

    rows_before = current_usage().rows
    options = {"batch_size": 16, "learning_rate": 0.01, "hidden_units": [16]}
    for epochs in (2, 5):
        keras_classifier(**folders, parameters=TrainingParameters(epochs, **options))
    # 19 steps of 16 rows in each epoch.
    assert current_usage().rows - rows_before == 5 * 304
    lines = [parse_progress(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line.done, line.total) for line in lines if line] == [(1, 2), (2, 2), (3, 5), (4, 5), (5, 5)]
    history = json.loads((tmp_path / "metrics" / "training.json").read_text())
    assert (history["replica"], [entry["epoch"] for entry in history["epochs"]]) == ("worker-0", [1, 2, 3, 4, 5])
    assert history["epochs"][-1]["val_accuracy"] > 0.9

    logged = {
        str(file.parent.relative_to(tmp_path)): [
            (event.step, value.tag, value.metadata.plugin_data.plugin_name, float(tf.make_ndarray(value.tensor)))
            for event in map(tf.compat.v1.Event.FromString, tf.data.TFRecordDataset(str(file)).as_numpy_iterator())
            for value in event.summary.value
        ]
        for file in Path(folders["tensorboard_dir"]).rglob("*.v2")
    }
    assert logged == {
        f"tensorboard/{run}": [
            (entry["epoch"], name, "scalars", pytest.approx(entry[prefix + name]))
            for entry in history["epochs"]
            for name in ("loss", "accuracy")
        ]
        for run, prefix in (("train", ""), ("validation", "val_"))
    }

    serve = tf.saved_model.load(folders["model_dir"]).signatures["features"]
    spec = serve.structured_input_signature[1]["features"]
    assert (spec.name, spec.dtype, spec.shape.as_list()) == ("features", tf.float32, [None, 9])
    (output,) = serve.structured_outputs.items()
    assert (output[0], output[1].dtype, output[1].shape.as_list()) == ("probabilities", tf.float32, [None, 3])
    row = [[500.0, 1.0, 20.0, *[11.0] * 6]]
    missing, mean = ([[value, 0.0, 0.0, *[10.0] * 6]] for value in (float("nan"), 500.0))
    answers = [serve(features=tf.constant(rows))["probabilities"].numpy() for rows in (row, missing, mean)]
    assert answers[0].argmax() == 1
    assert np.isfinite(answers[1]).all()
    np.testing.assert_allclose(answers[1], answers[2], err_msg="a missing number counts as the mean")
    model, by_matrix = Path(folders["model_dir"]), tmp_path / "by-matrix"
    assert_takes_raw_rows(model, (None,))
    # Both signatures get the same scores, which are those of the trainer.
    shutil.copytree(model, by_matrix)
    serve_matrix_by_default(by_matrix)
    scores = [validation_scores(folder, tmp_path / "validation") for folder in (model, by_matrix)]
    assert scores[0] == pytest.approx(scores[1])
    assert scores[0] == pytest.approx([history["epochs"][-1][name] for name in ("val_loss", "val_accuracy")], rel=1e-3)


def serve_matrix_by_default(folder):
    from tensorflow.core.protobuf import saved_model_pb2

    file = folder / "saved_model.pb"
    content = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    signatures = content.meta_graphs[0].signature_def
    signatures["serving_default"].CopyFrom(signatures["features"])
    file.write_bytes(content.SerializeToString())


def test_the_evaluator_scores_the_checkpoint_before_a_damaged_one_once(folders, tmp_path, monkeypatch, capsys):
    import tf_keras

    from kfp_distributed.trainers.epochs.position import Position
    from kfp_distributed.trainers.keras_training import evaluator
    from kfp_distributed.trainers.keras_training.keras_fit import compile_model, keep_checkpoints, read_position
    from kfp_distributed.trainers.keras_training.keras_model import build_model
    from kfp_distributed.trainers.runtime.data_loading.epoch_steps import read_manifest

    job = JobDescription("job", {}, {}, "", "", "", str(tmp_path / "stored"), "", "worker-0", (), 0)
    (tmp_path / "job.json").write_text(job.to_json())
    monkeypatch.setenv(JOB_VARIABLE, str(tmp_path / "job.json"))
    manifest, store = read_manifest(folders["train_dir"]), open_store(job.checkpoint_uri)
    model = build_model(manifest, [4])
    compile_model(model, tf_keras.optimizers.Adam(), 1, "classification")
    own = tmp_path / "own"
    save = keep_checkpoints(model, str(own), manifest)[1]

    def keep(epoch, step=0):
        save(Position(epoch, step))
        save_checkpoint(store, own)

    keep(1)
    keep(2)
    for file in Path(job.checkpoint_uri, "00000002").iterdir():
        file.write_bytes(b"")
    read: list[Position] = []

    def read_one(folder):
        read.append(read_position(folder))
        return read[-1]

    monkeypatch.setattr(evaluator, "read_position", read_one)
    arguments = folders["validation_dir"], Path(folders["checkpoint_dir"]), Path(folders["metrics_dir"]), 3
    thread = threading.Thread(target=evaluator.evaluate_checkpoints, args=(model, manifest, *arguments), daemon=True)
    thread.start()
    # Epoch 2 is damaged. The next one was saved within an epoch, so that it is not that of epoch 2.
    for number, position in enumerate([(1, 0), (2, 5)]):
        if number:
            keep(2, step=5)
        while len(read) <= number:
            assert thread.is_alive()
            time.sleep(0.1)
        assert read[number][:2] == position
    keep(3)
    thread.join(300)
    lines = [parse_progress(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.done for line in lines if line] == [1, 3]
