"""The component: its interface, and its place in a pipeline."""

import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from compiled import Run, run_step_command, step_command
from kfp import dsl
from prediction_models import linear_network, save_onnx

from kfp_distributed.components import predict, prepare_data, train
from kfp_distributed.components.predict.component import predict as function
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.pipelines.specs import write_specs

pytestmark = pytest.mark.takes(15)


def test_interface():
    spec = dsl.component(base_image="python:3.11")(function).component_spec
    assert {name: (port.type, port.optional) for name, port in spec.inputs.items()} == {
        "model": ("system.Model@0.0.1", True),
        "model_uri": ("String", True),
        "dataset": ("system.Dataset@0.0.1", True),
        "source": ("String", True),
        "key_columns": ("List[String]", True),
        "csv_format": ("Dict", True),
        "on_bad_row": ("String", True),
        "probabilities": ("Boolean", True),
        "distribution_specification": ("Dict", True),
    }
    outputs = {name: port.type for name, port in spec.outputs.items()}
    assert outputs == {"predictions": "system.Artifact@0.0.1", "rows": "Integer"}


@pytest.mark.command_line
def test_the_compiled_step_runs(tmp_path):
    write_specs(tmp_path)
    column = {"name": "x", "kind": "number", "dtype": "float32"}
    label = {"name": "y", "task": "regression"}
    model = save_onnx(tmp_path / "model", linear_network([0], 0), columns=(column,), label=label)
    (tmp_path / "rows.csv").write_text("x,id\n1,7\n2,8\n")
    run = Run(str(tmp_path))
    parameters = {"model_uri": str(model), "source": str(tmp_path / "rows.csv"), "key_columns": ["id"]}
    process = run_step_command(step_command("predict", run, parameters, {}, specs=tmp_path), tmp_path)
    assert process.returncode == 0, process.stdout[-4000:]
    assert "predicted 2 rows, all, in 1 file" in process.stdout
    assert json.loads(run.output_file("predict").read_text())["parameterValues"]["rows"] == 2


def test_a_pipeline_predicts_with_the_model_that_it_has_trained(tmp_path):
    @dsl.pipeline
    def trained_and_predicted(source: str):
        data = prepare_data(source=source, shards=1)
        training = train(
            train_dataset=data.outputs["train_dataset"],
            validation_dataset=data.outputs["validation_dataset"],
            train_specification={"trainer": "keras_classifier"},
            train_parameters={"epochs": 1},
            distribution_specification={},
        )
        predict(model=training.outputs["model"], dataset=data.outputs["test_dataset"], key_columns=["color", "label"])
        predict(model=training.outputs["model"], source=source, key_columns=["color", "label"])

    (tmp_path / "rows.csv").write_text("x,color,label\n" + "1,red,a\n2,blue,b\n" * 100)
    with local_run(tmp_path / "run", embedded_store=False) as run:
        trained_and_predicted(source=str(tmp_path / "rows.csv"))
    (folder,) = run.artifacts.glob("trained-and-predicted-*")
    counts, colors = [], []
    for task in ("predict", "predict-2"):
        table = pq.read_table([*(folder / task / "predictions").glob("*.parquet")])
        counts.append(table.num_rows)
        colors.append({(row["color"], row["label"], row["prediction"]) for row in table.to_pylist()})
    assert counts == [20, 200]
    assert colors[0] == colors[1]


ENDED = """
import os, signal, sys
from kfp import dsl
from kfp_distributed.components.predict import prediction
from kfp_distributed.components.predict.step import run_step

write_manifest = prediction.write_manifest

def cancel(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    write_manifest(*arguments)

prediction.write_manifest = cancel
run_step(
    predictions=dsl.Artifact(uri=sys.argv[3]), model=None, dataset=None, model_uri=sys.argv[1], source=sys.argv[2],
    key_columns=[], csv_format={}, on_bad_row="refuse", probabilities=False,
)
"""


def test_a_cancelled_step_leaves_nothing(tmp_path):
    """The signal comes when all rows are predicted, and only the manifest is missing."""
    column, label = {"name": "x", "kind": "number", "dtype": "float32"}, {"name": "y", "task": "regression"}
    model = save_onnx(tmp_path / "model", linear_network([0], 0), columns=(column,), label=label)
    (tmp_path / "rows.csv").write_text("x\n1\n2\n")
    (tmp_path / "outputs").mkdir()
    (tmp_path / "scratch").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "scratch")}
    argv = [
        sys.executable,
        "-c",
        ENDED,
        str(model),
        str(tmp_path / "rows.csv"),
        str(tmp_path / "outputs" / "predictions"),
    ]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert done.returncode == 128 + 15, done.stderr
    assert [*(tmp_path / "outputs").iterdir()] == []
    assert [*(tmp_path / "scratch").glob("predict-*")] == []
