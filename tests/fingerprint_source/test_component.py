"""The component: its tasks are never cached, and the pipelines pass its output to prepare_data."""

import json
import runpy
from pathlib import Path

import pytest
import yaml
from compiled import Run, run_step_command, step_command
from kfp import components, dsl
from kfp.compiler import Compiler

from kfp_distributed.components import fingerprint_source, prepare_data
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.pipelines.specs import write_specs
from kfp_distributed.pipelines.train_and_export import train_and_export
from kfp_distributed.storage.dataset import DatasetManifest

pytestmark = pytest.mark.takes(5)

EXAMPLES = Path(__file__).parents[2] / "examples"
TASK_OUTPUT = {
    "taskOutputParameter": {"outputParameterKey": "Output", "producerTask": "fingerprint-source"},
}


def tasks_of(pipeline, folder):
    file = folder / "pipeline.yaml"
    Compiler().compile(pipeline, str(file))
    return yaml.safe_load(file.read_text(encoding="utf-8"))["root"]["dag"]["tasks"]


@pytest.fixture(scope="module")
def own_data():
    return runpy.run_path(str(EXAMPLES / "own_data.py"))["train_on_own_data"]


def test_the_pipelines_pass_a_fingerprint_that_is_never_cached(tmp_path, own_data):
    for pipeline in (train_and_export, own_data):
        tasks = tasks_of(pipeline, tmp_path)
        caching = {name: task["cachingOptions"] for name, task in tasks.items() if name.endswith(("source", "data"))}
        assert caching == {"fingerprint-source": {}, "prepare-data": {"enableCache": True}}
        data, fingerprint = tasks["prepare-data"], tasks["fingerprint-source"]
        assert data["inputs"]["parameters"]["source_fingerprint"] == TASK_OUTPUT
        assert data["inputs"]["parameters"]["source"] == fingerprint["inputs"]["parameters"]["source"]
        assert data["dependentTasks"] == ["fingerprint-source"]


def test_the_compiled_component_is_never_cached_as_a_pipeline_of_its_own(tmp_path):
    """In a pipeline in Python, the setting is one of the task that the author creates from the file."""
    write_specs(tmp_path)
    file = tmp_path / "fingerprint_source.yaml"
    spec = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert spec["root"]["dag"]["tasks"]["fingerprint-source"]["cachingOptions"] == {}
    loaded = components.load_component_from_file(str(file))

    @dsl.pipeline
    def composed(source: str):
        fingerprint = loaded(source=source).set_caching_options(False)
        prepare_data(source=source, source_fingerprint=fingerprint.output)

    tasks = tasks_of(composed, tmp_path)
    assert tasks["fingerprint-source"]["cachingOptions"] == {}
    assert tasks["prepare-data"]["inputs"]["parameters"]["source_fingerprint"] == TASK_OUTPUT


@pytest.mark.command_line
def test_the_compiled_step_runs(tmp_path):
    write_specs(tmp_path)
    (tmp_path / "data.csv").write_text("x,label\n1,a\n")
    run = Run(str(tmp_path))
    command = step_command("fingerprint_source", run, {"source": str(tmp_path / "data.csv")}, {}, specs=tmp_path)
    process = run_step_command(command, tmp_path)
    assert process.returncode == 0, process.stdout[-4000:]
    outputs = json.loads(run.output_file("fingerprint_source").read_text())
    assert outputs["parameterValues"]["Output"].endswith(" files=1 bytes=12")


def test_the_manifests_record_the_fingerprint(tmp_path):
    @dsl.pipeline
    def prepared(source: str):
        fingerprint = fingerprint_source(source=source)
        prepare_data(source=source, shards=1, source_fingerprint=fingerprint.output)

    (tmp_path / "data.csv").write_text("x,label\n" + "1,a\n2,b\n" * 10)
    with local_run(tmp_path / "run", embedded_store=False) as run:
        alone = fingerprint_source(source=str(tmp_path / "data.csv")).output
        prepared(source=str(tmp_path / "data.csv"))
    (folder,) = run.artifacts.glob("prepared-*")
    outputs = json.loads((folder / "fingerprint-source" / "executor_output.json").read_text())
    assert outputs["parameterValues"] == {"Output": alone}
    for split in ("train", "validation", "test"):
        text = (folder / "prepare-data" / f"{split}_dataset" / "dataset.json").read_text()
        assert DatasetManifest.from_json(text).source_fingerprint == alone
