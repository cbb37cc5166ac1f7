"""Models that are exported, or not, by a metric of their task: `evaluate` and the condition of `train_and_export`."""

import hashlib

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kfp import dsl

from kfp_distributed.components import evaluate, export_model
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.storage.dataset import DATASET_MANIFEST, Column, DatasetManifest, Label, Shard
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest

# The inputs are the model's output. It is 1 too high for the second row, and takes the third one for the other class.
INPUTS = {
    "regression": np.array([[1.0], [3.0], [3.0], [4.0]], np.float32),
    "classification": np.array([[0.9, 0.1], [0.1, 0.9], [0.6, 0.4], [0.2, 0.8]], np.float32),
}
LABELS = {
    "regression": (Label("label", (), "regression", 2.5, 1.0), np.array([1.0, 2.0, 3.0, 4.0])),
    "classification": (Label("label", ("no", "yes")), np.array([0, 1, 1, 1], np.int32)),
}


@dsl.pipeline
def export_by_threshold(is_good_enough: bool, model: dsl.Input[dsl.Model]):
    with dsl.If(is_good_enough == True):  # noqa: E712
        export_model(model=model, model_name="model", bucket="models")


@dsl.pipeline
def score_and_export(model: str, dataset: str, metric: str = "", bound: float = 0.9) -> float:
    """Score a model that exists, and export it as `train_and_export` does."""
    stored = dsl.importer(artifact_uri=model, artifact_class=dsl.Model)
    rows = dsl.importer(artifact_uri=dataset, artifact_class=dsl.Dataset)
    scored = evaluate(model=stored.output, dataset=rows.output, metric=metric, bound=bound)
    export_by_threshold(is_good_enough=scored.outputs["is_good_enough"], model=stored.output)
    return scored.outputs["score"]


def write_dataset(folder, task):
    folder.mkdir()
    inputs, (label, labels) = INPUTS[task], LABELS[task]
    columns = [Column(f"input_{index}", "number", "float32") for index in range(inputs.shape[1])]
    table = pa.table([*inputs.T, labels], names=[*(column.name for column in columns), label.name])
    pq.write_table(table, folder / "part.parquet")
    data = (folder / "part.parquet").read_bytes()
    shards = (Shard("part.parquet", len(labels), len(data), hashlib.sha256(data).hexdigest()),)
    counts = tuple(np.bincount(labels).tolist()) if label.classes else ()
    manifest = DatasetManifest("test", tuple(columns), label, shards, counts, 0, "made up")
    (folder / DATASET_MANIFEST).write_text(manifest.to_json())


def write_model(folder, width):
    """Write a model that returns its inputs."""
    tensors = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, width])
        for name in ("features", "output")
    ]
    nodes = [onnx.helper.make_node("Identity", ["features"], ["output"])]
    graph = onnx.helper.make_graph(nodes, "identity", tensors[:1], tensors[1:])
    opsets = [onnx.helper.make_opsetid("", 17)]
    folder.mkdir()
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), str(folder / "model.onnx"))
    (folder / MODEL_MANIFEST).write_text(ModelManifest("onnx", describe_folder(folder)).to_json())


@pytest.mark.takes(19)
@pytest.mark.parametrize(
    ("task", "threshold", "score", "is_exported"),
    [
        ("classification", {"bound": 0.7}, 0.75, True),
        ("classification", {}, 0.75, False),
        ("classification", {"metric": "recall_no", "bound": 1.0}, 1.0, True),
        ("classification", {"metric": "loss", "bound": 0.3}, -np.log([0.9, 0.9, 0.4, 0.8]).mean(), False),
        ("regression", {"bound": 0.75}, 0.8, True),
        ("regression", {}, 0.8, False),
        ("regression", {"metric": "mae", "bound": 0.25}, 0.25, True),
        ("regression", {"metric": "rmse", "bound": 0.25}, 0.5, False),
    ],
)
def test_a_model_is_exported_if_its_metric_reaches_the_bound(tmp_path, task, threshold, score, is_exported):
    write_dataset(tmp_path / "dataset", task)
    write_model(tmp_path / "model", INPUTS[task].shape[1])
    with local_run(tmp_path / "run") as run:
        finished = score_and_export(model=str(tmp_path / "model"), dataset=str(tmp_path / "dataset"), **threshold)
    assert finished.output == pytest.approx(score, rel=1e-6)
    assert (run.object_store / "models" / "model" / "1" / "model.json").exists() == is_exported


def test_an_unknown_metric_fails_the_step(tmp_path, capsys):
    write_dataset(tmp_path / "dataset", "regression")
    write_model(tmp_path / "model", 1)
    with local_run(tmp_path / "run"), pytest.raises(RuntimeError, match="evaluate"):
        score_and_export(model=str(tmp_path / "model"), dataset=str(tmp_path / "dataset"), metric="accuracy")
    assert "metric 'accuracy' is not a metric of the task 'regression'" in capsys.readouterr().out
