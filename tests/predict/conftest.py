"""Models of tables, and the step without a pipeline."""

import json
import math
from dataclasses import asdict

import pyarrow.parquet as pq
import pytest
from kfp import dsl
from prediction_models import linear_network, manifest_of, save_onnx

from kfp_distributed.components.predict.step import run_step
from kfp_distributed.components.prepare_data.step import run_step as prepare_step
from kfp_distributed.storage.dataset import mean_and_std
from kfp_distributed.trainers.onnx_inputs import with_column_inputs

DEFAULTS = {
    "model": None,
    "model_uri": "",
    "dataset": None,
    "source": "",
    "key_columns": [],
    "csv_format": {},
    "on_bad_row": "refuse",
    "probabilities": False,
}
PREPARED = {
    "label_column": "label",
    "task": "auto",
    "split": {"validation_fraction": 0, "test_fraction": 0},
    "shards": 2,
    "columns": {},
    "drop_columns": [],
    "missing": "auto",
    "on_bad_row": "refuse",
    "csv_format": {},
    "image_size": "",
}


class Output:
    """The folder that the step has written."""

    def __init__(self, folder, rows, metadata):
        self.folder, self.rows, self.metadata = folder, rows, metadata

    @property
    def manifest(self):
        return json.loads((self.folder / "predictions.json").read_text())

    def table(self):
        return pq.read_table([self.folder / part["path"] for part in self.manifest["parts"]])


@pytest.fixture
def predicted(tmp_path):
    """Run the step. A model and a dataset are folders."""

    def run(**parameters):
        parameters = {**DEFAULTS, **parameters}
        for name, kind in (("model", dsl.Model), ("dataset", dsl.Dataset)):
            parameters[name] = parameters[name] and kind(uri=str(parameters[name]))
        artifact = dsl.Artifact(uri=str(tmp_path / "predictions"))
        (rows,) = run_step(predictions=artifact, **parameters)
        return Output(tmp_path / "predictions", rows, artifact.metadata)

    return run


@pytest.fixture
def refused(predicted, tmp_path):
    """Run the step, which fails. Return the last lines, after a check that it leaves nothing."""

    def run(**parameters):
        with pytest.raises(SystemExit) as error:
            predicted(**parameters)
        assert not (tmp_path / "predictions").exists()
        assert [*tmp_path.glob(".predict-*")] == []
        return str(error.value).lstrip("\n")

    return run


@pytest.fixture
def prepared(tmp_path):
    """Prepare a source. Return the folder of its training dataset, which has all rows."""

    def run(source, name="data", **parameters):
        outputs = {
            f"{split}_dataset": dsl.Dataset(uri=str(tmp_path / name / split))
            for split in ("train", "validation", "test")
        }
        overview = dsl.HTML(uri=str(tmp_path / name / "overview.html"))
        prepare_step(**outputs, overview=overview, source=str(source), **{**PREPARED, **parameters})
        return tmp_path / name / "train"

    return run


@pytest.fixture
def model_of(tmp_path):
    """Save a model for the columns of a dataset. Return its folder."""

    def save(dataset, name="model", *, by_column=True, has_manifest=True):
        data = manifest_of(dataset)
        gaps = [gap for column in data.columns for gap in [column.fill or 0] * math.prod(column.shape)]
        network = linear_network(gaps, len(data.label.classes), *mean_and_std(data))
        if by_column:
            network = with_column_inputs(network, data.columns, has_unknown=False)
        columns = {"columns": tuple(map(asdict, data.columns)), "label": asdict(data.label)} if has_manifest else {}
        return save_onnx(tmp_path / name, network, **columns)

    return save
