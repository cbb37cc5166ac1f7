"""The oldest kfp that pyproject.toml allows compiles the same YAML as the installed kfp, and runs a step."""

import json
import os
import subprocess
import sys
from pathlib import Path

import kfp
import pytest
import yaml
from environments import environment, oldest_kfp

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "components",
    "trainers",
    "storage",
    "cluster_api",
    "processes",
    "library",
    "reports",
    "pipelines",
    "cli",
)
pytestmark = pytest.mark.of_libraries(*PACKAGES, "deploy")

RUN = """\
import sys
from kfp import dsl
from kfp_distributed.components import prepare_data
from kfp_distributed.pipelines.local_run import local_run

@dsl.pipeline
def small(source: str):
    prepare_data(source=source, label_column="kind", shards=1)

with local_run(sys.argv[1], embedded_store=False):
    small(source=sys.argv[2])
"""


@pytest.fixture(scope="module")
def oldest(tmp_path_factory):
    """The version of the oldest kfp, and a function that runs its Python with this project on the import path."""
    version, python = oldest_kfp(), environment("kfp-oldest")
    project = tmp_path_factory.mktemp("project") / "kfp_distributed"
    project.mkdir()
    for package in PACKAGES:
        (project / package).symlink_to(ROOT / package)
    variables = {**os.environ, "PYTHONPATH": str(project.parent), "PATH": f"{python.parent}:{os.environ['PATH']}"}

    def run(*arguments):
        process = subprocess.run([python, *arguments], env=variables, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]

    return version, run


@pytest.mark.parametrize("options", [(), ("--task-config",)])
def test_oldest_and_newest_kfp_compile_equal_yaml(tmp_path, oldest, options):
    version, run = oldest
    command = ("-m", "kfp_distributed.cli.main", "compile")
    run(*command, tmp_path / "oldest", *options)
    subprocess.run([sys.executable, *command, tmp_path / "newest", *options], check=True, capture_output=True)

    def content(folder, version):
        files = sorted((tmp_path / folder).glob("*.yaml"))
        text = json.dumps({file.name: yaml.safe_load(file.read_text()) for file in files})
        assert f"'kfp=={version}'" in text
        return json.loads(text.replace(f"kfp=={version}", "kfp").replace(f"kfp-{version}", "kfp"))

    assert kfp.__version__ != version
    assert content("oldest", version) == content("newest", kfp.__version__)


def test_oldest_kfp_runs_a_step_on_this_machine(tmp_path, oldest):
    rows = "".join(f"{number},{'ab'[number % 2]}\n" for number in range(40))
    (tmp_path / "rows.csv").write_text(f"size,kind\n{rows}")
    (tmp_path / "run.py").write_text(RUN)
    oldest[1](tmp_path / "run.py", tmp_path / "folder", tmp_path / "rows.csv")
    assert len(list((tmp_path / "folder" / "artifacts").rglob("train_dataset/dataset.json"))) == 1
