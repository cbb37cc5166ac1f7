"""Reads compiled YAML in tests: the steps in it, the modules that each carries, and how KFP's launcher starts one."""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import yaml

from kfp_distributed.components.packaging import unpack

SPECS = Path(__file__).parent.parent / "component_specs"
STEPS = ("prepare_data", "train", "evaluate", "export_model")
_ARCHIVE = re.compile(r"_archive='([^']*)'")


def executors(file: Path) -> dict[str, dict]:
    """The container of each step of a compiled file, by the step's name."""
    spec = yaml.safe_load(file.read_text(encoding="utf-8"))
    return {
        name.removeprefix("exec-"): executor["container"]
        for name, executor in spec["deploymentSpec"]["executors"].items()
    }


def carried_modules(container: dict) -> dict[str, str]:
    """Source by path of the modules that a step's container command carries; empty if it carries none."""
    found = _ARCHIVE.search(container["command"][-1])
    return unpack(found[1]) if found else {}


def normalised(file: Path) -> dict:
    """A compiled file with each archive unpacked, since two builds of bzip2 might pack the same sources differently."""
    spec = yaml.safe_load(file.read_text(encoding="utf-8"))
    for executor in spec["deploymentSpec"]["executors"].values():
        command = executor["container"]["command"]
        modules = carried_modules(executor["container"])
        command[-1] = (_ARCHIVE.sub("", command[-1]), modules)
    return spec


def packages(step: str) -> list[str]:
    """What the step's own command has pip install, kfp itself left out."""
    script = executors(SPECS / f"{step}.yaml")[step.replace("_", "-")]["command"][2]
    words = shlex.split(script[script.index("python3 -m pip") : script.index('"$0"')].replace("&&", " "))
    found = [word for word in words if not word.startswith("--") and any(sign in word for sign in "=<>")]
    return [word for word in found if not word.startswith(("kfp", "typing-extensions"))]


def step_command(step: str, root: str, parameters: Mapping[str, object], inputs: Mapping[str, str]) -> list[str]:
    """The container command and arguments of a compiled step, with the executor input that KFP's launcher would give.

    Args:
        step: The name of its YAML file.
        root: Folder that each step gets a folder in, for its outputs.
        parameters: Input parameters by name.
        inputs: For each input artifact "STEP/OUTPUT", the output of an earlier step of the same root.
    """
    spec = yaml.safe_load((SPECS / f"{step}.yaml").read_text(encoding="utf-8"))
    name = step.replace("_", "-")
    component = spec["components"][f"comp-{name}"]
    outputs = component.get("outputDefinitions", {})

    def artifact(path: str, definition: dict) -> dict:
        name = path.split("/")[1]
        return {
            "artifacts": [{"name": name, "uri": f"{root}/{path}", "type": definition["artifactType"], "metadata": {}}]
        }

    executor_input = {
        "inputs": {
            "parameterValues": dict(parameters),
            "artifacts": {
                key: artifact(path, component["inputDefinitions"]["artifacts"][key]) for key, path in inputs.items()
            },
        },
        "outputs": {
            "artifacts": {
                key: artifact(f"{step}/{key}", definition) for key, definition in outputs.get("artifacts", {}).items()
            },
            "parameters": {key: {"outputFile": f"{root}/{step}/{key}"} for key in outputs.get("parameters", {})},
            "outputFile": f"{root}/{step}/executor_output.json",
        },
    }
    container = spec["deploymentSpec"]["executors"][f"exec-{name}"]["container"]
    arguments = [json.dumps(executor_input) if part == "{{$}}" else part for part in container["args"]]
    return [*container["command"], *arguments]


def whole_job(
    root: str, bucket: str = "checkpoints", export_to: str = "models", image: str = ""
) -> dict[str, list[str]]:
    """The commands of the four steps, in order, for a small training on digits by one process.

    Args:
        root: As for `step_command`.
        bucket: For checkpoints.
        export_to: Bucket for the exported model.
        image: Of the replicas, where they are pods.
    """
    run = {"run_id": "run-1", "task_name": "train", "task_id": "1"}
    return {
        "prepare_data": step_command("prepare_data", root, {"source": "digits", "shards": 3}, {}),
        "train": step_command(
            "train",
            root,
            {
                "train_specification": {"trainer": "keras_classifier", **({"image": image} if image else {})},
                "train_parameters": {"epochs": "8.0"},
                "distribution_specification": {"distribution_type": "Job"},
                "checkpoint_uri": f"s3://{bucket}/checkpoints",
                **run,
            },
            {
                "train_dataset": "prepare_data/train_dataset",
                "validation_dataset": "prepare_data/validation_dataset",
            },
        ),
        "evaluate": step_command(
            "evaluate", root, {}, {"model": "train/model", "dataset": "prepare_data/test_dataset"}
        ),
        "export_model": step_command(
            "export_model",
            root,
            {"model_name": "digits", "bucket": export_to, "source_run": "run-1"},
            {"model": "train/model"},
        ),
    }
