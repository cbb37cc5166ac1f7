"""Which Python of this machine runs the replicas, and what starts the ranks of MPI."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kfp_distributed.components.train.mpirun import elastic_horovodrun, horovodrun, mpirun
from kfp_distributed.components.train.specification import DistributionSpecification
from kfp_distributed.trainers.requirements import image_name, variable_of

_MODULES = {"horovod": "horovod", "pytorch": "torch"}


def find_python(program: Mapping[str, Any], distribution_type: str) -> str:
    """The Python that a program runs in: this one, unless it needs what another has.

    That other one is the environment that `make environments` makes, or what a variable such as
    KFP_DISTRIBUTED_HOROVOD_PYTHON names.

    Raises:
        ValueError: A trainer of ours needs one, and there is none.
    """
    name = image_name(program, distribution_type)
    variable = variable_of(name, "PYTHON")
    if os.environ.get(variable):
        return os.environ[variable]
    # A folder of that name in the working directory has a spec, too, but no origin.
    found = [find_spec(_MODULES[each]) for each in name.split("-") if each]
    if all(each and each.origin for each in found):
        return sys.executable
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    made = cache / "kfp-distributed" / name / "bin" / "python"
    if made.exists():
        return str(made)
    if "trainer" not in program:  # It may do without.
        return sys.executable
    raise ValueError(
        f"train_specification: {program['trainer']} needs {name}, which this Python lacks; run `make environments` in "
        f"a checkout of kfp-distributed, or name a Python that has it in {variable}"
    )


def mpi_command(python: str, spec: DistributionSpecification, program: Sequence[str]) -> list[str]:
    """What starts the ranks of an MPI job here: OpenMPI where it is, else Horovod over Gloo, as for elastic ones.

    Raises:
        ValueError: There is neither.
    """
    here = str(Path(python).parent)
    found = not spec.min_workers and shutil.which("mpirun", path=os.pathsep.join((here, os.environ.get("PATH", ""))))
    if found:
        return [found, *mpirun(spec.ranks, program, "--oversubscribe")[1:]]
    if shutil.which("horovodrun", path=here):
        return (
            elastic_horovodrun(spec, program, python) if spec.min_workers else horovodrun(spec.ranks, program, python)
        )
    raise ValueError(
        f"distribution_type = 'MPI' needs mpirun, or Horovod beside {python}: install OpenMPI, or run "
        "`make environments` in a checkout of kfp-distributed"
    )
