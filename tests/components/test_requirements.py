"""What the code imports is declared: in pyproject.toml, and for each compiled step in its list of packages."""

import ast
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from kfp_distributed.components.steps import PACKAGES

ROOT = Path(__file__).parents[2]
ROOMS = ("components", "trainers", "storage", "processes", "library", "reports", "pipelines", "cli")

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


def imported_files(module):
    """The files of this project that are executed when a module of it is imported, wherever their imports stand."""
    waiting, files = [module], {}
    while waiting:
        name = waiting.pop()
        path = ROOT.joinpath(*name.split(".")[1:])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name in files or not file.exists():
            continue
        files[name] = file
        # In a step this package is empty, see its file.
        source = "" if name == "kfp_distributed.components" else file.read_text(encoding="utf-8")
        waiting.append(name.rpartition(".")[0])
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names if alias.name.startswith("kfp_distributed.")]
            elif isinstance(node, ast.ImportFrom) and node.module.startswith("kfp_distributed."):
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return files.values()


# What is imported inside functions that the step does not call: replicas read Parquet, and evaluate no object store.
# Without packaging a step asks pip which requirements are met.
NOT_NEEDED = {"train": {"pyarrow"}, "evaluate": {"kubernetes", "yaml"}}
OPTIONAL = {"packaging"}


@pytest.mark.parametrize("step", PACKAGES)
def test_each_step_installs_what_its_modules_import(step):
    files = imported_files(f"kfp_distributed.components.{step}.step")
    assert len(files) > 8
    modules = set.union(*(third_party(file.read_text(encoding="utf-8")) for file in files))
    assert undeclared(modules - OPTIONAL, PACKAGES[step]) == NOT_NEEDED.get(step, set())
