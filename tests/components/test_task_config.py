"""Steps that receive the TaskConfig of the task `train`: the compiled YAML, and a local run."""

import pytest
import yaml
from kfp import compiler, dsl

from kfp_distributed.components import Delivery, prepare_data, steps
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.storage import open_store
from kfp_distributed.trainers import train_specification

pytestmark = pytest.mark.takes(6)


def compiled(component, folder) -> dict:
    compiler.Compiler().compile(component, str(folder / "step.yaml"))
    return yaml.safe_load((folder / "step.yaml").read_text(encoding="utf-8"))["components"]["comp-train"]


@pytest.mark.parametrize("delivery", [Delivery.namespace(), Delivery.image("registry.example.com/steps:1")])
def test_without_task_config_the_yaml_has_no_field_that_old_backends_reject(tmp_path, delivery):
    component = compiled(steps(delivery).train, tmp_path)
    assert "taskConfigPassthroughs" not in component
    assert "TASK_CONFIG" not in str(component)
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        steps(delivery).train(task_config={})


@pytest.mark.parametrize("delivery", [Delivery.namespace(), Delivery.image("registry.example.com/steps:1")])
def test_with_task_config_all_settings_are_passed_and_only_the_environment_is_applied_to_the_step(tmp_path, delivery):
    component = compiled(steps(delivery, task_config=True).train, tmp_path)
    without = compiled(steps(delivery).train, tmp_path)
    assert component.pop("taskConfigPassthroughs") == [
        {"field": "RESOURCES"},
        {"field": "ENV", "applyToTask": True},
        {"field": "KUBERNETES_AFFINITY"},
        {"field": "KUBERNETES_TOLERATIONS"},
        {"field": "KUBERNETES_NODE_SELECTOR"},
        {"field": "KUBERNETES_VOLUMES"},
    ]
    parameter = component["inputDefinitions"]["parameters"].pop("task_config")
    assert (parameter["parameterType"], parameter["isOptional"]) == ("TASK_CONFIG", True)
    assert component == without


def save_variable(model_dir):
    import os
    from pathlib import Path

    Path(model_dir, "variable").write_text(os.environ["SET_ON_THE_TASK"])


def test_replicas_of_a_local_run_have_the_environment_of_the_task(tmp_path):
    train = steps(task_config=True).train

    @dsl.pipeline
    def settings_on_the_task():
        data = prepare_data(source="digits", shards=1)
        fitted = train(
            train_dataset=data.outputs["train_dataset"],
            train_specification=train_specification(save_variable),
            checkpoint_uri="s3://checkpoints",
        )
        fitted.set_env_variable("SET_ON_THE_TASK", "hello").set_cpu_limit("1").set_memory_limit("1Gi")

    with local_run(tmp_path) as run:
        settings_on_the_task()
    (model,) = run.artifacts.glob("*/train/model")
    assert open_store(str(model)).read("variable") == b"hello"
