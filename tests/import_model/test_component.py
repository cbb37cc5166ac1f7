"""The component: its tasks are never cached, and its output is a base_model in the parameters of a training."""

import pytest
import yaml
from hugging_face_hub import safetensors
from kfp import dsl
from kfp.compiler import Compiler

from kfp_distributed.components import import_model, train
from kfp_distributed.pipelines.local_run import local_run

pytestmark = pytest.mark.takes(3)


@dsl.pipeline
def fine_tune(source: str, data: dsl.Input[dsl.Dataset]):
    imported = import_model(source=source, target="s3://models/tiny")
    train(
        train_dataset=data,
        train_specification={"trainer": "language_model"},
        train_parameters={"base_model": imported.output, "epochs": 1},
    )


def test_a_training_takes_the_output_of_a_task_that_is_never_cached(tmp_path):
    Compiler().compile(fine_tune, str(tmp_path / "pipeline.yaml"))
    tasks = yaml.safe_load((tmp_path / "pipeline.yaml").read_text(encoding="utf-8"))["root"]["dag"]["tasks"]
    assert tasks["import-model"]["cachingOptions"] == {}
    assert tasks["train"]["dependentTasks"] == ["import-model"]


def test_the_step_runs_in_a_local_run(tmp_path):
    (tmp_path / "source").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / "source" / name).write_text(safetensors("1") if name.endswith("safetensors") else "{}")
    target = f"file://{tmp_path}/models/tiny"
    with local_run(tmp_path / "run", embedded_store=False):
        assert import_model(source=str(tmp_path / "source"), target=target).output == target
    assert (tmp_path / "models" / "tiny" / "model.json").is_file()
