"""Provides a library that only some formats of models need."""

import importlib
import os
from importlib.util import find_spec

from kfp_distributed.library.packages import install
from kfp_distributed.library.start import INSTALLS_PACKAGES


def provide_package(module: str, requirement: str, purpose: str) -> None:
    """Install a package if it is missing and the step installs packages.

    Args:
        module: Name of the module.
        requirement: Requirement that pip installs.
        purpose: What needs the package, for errors.

    Raises:
        ValueError: It is missing, and the step installs nothing.
        SystemExit: pip failed.
    """
    if find_spec(module):
        return
    if not os.environ.get(INSTALLS_PACKAGES):
        raise ValueError(
            f"{purpose} needs the Python package {module}, which is missing here. On your machine, run: pip install "
            f"'{requirement}'. For an image of the steps, run: make image-evaluate DRIVERS='{requirement}'. Or save "
            "the model as model.onnx"
        )
    install(requirement)
    importlib.import_module(module)
