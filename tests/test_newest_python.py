"""The newest Python that pyproject.toml allows compiles the same steps, sends functions to replicas, and trains.

The jobs of .github/workflows/ci.yml run all tests with each Python. These show it with one of them.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest
from environments import TEST_ENVIRONMENTS, environment, newest_python
from forked_replicas import forked

pytestmark = pytest.mark.takes(45)

ROOT = Path(__file__).parents[1]

SEND = """\
import json
from functions import fit
from kfp_distributed.trainers import parse_program, train_specification
from kfp_distributed.trainers.runtime.entry import load_function

print(load_function(parse_program(json.dumps(train_specification(fit))))("/model"))
"""
FUNCTIONS = """\
def fit(model_dir, text=\"\"\"a
  b\"\"\", *, size: int = 3):
    class Model:
        size = 2

        def __init__(self):
            self.text, self.width, self.height = f"{text!r:>{size}}", 1, 2

        def name(self):
            try:
                return [self.text for self.width in range(1)][0] + model_dir
            except KeyError:
                raise

    return Model().name(), Model.size
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A function that runs the newest Python with this project on the import path, and returns what it prints."""
    python = environment(f"python{newest_python()}")
    project = tmp_path_factory.mktemp("project")
    (project / "kfp_distributed").symlink_to(ROOT)
    variables = {**os.environ, "PYTHONPATH": str(project), "PATH": f"{python.parent}:{os.environ['PATH']}"}

    def run_python(*arguments, folder):
        process = subprocess.run(
            forked(python, *arguments), cwd=folder, env=variables, capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-4000:]
        return process.stdout

    return run_python


def test_the_environment_is_that_of_the_newest_python():
    assert f"python{newest_python()}" in TEST_ENVIRONMENTS


def test_it_compiles_the_committed_yaml(tmp_path, run):
    assert run("-c", "import sys; print(sys.version)", folder=tmp_path).startswith(newest_python())
    run("-m", "kfp_distributed.cli.main", "compile", tmp_path, folder=tmp_path)
    compiled, committed = (
        {file.name: file.read_bytes() for file in folder.glob("*.yaml")}
        for folder in (tmp_path, ROOT / "component_specs")
    )
    assert compiled == committed


def test_it_sends_a_function_with_a_class(tmp_path, run):
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "send.py").write_text(SEND)
    assert run("send.py", folder=tmp_path) == "(\"'a\\\\n  b'/model\", 2)\n"


def test_the_demo_trains_and_ends_with_a_prediction(tmp_path, run):
    options = ("--folder", "run", "--epochs", "4", "--distribution", "{}")
    printed = run("-m", "kfp_distributed.pipelines.demo", *options, folder=tmp_path)
    assert float(re.search(r"^test accuracy +([\d.]+)$", printed, re.MULTILINE)[1]) >= 0.9
    assert re.search(r"^prediction +(\d) \(probability [\d.]+\), true label \1,", printed, re.MULTILINE)
