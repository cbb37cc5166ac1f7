"""All imported packages are declared: in pyproject.toml, and for each step in its list of packages."""

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from kfp_distributed.components.kfp_interface.step_packages import DASK, PACKAGES, PREDICTION, PREPARATION
from kfp_distributed.components.predict.prediction_pods import prediction_job as predict
from kfp_distributed.components.prepare_data.preparation_pods import preparation_request as prepare_data
from kfp_distributed.trainers.programs.requirements import ENTRY

pytestmark = pytest.mark.takes(14)

ROOT = Path(__file__).parents[2]
PACKAGE_FOLDERS = (
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

# Packages that trainers import. They are in the images, or pip installs them without dependencies.
FRAMEWORKS = {"horovod", "tensorflow", "tf_keras", "torch"}

# TensorFlow requires them, and it is declared. "google" is protobuf, which onnx requires too.
OF_TENSORFLOW = {"google", "h5py", "keras"}

# Each driver of a source has the first one, and the Hub is the second. A step installs what a source needs.
DRIVERS = {"fsspec", "huggingface_hub"}

# The images of programs for language models have them, and TensorBoard's logs need the last one.
LANGUAGE_MODELS = {"lm_eval", "accelerate", "datasets", "peft", "safetensors", "transformers", "trl", "tensorboardX"}

# Imported only where a notebook runs, which has it.
NOTEBOOK = {"IPython"}


parse = cache(ast.parse)
"""Tests look at the same sources."""
distributions_of_modules = cache(packages_distributions)


def third_party(source):
    """Return the third-party modules that a source imports, also inside functions."""
    names = set()
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - {"kfp_distributed"}


def undeclared(modules, requirements):
    """Return the modules whose distribution is not among the requirements."""
    declared = {canonical(re.match(r"[\w.-]*", requirement)[0]) for requirement in requirements}
    distributions = distributions_of_modules()
    return {name for name in modules if not declared & set(map(canonical, distributions.get(name, [])))}


def canonical(distribution):
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_project_declares_its_imports():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    sources = [file.read_text(encoding="utf-8") for folder in PACKAGE_FOLDERS for file in (ROOT / folder).rglob("*.py")]
    modules = set.union(*map(third_party, sources))
    assert {"certifi", "kfp", "torch", "urllib3", "yaml"} <= modules
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *extras["local"], *extras["dask"]]
    assert (
        undeclared(modules - FRAMEWORKS - LANGUAGE_MODELS - OF_TENSORFLOW - NOTEBOOK - DRIVERS, requirements) == set()
    )


def imported_files(module):
    """Return the files of this project that a module imports, directly or not, also inside functions."""
    pending, files = [module], {}
    while pending:
        name = pending.pop()
        path = ROOT.joinpath(*name.split(".")[1:])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name in files or not file.exists():
            continue
        files[name] = file
        # In a step, this package is empty: see its __init__.py.
        source = "" if name == "kfp_distributed.components" else file.read_text(encoding="utf-8")
        pending.append(name.rpartition(".")[0])
        for node in ast.walk(parse(source)):
            if isinstance(node, ast.Import):
                pending += [alias.name for alias in node.names if alias.name.startswith("kfp_distributed.")]
            elif isinstance(node, ast.ImportFrom) and node.module.startswith("kfp_distributed."):
                pending += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return files.values()


# What is imported inside functions that the step does not call: replicas read Parquet.
# Workers have Dask, and a step installs it if its own process needs it.
# A step installs the library of a format when a model needs it.
# Without packaging a step asks pip which requirements are met.
# Chat templates are checked by the plan of a training, whose names of jobs others use too.
OF_FORMATS, OF_TEMPLATES = {"tf_keras", "torch"}, {"jinja2"}
NOT_NEEDED = {
    "train": {"pyarrow"},
    "evaluate_language_model": {"pyarrow"},
    "tune": {"pyarrow"},
    "prepare_data": {"dask", "distributed"},
    "evaluate": OF_FORMATS,
    # Signatures of models are read where the library happens to be there.
    "export_model": {"onnx", "tensorflow", "torch"},
    "predict": {"dask", "distributed", *OF_FORMATS, *OF_TEMPLATES},
}
OPTIONAL = {"packaging"}


@pytest.mark.parametrize("step", PACKAGES)
def test_each_step_installs_what_its_modules_import(step):
    files = imported_files(f"kfp_distributed.components.{step}.step")
    assert len(files) > 8
    modules = set.union(*(third_party(file.read_text(encoding="utf-8")) for file in files))
    assert undeclared(modules - OPTIONAL - OF_TENSORFLOW - DRIVERS, PACKAGES[step]) == NOT_NEEDED.get(step, set())


@pytest.mark.parametrize(
    ("module", "packages"),
    [(prepare_data.MODULE, PREPARATION), (predict.MODULE, PREDICTION)],
    ids=["prepare", "predict"],
)
def test_a_pod_of_a_step_installs_what_its_modules_import(module, packages):
    modules = set.union(*(third_party(file.read_text(encoding="utf-8")) for file in imported_files(module)))
    # The pod gets the keys of the store in variables, and asks no API server for them.
    assert undeclared(
        modules - OPTIONAL - OF_TENSORFLOW - OF_FORMATS - OF_TEMPLATES - DRIVERS, (*ENTRY, *packages)
    ) == {
        "kubernetes",
        "yaml",
    }


def closure(requirements):
    """Return the distributions that requirements need with their dependencies, as installed here."""
    pending, found = [Requirement(requirement) for requirement in requirements], set()
    while pending:
        name = canonical(pending.pop().name)
        if name not in found:
            found.add(name)
            needed = map(Requirement, distribution(name).requires or ())
            pending += [other for other in needed if not other.marker or other.marker.evaluate({"extra": ""})]
    return found


def test_the_image_of_the_steps_has_dask_with_its_dependencies():
    """It installs its list without dependencies."""
    text = (ROOT / "images" / "steps" / "requirements.txt").read_text()
    listed = {canonical(line.partition("==")[0]) for line in text.splitlines() if "==" in line}
    assert closure(DASK) - listed == set()
