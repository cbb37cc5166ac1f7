"""Creates the Python environments of `feeding.py`: PyTorch 2.6 of Debian, with the packages that are compared.

PyTorch is that of the test environment `torch2`. Each environment here is a folder of packages and a `bin/python` that
starts the Python of `torch2` with them.
"""

import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import environments  # In tests/.

# The last version of which only the part in Python is needed: that in C++ requires the PyTorch of PyPI.
_TORCHVISION = "torchvision==0.15.1"


def make(name: str) -> Path:
    """Create an environment if it does not exist, and return the path of its Python.

    Args:
        name: "feeding", with `datasets` and `litdata`, or "feeding-mosaicml".

    Raises:
        EnvironmentUnavailableError: This machine cannot have PyTorch 2.6 of Debian.
        subprocess.CalledProcessError: A package cannot be downloaded.
    """
    torch = environments.make_environment("torch2")
    specification = [str(torch), _requirements(name), _TORCHVISION]
    create = partial(_create, name, torch)
    path: Path = environments._images.ensure_environment(name, specification, create)
    return path


def _requirements(name: str) -> list[str]:
    lines = Path(__file__).with_name(f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def _create(name: str, torch: Path, folder: Path) -> None:
    site = folder / "site"
    _install(site, "3.13", *_requirements(name))
    if name == "feeding-mosaicml":
        _install(site, "3.11", _TORCHVISION)
    launcher = folder / "bin" / "python"
    launcher.parent.mkdir()
    path = f"{shlex.quote(str(site))}${{PYTHONPATH:+:$PYTHONPATH}}"
    launcher.write_text(f'#!/bin/sh\nexport PYTHONPATH={path}\nexec {shlex.quote(str(torch))} "$@"\n')
    launcher.chmod(0o755)


def _install(site: Path, python: str, *requirements: str) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    target = ["--target", site, "--python-version", python, "--only-binary", ":all:"]
    subprocess.run([*pip, *target, *requirements], check=True)


if __name__ == "__main__":
    print(make(sys.argv[1]))
