"""Read compiled YAML: the containers of the steps, their packages, and the commands of KFP's launcher."""

import ast
import json
import os
import re
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml
from forked_replicas import programs_of_forks

SPECS = Path(__file__).parent.parent / "component_specs"
STEPS = ("prepare_data", "train", "evaluate", "export_model")


def executors(file: Path) -> dict[str, dict]:
    """Return the container of each step of a compiled file, by the name of the step."""
    spec = yaml.safe_load(file.read_text(encoding="utf-8"))
    return {
        name.removeprefix("exec-"): executor["container"]
        for name, executor in spec["deploymentSpec"]["executors"].items()
    }


def installed_packages(container: Mapping) -> list[str]:
    """Return the requirements that a step installs, except kfp. With an image there are none."""
    (call,) = re.findall(r"^  start(\(.*\))$", container["command"][-1], re.MULTILINE)
    arguments = ast.literal_eval(call.replace(")", ",)"))
    return list(arguments[2:])


@dataclass(frozen=True)
class Run:
    """A pipeline run on a backend.

    Attributes:
        root: The pipeline root. With a local path, unlike with s3:// or minio://, a step needs no launcher that
            transfers its inputs and outputs.
        run_id: ID of the run.
        iteration: Number of the ParallelFor iteration of the steps.
        has_uuids: Whether the driver gives each task a separate folder, like KFP 2.4 and later.
    """

    root: str
    run_id: str = "0b5b0b1c-5a1c-4a6e-9d4c-6c0f2f7f3a11"
    iteration: int = 0
    has_uuids: bool = True

    def uri(self, output: str) -> str:
        """Return the URI that the driver creates for an output "TASK/OUTPUT"."""
        task, name = output.split("/")
        salt = f"/{uuid.uuid5(uuid.UUID(self.run_id), f'{task}/{self.iteration}')}" if self.has_uuids else ""
        return f"{self.root}/v2/artifacts/digits/{self.run_id}/{task.replace('_', '-')}{salt}/{name}"

    def output_file(self, task: str) -> Path:
        """Return the file in which a finished step stores its outputs for KFP."""
        return Path(self.uri(f"{task}/output_metadata.json"))


def executor_input(
    component: Mapping, run: Run, task: str, parameters: Mapping[str, object], inputs: Mapping[str, str]
) -> dict:
    """Return the input that the backend passes to a step: the arguments, and the defaults of the component.

    The driver replaces only placeholders that are a complete argument. No test passes one, so nothing is replaced here.
    The launcher passes the defaults unchanged.

    Raises:
        ValueError: A parameter or artifact is unknown, or a required one is missing.
    """
    definitions = component.get("inputDefinitions", {})
    unknown = {*parameters} - {*definitions.get("parameters", {})} | {*inputs} - {*definitions.get("artifacts", {})}
    defaults = {
        key: value["defaultValue"]
        for key, value in definitions.get("parameters", {}).items()
        if "defaultValue" in value
    }
    required = {
        key
        for kind in definitions.values()
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
                    path if path.startswith(("s3://", "minio://", "/")) else run.uri(path),
                    definitions["artifacts"][key],
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
    """Return the container command and arguments of a compiled step, as KFP's launcher starts it.

    Args:
        step: Name of its YAML file.
        run: The run of the step.
        parameters: Arguments of the task, by name.
        inputs: For each input artifact, the output "TASK/OUTPUT" of an earlier task of the run, or an address of data.
        task: Name of the task. Default: that of the step.
        specs: Folder of the compiled files.
    """
    spec = yaml.safe_load((specs / f"{step}.yaml").read_text(encoding="utf-8"))
    name = step.replace("_", "-")
    values = executor_input(spec["components"][f"comp-{name}"], run, task or step, parameters, inputs)
    container = spec["deploymentSpec"]["executors"][f"exec-{name}"]["container"]
    arguments = [json.dumps(values) if part == "{{$}}" else part for part in container["args"]]
    return [*container["command"], *arguments]


def whole_job(
    run: Run,
    checkpoint_uri: str = "",
    image: str = "",
    specs: Path = SPECS,
    table: Mapping[str, object] | None = None,
    threshold: Mapping[str, object] | None = None,
) -> dict[str, list[str]]:
    """Return the commands of the four steps, in order, for a small training in one process.

    Args:
        run: The run of the steps.
        checkpoint_uri: Folder of the checkpoints. Default: beside the model.
        image: Image of the replicas if they are pods.
        specs: Folder of the compiled files.
        table: Inputs of prepare_data. Default: the digits in three shards.
        threshold: Inputs of evaluate. Default: none.
    """
    table = table or {"source": "digits", "shards": 3}
    return {
        "prepare_data": step_command("prepare_data", run, table, {}, specs=specs),
        "train": step_command(
            "train",
            run,
            {
                "train_specification": {"trainer": "keras_classifier", **({"image": image} if image else {})},
                "train_parameters": {"epochs": "8.0"},
                "distribution_specification": {"distribution_type": "Job"},
                "checkpoint_uri": checkpoint_uri,
            },
            {
                "train_dataset": "prepare_data/train_dataset",
                "validation_dataset": "prepare_data/validation_dataset",
            },
            specs=specs,
        ),
        "evaluate": step_command(
            "evaluate",
            run,
            threshold or {},
            {"model": "train/model", "dataset": "prepare_data/test_dataset"},
            specs=specs,
        ),
        "export_model": step_command(
            "export_model", run, {"model_name": "digits"}, {"model": "train/model"}, specs=specs
        ),
    }


def run_step_command(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command of a compiled step in a fork with this Python's packages. Return stdout and stderr as one."""
    return subprocess.run(
        command,
        env={**os.environ, "PATH": f"{programs_of_forks()}:{os.environ['PATH']}"},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
