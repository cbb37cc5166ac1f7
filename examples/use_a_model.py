"""Ask a model: from Python, by HTTP, and for every row of a table in a pipeline."""

import json
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from kfp import dsl

from kfp_distributed.components import predict


def ask_saved_model(folder: str) -> Any:  # noqa: ANN401
    """Return the probabilities of a SavedModel for two rows."""
    # --8<-- [start:saved-model]
    import tensorflow as tf

    serve = tf.saved_model.load(folder).signatures["serving_default"]
    answers = serve(size=tf.constant([1.5, float("nan")]), colour=tf.constant(["red", ""]))
    probabilities = answers["probabilities"].numpy()
    # --8<-- [end:saved-model]
    return probabilities  # noqa: RET504  (the page shows the lines above)


def ask_onnx_model(folder: str) -> Any:  # noqa: ANN401
    """Return the probabilities of an ONNX model for two rows."""
    # --8<-- [start:onnx]
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(f"{folder}/model.onnx")
    rows = {
        "size": np.array([[1.5], [np.nan]], np.float32),
        "colour": np.array([["red"], [""]], object),
    }
    (probabilities,) = session.run(["probabilities"], rows)
    # --8<-- [end:onnx]
    return probabilities


def class_names(folder: str) -> list[str]:
    """Return the classes in the order of the probabilities."""
    # --8<-- [start:classes]
    manifest = json.loads(Path(folder, "model.json").read_text())
    classes = manifest["label"]["classes"]
    # --8<-- [end:classes]
    return classes  # noqa: RET504  (the page shows the lines above)


def ask_server(server: str) -> Any:  # noqa: ANN401
    """Return the probabilities that a server such as http://localhost:8501 answers for two rows."""
    # --8<-- [start:http]
    rows = [{"size": 1.5, "colour": "red"}, {"size": float("nan"), "colour": ""}]
    request = Request(
        f"{server}/v1/models/flowers:predict",
        json.dumps({"instances": rows}).encode(),
        {"Content-Type": "application/json"},
    )
    with urlopen(request) as response:
        answers = json.load(response)
    probabilities = answers["predictions"]
    # --8<-- [end:http]
    return probabilities  # noqa: RET504  (the page shows the lines above)


@dsl.pipeline
def predict_new_flowers() -> None:
    """Predict the rows of a table with an exported model."""
    # --8<-- [start:predict]
    predict(
        model_uri="s3://models/flowers/3",
        source="s3://data/new-flowers.parquet",
        key_columns=["id"],
        probabilities=True,
    )
    # --8<-- [end:predict]


def read_predictions(folder: str) -> Any:  # noqa: ANN401
    """Return the table of the predictions and the classes in the order of `probabilities`."""
    # --8<-- [start:read]
    import pyarrow.parquet as pq

    manifest = json.loads(Path(folder, "predictions.json").read_text())
    table = pq.read_table([Path(folder, part["path"]) for part in manifest["parts"]])
    # --8<-- [end:read]
    return table, manifest["classes"]
