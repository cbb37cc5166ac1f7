"""Python interpreter of the replicas on this machine, and the command that starts the ranks of an MPI job."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kfp_distributed.components.train.describe.mpirun import UNLESS_TRAINED, elastic_horovodrun, horovodrun, mpirun
from kfp_distributed.components.train.describe.specification import DistributionSpecification
from kfp_distributed.trainers.programs.requirements import image_name, variable_of

_MODULES = {
    "horovod": ("horovod",),
    "pytorch": ("torch",),
    "horovod-pytorch": ("horovod", "torch"),
    "language-model": ("torch", "transformers", "trl", "peft"),
}


def find_python(program: Mapping[str, Any], distribution_type: str) -> str:
    """Return the Python that runs a program: the current one, or one with the framework of the program.

    The latter is that of a variable such as KFP_DISTRIBUTED_HOROVOD_PYTHON, or an environment of `make environments`.

    Raises:
        ValueError: A built-in trainer needs a framework, and no Python has it.
    """
    name = image_name(program, distribution_type)
    variable = variable_of(name, "PYTHON")
    if os.environ.get(variable):
        return os.environ[variable]
    # A folder of that name in the working directory has a spec, too, but no origin.
    specs = [find_spec(module) for module in _MODULES.get(name, ())]
    if all(spec and spec.origin for spec in specs):
        return sys.executable
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    environment_python = cache / "kfp-distributed" / name / "bin" / "python"
    if environment_python.exists():
        return str(environment_python)
    if "trainer" not in program:  # A function or command may not need the framework.
        return sys.executable
    way = "run `make environments` in a checkout of kfp-distributed"
    if name == "language-model":
        way = "run pip install 'kfp-distributed[language-model]' for it"
    raise ValueError(
        f"train_specification: {program['trainer']} needs {' and '.join(_MODULES[name])}, and this Python lacks "
        f"{'one of them' if len(specs) > 1 else 'it'}; {way}, or set {variable} to a Python that has the packages of "
        f"images/{name}/requirements.txt"
    )


def mpi_command(python: str, spec: DistributionSpecification, program: Sequence[str]) -> list[str]:
    """Return the command that starts the ranks of an MPI job on this machine.

    It is OpenMPI's mpirun if installed, else horovodrun with Gloo. Elastic training always uses Horovod.

    Raises:
        ValueError: Neither is installed.
    """
    folder = str(Path(python).parent)
    search_path = os.pathsep.join((folder, os.environ.get("PATH", "")))
    executable = not spec.min_workers and shutil.which("mpirun", path=search_path)
    if executable:
        return [python, *UNLESS_TRAINED, executable, *mpirun(spec.ranks, program, "--oversubscribe")[1:]]
    if shutil.which("horovodrun", path=folder):
        if spec.min_workers:
            return elastic_horovodrun(spec, program, python)
        return [python, *UNLESS_TRAINED, *horovodrun(spec.ranks, program, python)]
    raise ValueError(
        f"distribution_type = 'MPI' needs mpirun, or horovodrun beside {python}; install OpenMPI, or run "
        "`make environments` in a checkout of kfp-distributed"
    )
