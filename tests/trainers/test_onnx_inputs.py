"""The inputs of an ONNX model of the PyTorch trainers, of networks that are not trained."""

import os
import subprocess

import numpy as np
import onnxruntime
import pytest
from environments import trainer_python
from forked_replicas import forked
from onnx import TensorProto, helper

from kfp_distributed.library.archive import ARCHIVE_KEY, make_archive
from kfp_distributed.library.content import REPLICA_PACKAGES, read_library
from kfp_distributed.storage.dataset import Column, DatasetManifest, Label, log_values
from kfp_distributed.trainers.onnx_inputs import can_be_inputs, with_column_inputs

COLUMNS = [
    Column("unit price", "number", "float32"),
    Column("Größe", "category", "int32", vocabulary=("klein", "groß")),
    Column("features", "tensor", "float32", (2, 2)),
    Column("network/weights", "number", "float32", source_type="date"),
    Column("self", "category", "int32"),
]


def network(width):
    """A model with weights called as the columns might be, that returns what it gets."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width]) for name in ("features", "rows")]
    weights = helper.make_tensor("weights", TensorProto.FLOAT, (width, width), np.eye(width).reshape(-1))
    node = helper.make_node("MatMul", ["features", "weights"], ["rows"])
    graph = helper.make_graph([node], "network", ends[:1], ends[1:], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)


@pytest.mark.parametrize("has_unknown", [True, False])
def test_the_inputs_are_named_like_the_columns_and_joined_to_the_matrix(has_unknown):
    model = with_column_inputs(network(8), COLUMNS, has_unknown)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    assert [(tensor.name, tensor.type, tensor.shape) for tensor in session.get_inputs()] == [
        ("unit price", "tensor(float)", ["n", 1]),
        ("Größe", "tensor(string)", ["n", 1]),
        ("features", "tensor(float)", ["n", 2, 2]),
        ("network/weights", "tensor(float)", ["n", 1]),
        ("self", "tensor(string)", ["n", 1]),
    ]
    rows = {
        "unit price": np.array([[1.5], [2], [3]], np.float32),
        "Größe": np.array([["groß"], [""], ["riesig"]], object),
        "features": np.arange(12, dtype=np.float32).reshape(3, 2, 2),
        "network/weights": np.array([[7], [8], [9]], np.float32),
        "self": np.array([[""], ["a"], [""]], object),
    }
    (matrix,) = session.run(["rows"], rows)
    expected = [[1.5, 2, 0, 1, 2, 3, 7, 0], [2, 0, 4, 5, 6, 7, 8, 1], [3, 3, 8, 9, 10, 11, 9, 0]]
    assert matrix.tolist() == (expected if has_unknown else np.where(MASK, 0, expected).tolist())


MASK = np.zeros((3, 8), bool)
"""The unknown values of the rows."""
MASK[2, 1] = MASK[1, 7] = True


@pytest.mark.parametrize(
    ("name", "expected"), [("probabilities", False), ("", False), ("features", True), ("prediction", True)]
)
def test_an_input_cannot_have_the_name_of_the_output(name, expected):
    assert can_be_inputs([COLUMNS[0], Column(name, "number", "float32")], "probabilities") is expected


EXPORT = """
import sys
from pathlib import Path
import torch
from kfp_distributed.storage.dataset import DatasetManifest
from kfp_distributed.trainers.torch_training.torch_network import Network, export_onnx
manifest = DatasetManifest.from_json(sys.argv[1])
network = Network(manifest, [8])
export_onnx(network, manifest, Path("model.onnx"))
torch.onnx.export(torch.nn.Sequential(network, torch.nn.Softmax(1)), torch.tensor([[2.0, 1.0]]), "network.onnx")
"""


LOGARITHMS = """
import sys
from pathlib import Path
import torch
from kfp_distributed.storage.dataset import DatasetManifest
from kfp_distributed.trainers.torch_training.torch_network import Network, export_onnx
manifest = DatasetManifest.from_json(sys.argv[1])
network = Network(manifest, [])
network.layers[-1].weight.data, network.layers[-1].bias.data = torch.tensor([[1.0, 0.0]]), torch.zeros(1)
export_onnx(network, manifest, Path("model.onnx"))
"""


def test_logarithms_are_scaled(tmp_path):
    amount = Column("amount", "number", "float32", mean=1e6, std=1e9, fill=2.0, log_unit=0.5, log_mean=7.0, log_std=8.0)
    label = Label("price", (), "regression", 5.0, 3.0)
    manifest = DatasetManifest("train", (amount, Column("x", "number", "float32")), label, (), (), 0, "made up")
    (tmp_path / ARCHIVE_KEY).write_bytes(make_archive(read_library(REPLICA_PACKAGES)))
    argv = forked(trainer_python("pytorch"), "-c", LOGARITHMS, manifest.to_json())
    environment = {**os.environ, "PYTHONPATH": ARCHIVE_KEY}
    subprocess.run(argv, env=environment, cwd=tmp_path, check=True, capture_output=True)
    amounts = np.array([[0], [1e-6], [3], [-40], [1e30], [3.4e38], [-3.4e38], [np.nan]], np.float32)
    model = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (answers,) = model.run(None, {"amount": amounts, "x": np.zeros_like(amounts)})
    known = np.nan_to_num(amounts.astype(np.float64), nan=2)
    logarithms = np.sign(known) * log_values(np.minimum(abs(known) / 0.5, np.finfo(np.float32).max), 1)
    np.testing.assert_allclose((answers - 5) / 3, (logarithms - 7) / 8, rtol=1e-5, atol=1e-7)


def test_a_column_called_like_the_output_leaves_the_matrix_in_which_no_index_is_out_of_range(tmp_path):
    columns = (
        Column("probabilities", "category", "int32", vocabulary=("low", "high")),
        Column("size", "number", "float32"),
    )
    manifest = DatasetManifest("train", columns, Label("kind", ("a", "b")), (), (0, 0), 0, "made up")
    (tmp_path / ARCHIVE_KEY).write_bytes(make_archive(read_library(REPLICA_PACKAGES)))
    argv = forked(trainer_python("pytorch"), "-c", EXPORT, manifest.to_json())
    environment = {**os.environ, "PYTHONPATH": ARCHIVE_KEY}
    subprocess.run(argv, env=environment, cwd=tmp_path, check=True, capture_output=True)
    model, plain = (onnxruntime.InferenceSession(tmp_path / f"{name}.onnx") for name in ("model", "network"))
    (tensor,) = model.get_inputs()
    assert (tensor.name, tensor.type, tensor.shape) == ("features", "tensor(float)", ["n", 2])
    rows = np.array([[index, 1] for index in (2, 3, 4, np.nan, -1, np.inf)], np.float32)
    (answers,) = model.run(None, {"features": rows})
    (expected,) = plain.run(None, {plain.get_inputs()[0].name: rows[:1]})
    np.testing.assert_allclose(answers[:1], expected, rtol=1e-5)
    np.testing.assert_array_equal(answers[2:], np.tile(answers[1], (4, 1)))
    assert abs(answers[0] - answers[1]).max() > 1e-4
