"""Functions of examples/ learn from a table in which one row in ten lacks a value, and answer such rows."""

import numpy as np
import pytest
from environments import trainer_python
from mirrored_classifier import mirrored_classifier
from partitioned_embedding import partitioned_embedding
from samples import CLASSES, COLUMNS, table
from two_stage_classifier import two_stage_classifier

from kfp_distributed.components.evaluate.model_function import load_model_function
from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.storage.dataset import DatasetManifest, read_batches
from kfp_distributed.trainers import train_specification

pytestmark = pytest.mark.takes(20)


@pytest.mark.parametrize(
    ("function", "parameters", "distribution"),
    [
        (mirrored_classifier, {"learning_rate": 0.02, "batch_size": 100}, {}),
        (
            partitioned_embedding,
            {"column": "shop", "table_rows": 64},
            {"distribution_type": "TF", "number_of_workers": 1},
        ),
        (two_stage_classifier, {"learning_rate": 0.01}, {"distribution_type": "PyTorch", "number_of_workers": 1}),
    ],
)
def test_the_examples_learn_from_rows_with_missing_values(
    write_dataset, tmp_path, monkeypatch, function, parameters, distribution
):
    if function is two_stage_classifier:
        monkeypatch.setenv("KFP_DISTRIBUTED_PYTORCH_PYTHON", trainer_python("pytorch"))
    arrays, labels = table(600, 0)
    manifest: DatasetManifest = write_dataset(tmp_path / "train", COLUMNS, arrays, labels, CLASSES, [600])
    request = Request(
        train_uri=str(tmp_path / "train"),
        model_uri=str(tmp_path / "model"),
        train_specification=train_specification(function),
        train_parameters={"epochs": 10, **parameters},
        distribution_specification=distribution,
        identity=(str(tmp_path),),
    )
    launch(request, LocalRunner(), lambda line: None)
    ((inputs, classes),) = read_batches(tmp_path / "train", manifest)
    incomplete = np.isnan(inputs).any(axis=1)
    assert incomplete.sum() > 30
    answers = load_model_function(tmp_path / "model", manifest.columns, "probabilities")(inputs[incomplete])
    # A model whose weights are NaN may answer the same class for each row.
    assert (answers.argmax(axis=1) == classes[incomplete]).mean() > 0.6
