"""Reads compiled YAML in tests: the steps in it, the modules that each carries, and how KFP's launcher starts one."""

import json
import re
import shlex
import uuid
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


RUN = "0b5b0b1c-5a1c-4a6e-9d4c-6c0f2f7f3a11"
"""ID of the run that steps belong to unless a test names another."""


def output_uri(root: str, output: str, run_id: str = RUN, iteration: int = 0) -> str:
    """The URI that the driver of KFP 2.4 and later makes for an output "TASK/OUTPUT".

    Args:
        root: The pipeline root. Under a plain path, unlike under s3:// or minio://, a step needs no launcher to bring
            its inputs and outputs.
        output: "TASK/OUTPUT".
        run_id: ID of the run.
        iteration: Number of the iteration of a ParallelFor: the driver's UUID differs by it.
    """
    task, name = output.split("/")
    salt = uuid.uuid5(uuid.UUID(run_id), f"{task}/{iteration}")
    return f"{root}/v2/artifacts/digits/{run_id}/{task.replace('_', '-')}/{salt}/{name}"


def output_file(root: str, task: str, run_id: str = RUN) -> Path:
    """The file in which a step that has ended tells KFP its outputs."""
    return Path(output_uri(root, f"{task}/output_metadata.json", run_id))


def executor_input(
    component: Mapping, task: str, root: str, parameters: Mapping[str, object], inputs: Mapping[str, str], run_id: str
) -> dict:
    """What the backend hands to a step: the driver resolves, and the launcher adds the component's defaults.

    Placeholders are replaced by the driver, and only in arguments. No argument of a test has one that it knows, so
    nothing is replaced here; the defaults are handed over literally, as the launcher does.

    Raises:
        ValueError: A parameter or artifact is not the component's, or one that it needs is missing.
    """
    declared = component.get("inputDefinitions", {})
    unknown = {*parameters} - {*declared.get("parameters", {})} | {*inputs} - {*declared.get("artifacts", {})}
    defaults = {
        key: value["defaultValue"] for key, value in declared.get("parameters", {}).items() if "defaultValue" in value
    }
    required = {
        key
        for kind in declared.values()
        for key, value in kind.items()
        if not value.get("isOptional") and "defaultValue" not in value
    }
    missing = required - {*parameters, *inputs}
    if unknown or missing:
        raise ValueError(f"{task}: not inputs of the component: {sorted(unknown)}; missing: {sorted(missing)}")

    def artifact(uri: str, definition: Mapping) -> dict:
        return {
            "artifacts": [
                {"name": uri.rpartition("/")[2], "uri": uri, "type": definition["artifactType"], "metadata": {}}
            ]
        }

    outputs = component.get("outputDefinitions", {})
    return {
        "inputs": {
            "parameterValues": {**defaults, **parameters},
            "artifacts": {
                key: artifact(
                    path if path.startswith(("s3://", "/")) else output_uri(root, path, run_id),
                    declared["artifacts"][key],
                )
                for key, path in inputs.items()
            },
        },
        "outputs": {
            "artifacts": {
                key: artifact(output_uri(root, f"{task}/{key}", run_id), definition)
                for key, definition in outputs.get("artifacts", {}).items()
            },
            "parameters": {
                key: {"outputFile": output_uri(root, f"{task}/{key}", run_id)} for key in outputs.get("parameters", {})
            },
            "outputFile": str(output_file(root, task, run_id)),
        },
    }


def step_command(
    step: str,
    root: str,
    parameters: Mapping[str, object],
    inputs: Mapping[str, str],
    run_id: str = RUN,
    task: str = "",
) -> list[str]:
    """The container command and arguments of a compiled step, as KFP's launcher would start it.

    Args:
        step: The name of its YAML file.
        root: The pipeline root, see `output_uri`.
        parameters: Arguments that the task passes, by name.
        inputs: For each input artifact "TASK/OUTPUT", the output of an earlier task of the run, or an address of data.
        run_id: ID of the run.
        task: Name of the task; by default that of the step.
    """
    spec = yaml.safe_load((SPECS / f"{step}.yaml").read_text(encoding="utf-8"))
    name = step.replace("_", "-")
    values = executor_input(spec["components"][f"comp-{name}"], task or step, root, parameters, inputs, run_id)
    container = spec["deploymentSpec"]["executors"][f"exec-{name}"]["container"]
    arguments = [json.dumps(values) if part == "{{$}}" else part for part in container["args"]]
    return [*container["command"], *arguments]


def whole_job(
    root: str, bucket: str = "checkpoints", export_to: str = "models", image: str = "", run_id: str = RUN
) -> dict[str, list[str]]:
    """The commands of the four steps, in order, for a small training on digits by one process.

    Args:
        root: As for `step_command`.
        bucket: For checkpoints.
        export_to: Bucket for the exported model.
        image: Of the replicas, where they are pods.
        run_id: ID of the run.
    """
    return {
        "prepare_data": step_command("prepare_data", root, {"source": "digits", "shards": 3}, {}, run_id),
        "train": step_command(
            "train",
            root,
            {
                "train_specification": {"trainer": "keras_classifier", **({"image": image} if image else {})},
                "train_parameters": {"epochs": "8.0"},
                "distribution_specification": {"distribution_type": "Job"},
                "checkpoint_uri": f"s3://{bucket}/checkpoints",
            },
            {
                "train_dataset": "prepare_data/train_dataset",
                "validation_dataset": "prepare_data/validation_dataset",
            },
            run_id,
        ),
        "evaluate": step_command(
            "evaluate", root, {}, {"model": "train/model", "dataset": "prepare_data/test_dataset"}, run_id
        ),
        "export_model": step_command(
            "export_model", root, {"model_name": "digits", "bucket": export_to}, {"model": "train/model"}, run_id
        ),
    }
