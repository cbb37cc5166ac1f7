"""Runs compiled pipelines as a backend of Kubeflow Pipelines does, with processes instead of pods."""

import json
import re
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from compiled import Run, executor_input

from kfp_distributed.storage import EmbeddedStore, open_store

BUCKET = "mlpipeline"
"""The only bucket of a fresh installation."""

# Python runs this module first. It lets kfp find artifacts in the folder of a test instead of in /minio.
_DISK = """\
import os, sys
if "--component_module_path" in sys.orig_argv:
    from kfp.dsl.types import artifact_types
    artifact_types._MINIO_LOCAL_MOUNT_PREFIX = os.environ["TESTS_DISK"] + "/"
"""


class Backend:
    """A fresh installation: one bucket, and a cache of tasks.

    Attributes:
        bucket: Folder of the bucket.
        environment: Variables of the steps.
        logs: Output of each task that ran, by its name.
    """

    def __init__(self, store: EmbeddedStore, folder: Path, environment: Mapping[str, str]) -> None:
        """Create the bucket.

        Args:
            store: An S3 server.
            folder: Folder of the steps' disks.
            environment: Variables of the steps.
        """
        self.bucket, self.logs = store.folder / BUCKET, dict[str, str]()
        self._store = open_store(f"minio://{BUCKET}", store.credentials())
        self._store.make_bucket()
        self._folder, self._cache = folder, {}
        (folder / "site").mkdir(parents=True)
        (folder / "site" / "sitecustomize.py").write_text(_DISK)
        self.environment = {**environment, "PYTHONPATH": str(folder / "site"), "_KFP_RUNTIME": "true"}

    def run(self, file: Path, **arguments: object) -> dict[str, dict[str, Any]]:
        """Run a pipeline. Inputs without an argument have their defaults. Return the outputs of each task that ran."""
        spec = yaml.safe_load(file.read_text(encoding="utf-8"))
        outputs: dict[str, dict[str, Any]] = {}
        self._run_dag(spec, spec["root"], arguments, Run(f"minio://{BUCKET}", str(uuid.uuid4())), outputs)
        return outputs

    def _run_dag(self, spec: Mapping, component: Mapping, arguments: Mapping, run: Run, outputs: dict) -> None:
        inputs = {**_defaults(component), **arguments}
        tasks = dict(component["dag"]["tasks"])
        while tasks:
            name = next(name for name, task in tasks.items() if not tasks.keys() & task.get("dependentTasks", ()))
            task = tasks.pop(name)
            inner = spec["components"][task["componentRef"]["name"]]
            sources = {key: value for kind in task.get("inputs", {}).values() for key, value in kind.items()}
            values = {key: _resolve(source, inputs, outputs) for key, source in sources.items()}
            if not _is_triggered(task, values):
                continue
            if "dag" in inner:
                self._run_dag(spec, inner, values, run, outputs)
                continue
            key = json.dumps([name, values], sort_keys=True)
            if not task["cachingOptions"].get("enableCache") or key not in self._cache:
                container = spec["deploymentSpec"]["executors"][inner["executorLabel"]]["container"]
                self._cache[key] = self._run_step(name, inner, container, values, run)
            outputs[name] = self._cache[key]

    def _run_step(self, name: str, component: Mapping, container: Mapping, values: Mapping, run: Run) -> dict:
        disk = self._folder / run.run_id / name
        disk.mkdir(parents=True)
        artifacts = {key: values[key] for key in component["inputDefinitions"].get("artifacts", {}) if key in values}
        parameters = {key: value for key, value in values.items() if key not in artifacts}
        for uri in artifacts.values():
            for entry in self._store.list(_key(uri)):
                self._store.download(entry.key, disk / BUCKET / entry.key)
        message = json.dumps(executor_input(component, run, name, parameters, artifacts))
        command = [message if part == "{{$}}" else part for part in (*container["command"], *container["args"])]
        environment = {**self.environment, "TESTS_DISK": str(disk)}
        process = subprocess.run(command, env=environment, cwd=disk, capture_output=True, text=True, check=False)
        self.logs[name] = process.stdout + process.stderr
        assert process.returncode == 0, self.logs[name][-4000:]
        uris = {key: run.uri(f"{name}/{key}") for key in component["outputDefinitions"].get("artifacts", {})}
        for uri in uris.values():
            path = disk / BUCKET / _key(uri)
            if path.is_dir():
                self._store.upload_folder(path, _key(uri))
            elif path.exists():
                self._store.upload(path, _key(uri))
        text = (disk / run.output_file(name)).read_text(encoding="utf-8")
        shutil.rmtree(disk)
        return {**json.loads(text).get("parameterValues", {}), **uris}


def _defaults(component: Mapping) -> dict[str, object]:
    parameters = component.get("inputDefinitions", {}).get("parameters", {})
    return {name: value["defaultValue"] for name, value in parameters.items() if "defaultValue" in value}


def _resolve(source: Mapping, inputs: Mapping, outputs: Mapping) -> object:
    match source:
        case {"componentInputParameter": name} | {"componentInputArtifact": name}:
            return inputs[name]
        case {"taskOutputParameter": {"producerTask": task, "outputParameterKey": key}}:
            return outputs[task][key]
        case {"taskOutputArtifact": {"producerTask": task, "outputArtifactKey": key}}:
            return outputs[task][key]
    raise ValueError(f"an input of a task has another form: {source}")


def _is_triggered(task: Mapping, values: Mapping) -> bool:
    condition = task.get("triggerPolicy", {}).get("condition", "")
    if not condition:
        return True
    (name,) = re.fullmatch(r"inputs\.parameter_values\['(.+)'\] == true", condition).groups()
    return values[name] is True


def _key(uri: str) -> str:
    return uri.removeprefix(f"minio://{BUCKET}/")
