"""Virtual environments that tests need beside their own: made once, kept by the hash of what is in them."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from kfp_distributed.trainers.requirements import variable_of

# By its path: with images/ among what Python imports from, the folder `horovod` there would be a package.
_spec = importlib.util.spec_from_file_location("environment", Path(__file__).parents[1] / "images" / "environment.py")
_images = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_images)


def environment(name: str, *installs: Sequence[str]) -> Path:
    """Returns the Python of an environment in which `pip install` has run with each list of arguments in turn."""

    def make(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        for arguments in installs:
            pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *arguments], check=True)

    return _images.made(name, [sys.version_info[:3], sys.prefix == sys.base_prefix, installs], make)


@cache
def trainer_python(image: str) -> str:
    """Returns the Python that has what an image holds: that `make environments` made, or that a variable names.

    Without one the test is skipped with the reason; on CI it fails.
    """
    try:
        return os.environ.get(variable_of(image, "PYTHON")) or str(_images.MAKERS[image](build=False))
    except _images.NotHereError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no {image} on this machine: {error}")
