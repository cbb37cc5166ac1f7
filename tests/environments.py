"""Additional virtual environments for tests, stored under a hash of their packages.

`python tests/environments.py NAME` creates one of TEST_ENVIRONMENTS if it does not exist, and prints the path of its
Python. Tests only look them up, like those of images/, because an installation takes minutes and may need retries.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import NoReturn

import debian_torch
import pytest

from kfp_distributed.components.step_components import PACKAGES
from kfp_distributed.trainers.programs.requirements import REPLICA_KINDS, image_name, requirements_of, variable_of

ROOT = Path(__file__).parents[1]

# Loaded by its path: with images/ on the import path, Python would import the folder images/horovod as `horovod`.
_spec = importlib.util.spec_from_file_location("environment", ROOT / "images" / "environment.py")
_images = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_images)

# pip fails if a large download breaks off.
_ATTEMPTS = 3

MISSING = r"(?:Skipped: )?no (\S+) on this machine: "
"""Pattern of the reason of a test that is skipped because the machine lacks an environment or a program."""

# Variables of pytest and its workers: the cache folder of this machine, and the Pythons that its user has set.
_CACHE = "TESTS_CACHE_FOLDER"
_PREFIX = "TESTS_"

_missing: dict[tuple[str, str | None], str] = {}
"""Why a cache folder lacks an environment, by the name and the folder. Each look-up of Horovod starts a Python."""


def _project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def oldest_kfp() -> str:
    """Return the oldest version of kfp that pyproject.toml allows."""
    (kfp_range,) = [requirement for requirement in _project()["dependencies"] if requirement.startswith("kfp>")]
    return re.match(r"kfp>=(\d+\.\d+),<3$", kfp_range)[1] + ".0"


def _with_oldest_kfp() -> list[str]:
    """Return the project's dependencies, and the packages of its extra `local` for prepare_data and kfp.local.

    The extra's TensorFlow, which takes 1 GB, is not included.
    """
    project = _project()
    others = [requirement for requirement in project["dependencies"] if not requirement.startswith("kfp>")]
    local = [
        requirement
        for requirement in project["optional-dependencies"]["local"]
        if requirement.startswith(("docker", "pillow"))
    ]
    return [f"kfp=={oldest_kfp()}", *others, *local]


def newest_python() -> str:
    """Return the newest version of Python that pyproject.toml allows, such as "3.13"."""
    bound = re.fullmatch(r">=3\.\d+,<3\.(\d+)", _project()["requires-python"])[1]
    return f"3.{int(bound) - 1}"


def _for_a_run() -> list[str]:
    """Return the project's dependencies with its extra `local`, and the kfp that has compiled component_specs/."""
    project = _project()
    pinned = [requirement for requirement in project["optional-dependencies"]["dev"] if requirement.startswith("kfp=")]
    return [*project["dependencies"], *project["optional-dependencies"]["local"], *pinned]


TEST_ENVIRONMENTS: Mapping[str, Callable[[], list[str]]] = {
    # The packages of the steps, and those that build a wheel.
    "steps": lambda: [*sorted({package for packages in PACKAGES.values() for package in packages}), *_BUILD],
    "kfp-oldest": _with_oldest_kfp,
    # kfp-pipeline-spec 0.2.2 is what KFP 2.0.0 reads a pipeline with.
    "kfp-2.0": lambda: ["kfp-pipeline-spec==0.2.2", "googleapis-common-protos<1.57", "pyyaml"],
    # The MLflow server. The extra `auth` has what its login needs.
    "mlflow": lambda: ["mlflow[auth]==3.17.2"],
    # PyTorch 2.6, the packages of the images `pytorch` and `language-model`, and those of lm-evaluation-harness that it
    # imports. 1.8 GB, see debian_torch.py.
    "torch2": lambda: sorted({*_packages_of("pytorch"), *_packages_of("language-model"), *_HARNESS}),
    # The newest Python, with what a run on one machine needs. 1.9 GB.
    "python3.13": _for_a_run,
}
"""The requirements of each environment, by its name."""

_HARNESS = (
    *("lm_eval==0.4.13", "colorama==0.4.6", "lxml==6.1.3", "portalocker==4.4.2", "sacrebleu==2.6.0"),
    "tabulate==0.10.0",
)

_BUILD = ("setuptools>=77", "wheel")


def _packages_of(image: str) -> list[str]:
    lines = (ROOT / "images" / image / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def make_environment(name: str, build: bool = True) -> Path:
    """Create one of TEST_ENVIRONMENTS if it does not exist, and return the path of its Python.

    Args:
        name: Name of the environment.
        build: Whether to create a missing environment. Default: True.

    Raises:
        EnvironmentUnavailableError: The environment does not exist and `build` is False, or it needs Debian's PyTorch
            or another Python, which this machine does not have.
        subprocess.CalledProcessError: The environment cannot be created.
    """
    requirements = TEST_ENVIRONMENTS[name]()
    venv = [sys.executable, "-m", "venv"]
    base: list[object] = [sys.version_info[:3], sys.prefix == sys.base_prefix]
    if name == "torch2":
        if reason := debian_torch.missing():
            raise _images.EnvironmentUnavailableError(reason)
        specification = [debian_torch.RELEASE, debian_torch.PACKAGE, requirements]
        return _images.ensure_environment(name, specification, partial(_create_torch2, requirements), build)
    alone: tuple[str, ...] = ()
    if name.startswith("python3."):
        python = _python(name)
        venv = [python, "-m", "venv"]
        alone = ("--no-deps", *requirements_of({"trainer": "keras_classifier"}).alone)
        base = [python, alone]

    def create(folder: Path) -> None:
        subprocess.run([*venv, folder], check=True)
        _install(folder / "bin" / "python", requirements)
        if alone:
            _install(folder / "bin" / "python", alone)

    return _images.ensure_environment(name, [*base, requirements], create, build)


def _python(name: str) -> str:
    """Return the path of a Python of this machine.

    Args:
        name: Such as "python3.13". If it is of pyenv, it need not be a version that pyenv uses here.

    Raises:
        EnvironmentUnavailableError: This machine does not have it.
    """
    variables = {**os.environ, "PYENV_VERSION": name.removeprefix("python")}
    code = "import sys, venv, ensurepip; print(sys.base_prefix)"
    try:
        process = subprocess.run([name, "-c", code], env=variables, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise _images.EnvironmentUnavailableError(f"install {name} with its module venv on the PATH") from None
    return f"{process.stdout.strip()}/bin/{name}"


def _create_torch2(requirements: Sequence[str], folder: Path) -> None:
    debian_torch.create(folder, requirements)


def _install(python: Path, requirements: Sequence[str]) -> None:
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
    for _ in range(_ATTEMPTS - 1):
        if subprocess.run(pip, check=False).returncode == 0:
            return
    subprocess.run(pip, check=True)


def environment(name: str) -> Path:
    """Return the Python of one of TEST_ENVIRONMENTS. See `_look_up`."""
    return _look_up(name, partial(make_environment, name, build=False))


@cache
def trainer_python(image: str) -> str:
    """Return the Python with the packages of an image: created by `make environments`, or set in a variable.

    See `_look_up`.
    """
    given = os.environ.get(_PREFIX + variable_of(image, "PYTHON"))
    return given or str(_look_up(image, partial(_images.MAKERS[image], False)))


@contextmanager
def environment_of(trainer: str) -> Iterator[None]:
    """Let the runs in a block find the environment that a trainer needs, as runs outside of the tests do."""
    with pytest.MonkeyPatch.context() as patch:
        if image := image_name({"trainer": trainer}, ""):
            patch.setenv(variable_of(image, "PYTHON"), trainer_python(image))
        yield


def hide_environments() -> None:
    """Let runs find no environment that their test has not looked up, so that no test needs one without saying so."""
    cache = _images.cache_folder().parent
    if _CACHE not in os.environ:  # Workers inherit it.
        os.environ[_CACHE] = str(cache)
        os.environ.setdefault("PIP_CACHE_DIR", str(cache / "pip"))
        os.environ["XDG_CACHE_HOME"] = str(ROOT / ".cache" / "tests")
    for variable in (variable_of(kind, "PYTHON") for kind in REPLICA_KINDS):
        if variable in os.environ:
            os.environ[_PREFIX + variable] = os.environ.pop(variable)


def program(name: str) -> str:
    """Return the path of a program, whose package has its name. Without it, the test is skipped, and fails in CI."""
    return shutil.which(name) or _unavailable(name, f"apt-get install {name}")


def _look_up(name: str, find: Callable[[], Path]) -> Path:
    """Return the Python of an environment. If it does not exist, the test is skipped, and fails in CI."""
    key = name, os.environ.get(_CACHE)
    if key not in _missing:
        try:
            with pytest.MonkeyPatch.context() as patch:
                if _CACHE in os.environ:
                    patch.setenv("XDG_CACHE_HOME", os.environ[_CACHE])
                return find()
        except _images.EnvironmentUnavailableError as error:
            _missing[key] = str(error)
    return _unavailable(name, _missing[key])


def _unavailable(name: str, reason: str) -> NoReturn:
    (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no {name} on this machine: {reason}")


if __name__ == "__main__":
    try:
        print(make_environment(sys.argv[1]))
    except (_images.EnvironmentUnavailableError, subprocess.CalledProcessError) as error:
        sys.exit(f"no {sys.argv[1]} on this machine: {error}")
