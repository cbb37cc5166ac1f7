"""Models of tables as ONNX graphs that are written by hand."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from kfp_distributed.storage.dataset import DATASET_MANIFEST, DatasetManifest
from kfp_distributed.storage.files import describe_folder
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest


def manifest_of(dataset):
    return DatasetManifest.from_json((dataset / DATASET_MANIFEST).read_text())


def save_onnx(folder, graph_model, **manifest):
    folder.mkdir(parents=True)
    onnx.save(graph_model, str(folder / "model.onnx"))
    manifest = {"job": "train-1", **manifest}
    (folder / MODEL_MANIFEST).write_text(ModelManifest("onnx", describe_folder(folder), **manifest).to_json())
    return folder


def linear_network(gaps, classes, means=0.0, scales=1.0, seed=0):
    """A graph of a matrix, with a number for a gap of each column: a classifier, or for 0 classes a regression."""
    rows = len(gaps)
    generator = np.random.default_rng(seed)
    kernel = generator.normal(0, 0.3, (rows, classes or 1)).astype(np.float32)
    nodes = [
        helper.make_node("IsNaN", ["features"], ["is_gap"]),
        helper.make_node("Where", ["is_gap", "gap", "features"], ["filled"]),
        helper.make_node("Sub", ["filled", "means"], ["centered"]),
        helper.make_node("Div", ["centered", "scales"], ["scaled"]),
        helper.make_node("MatMul", ["scaled", "kernel"], ["sums"]),
    ]
    output = "probabilities" if classes else "prediction"
    nodes.append(helper.make_node("Softmax" if classes else "Identity", ["sums"], [output]))
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", rows])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["n", classes or 1])],
        [
            numpy_helper.from_array(kernel, "kernel"),
            numpy_helper.from_array(np.array(gaps, np.float32), "gap"),
            numpy_helper.from_array(np.array(means, np.float32), "means"),
            numpy_helper.from_array(np.array(scales, np.float32), "scales"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
