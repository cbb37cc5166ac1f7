"""Reads compiled YAML in tests: the steps in it, what they install, and how KFP's launcher starts one."""

import ast
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

SPECS = Path(__file__).parent.parent / "component_specs"
STEPS = ("prepare_data", "train", "evaluate", "export_model")


def executors(file: Path) -> dict[str, dict]:
    """The container of each step of a compiled file, by the step's name."""
    spec = yaml.safe_load(file.read_text(encoding="utf-8"))
    return {
        name.removeprefix("exec-"): executor["container"]
        for name, executor in spec["deploymentSpec"]["executors"].items()
    }


def installed_packages(container: Mapping) -> list[str]:
    """The requirements that a step's program has pip install, kfp itself left out; none where there is an image."""
    (call,) = re.findall(r"^  start(\(.*\))$", container["command"][-1], re.MULTILINE)
    arguments = ast.literal_eval(call.replace(")", ",)"))
    return list(arguments[2:])


@dataclass(frozen=True)
class Run:
    """A pipeline run on a backend.

    Attributes:
        root: The pipeline root. Under a plain path, unlike under s3:// or minio://, a step needs no launcher to bring
            its inputs and outputs.
        run_id: Its ID.
        iteration: Number of the ParallelFor iteration that its steps belong to.
        has_uuids: Whether the driver gives each task a folder of its own, as since KFP 2.4.
    """

    root: str
    run_id: str = "0b5b0b1c-5a1c-4a6e-9d4c-6c0f2f7f3a11"
    iteration: int = 0
    has_uuids: bool = True

    def uri(self, output: str) -> str:
        """The URI that the driver makes for an output "TASK/OUTPUT"."""
        task, name = output.split("/")
        salt = f"/{uuid.uuid5(uuid.UUID(self.run_id), f'{task}/{self.iteration}')}" if self.has_uuids else ""
        return f"{self.root}/v2/artifacts/digits/{self.run_id}/{task.replace('_', '-')}{salt}/{name}"

    def output_file(self, task: str) -> Path:
        """The file in which a step that has ended tells KFP its outputs."""
        return Path(self.uri(f"{task}/output_metadata.json"))


def executor_input(
    component: Mapping, run: Run, task: str, parameters: Mapping[str, object], inputs: Mapping[str, str]
) -> dict:
    """What the backend hands to a step: the driver resolves, and the launcher adds the component's defaults.

    The driver replaces a placeholder only where it is the whole argument. No argument of a test is one, so
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
                    path if path.startswith(("s3://", "/")) else run.uri(path),
                    declared["artifacts"][key],
                )
                for key, path in inputs.items()
            },
        },
        "outputs": {
            "artifacts": {
                key: artifact(run.uri(f"{task}/{key}"), definition)
                for key, definition in outputs.get("artifacts", {}).items()
            },
            "parameters": {key: {"outputFile": run.uri(f"{task}/{key}")} for key in outputs.get("parameters", {})},
            "outputFile": str(run.output_file(task)),
        },
    }


def step_command(
    step: str,
    run: Run,
    parameters: Mapping[str, object],
    inputs: Mapping[str, str],
    task: str = "",
    specs: Path = SPECS,
) -> list[str]:
    """The container command and arguments of a compiled step, as KFP's launcher would start it.

    Args:
        step: The name of its YAML file.
        run: The run that it belongs to.
        parameters: Arguments that the task passes, by name.
        inputs: For each input artifact "TASK/OUTPUT", the output of an earlier task of the run, or an address of data.
        task: Name of the task; by default that of the step.
        specs: Folder of the compiled files.
    """
    spec = yaml.safe_load((specs / f"{step}.yaml").read_text(encoding="utf-8"))
    name = step.replace("_", "-")
    values = executor_input(spec["components"][f"comp-{name}"], run, task or step, parameters, inputs)
    container = spec["deploymentSpec"]["executors"][f"exec-{name}"]["container"]
    arguments = [json.dumps(values) if part == "{{$}}" else part for part in container["args"]]
    return [*container["command"], *arguments]


def whole_job(
    run: Run, bucket: str = "checkpoints", export_to: str = "models", image: str = "", specs: Path = SPECS
) -> dict[str, list[str]]:
    """The commands of the four steps, in order, for a small training on digits by one process.

    Args:
        run: The run that they belong to.
        bucket: For checkpoints.
        export_to: Bucket for the exported model.
        image: Of the replicas, where they are pods.
        specs: Folder of the compiled files.
    """
    return {
        "prepare_data": step_command("prepare_data", run, {"source": "digits", "shards": 3}, {}, specs=specs),
        "train": step_command(
            "train",
            run,
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
            specs=specs,
        ),
        "evaluate": step_command(
            "evaluate", run, {}, {"model": "train/model", "dataset": "prepare_data/test_dataset"}, specs=specs
        ),
        "export_model": step_command(
            "export_model", run, {"model_name": "digits", "bucket": export_to}, {"model": "train/model"}, specs=specs
        ),
    }


def run_step_command(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a compiled step's command in this Python, which has its packages, and both outputs as one."""
    return subprocess.run(
        command,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
