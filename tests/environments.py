"""Virtual environments that tests need beside their own: made once, kept by the hash of what is in them.

`python tests/environments.py NAME` makes one of TEST_ENVIRONMENTS where it is not there yet, and prints its Python.
Tests only look them up, as those of images/: installing takes minutes and may have to be repeated.
"""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import pytest

from kfp_distributed.components.steps import PACKAGES
from kfp_distributed.trainers.requirements import variable_of

ROOT = Path(__file__).parents[1]

# By its path: with images/ among what Python imports from, the folder `horovod` there would be a package.
_spec = importlib.util.spec_from_file_location("environment", ROOT / "images" / "environment.py")
_images = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_images)

# A large download may break off, and pip then gives up.
_ATTEMPTS = 3


def _project() -> dict:
    import tomllib  # Python 3.10 has none.

    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def oldest_kfp() -> str:
    """The oldest version of kfp that pyproject.toml allows."""
    (kfp_range,) = [requirement for requirement in _project()["dependencies"] if requirement.startswith("kfp>")]
    return re.match(r"kfp>=(\d+\.\d+),<3$", kfp_range)[1] + ".0"


def _with_oldest_kfp() -> list[str]:
    """The project's dependencies, and of its extra `local` what prepare_data and kfp.local need.

    TensorFlow would take a gigabyte.
    """
    project = _project()
    others = [requirement for requirement in project["dependencies"] if not requirement.startswith("kfp>")]
    local = [
        requirement
        for requirement in project["optional-dependencies"]["local"]
        if requirement.startswith(("docker", "pillow"))
    ]
    return [f"kfp=={oldest_kfp()}", *others, *local]


TEST_ENVIRONMENTS: Mapping[str, Callable[[], list[str]]] = {
    # The steps' packages, and what builds a wheel.
    "steps": lambda: [*sorted({package for packages in PACKAGES.values() for package in packages}), *_BUILD],
    "kfp-oldest": _with_oldest_kfp,
    # kfp-pipeline-spec 0.2.2 is what KFP 2.0.0 reads a pipeline with.
    "kfp-2.0": lambda: ["kfp-pipeline-spec==0.2.2", "googleapis-common-protos<1.57", "pyyaml"],
    # The MLflow server. The extra `auth` has what its login needs.
    "mlflow": lambda: ["mlflow[auth]==3.17.2"],
}
"""The requirements of each environment, by its name."""

_BUILD = ("setuptools>=77", "wheel")


def make_environment(name: str, build: bool = True) -> Path:
    """Has one of TEST_ENVIRONMENTS made where it is not there yet; returns its Python.

    Args:
        name: Its name.
        build: Whether an environment that is not there is made.

    Raises:
        NotHereError: It is not there and `build` is False.
        subprocess.CalledProcessError: It cannot be made.
    """
    requirements = TEST_ENVIRONMENTS[name]()

    def make(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        _install(folder / "bin" / "python", requirements)

    return _images.made(name, [sys.version_info[:3], sys.prefix == sys.base_prefix, requirements], make, build)


def _install(python: Path, requirements: Sequence[str]) -> None:
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
    for _ in range(_ATTEMPTS - 1):
        if subprocess.run(pip, check=False).returncode == 0:
            return
    subprocess.run(pip, check=True)


def environment(name: str) -> Path:
    """Returns the Python of one of TEST_ENVIRONMENTS, see `_look_up`."""
    return _look_up(name, partial(make_environment, name, build=False))


@cache
def trainer_python(image: str) -> str:
    """Returns the Python that has what an image holds: that `make environments` made, or that a variable names.

    See `_look_up`.
    """
    return os.environ.get(variable_of(image, "PYTHON")) or str(_look_up(image, partial(_images.MAKERS[image], False)))


def _look_up(name: str, find: Callable[[], Path]) -> Path:
    """Returns an environment's Python. Without one the test is skipped with the reason; on CI it fails."""
    try:
        return find()
    except _images.NotHereError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no {name} on this machine: {error}")


if __name__ == "__main__":
    try:
        print(make_environment(sys.argv[1]))
    except (ModuleNotFoundError, subprocess.CalledProcessError) as error:
        sys.exit(f"no {sys.argv[1]} on this machine: {error}")
