"""What the code imports is declared: in pyproject.toml, and for each compiled step in its list of packages."""

import ast
import re
import shlex
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from compiled import carried_modules, executors

from kfp_distributed.pipelines.specs import write_specs

ROOT = Path(__file__).parents[2]
ROOMS = ("components", "trainers", "storage", "processes", "pipelines", "cli")

# What trainers import is in the images, or pip installs it without its dependencies.
FRAMEWORKS = {"horovod", "tensorflow", "tf_keras", "torch"}


def third_party(source):
    """The modules of others that a source imports, wherever in it the import stands."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - {"kfp_distributed"}


def undeclared(modules, requirements):
    """The modules whose distribution is not among the requirements."""
    declared = {canonical(re.match(r"[\w.-]*", requirement)[0]) for requirement in requirements}
    distributions = packages_distributions()
    return {name for name in modules if not declared & set(map(canonical, distributions.get(name, [])))}


def canonical(distribution):
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_the_project_declares_what_it_imports():
    project = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    sources = [file.read_text(encoding="utf-8") for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    modules = set.union(*map(third_party, sources))
    assert {"certifi", "kfp", "torch", "urllib3", "yaml"} <= modules
    requirements = [*project["dependencies"], *project["optional-dependencies"]["local"]]
    assert undeclared(modules - FRAMEWORKS, requirements) == set()


def test_each_step_installs_what_its_modules_import(tmp_path):
    write_specs(tmp_path)
    lacking = {}
    for step, container in executors(tmp_path / "train_and_export.yaml").items():
        sources = carried_modules(container)
        modules = set.union(*(third_party(text) for path, text in sources.items() if "/trainers/" not in path))
        lacking[step] = undeclared(modules, shlex.split(container["command"][2].rpartition("fi\n")[2]))
    # train only carries the code that reads Parquet files: it runs in the replicas.
    assert lacking == {"prepare-data": set(), "train": {"pyarrow"}, "evaluate": set(), "export-model": set()}
