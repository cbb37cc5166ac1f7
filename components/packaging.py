"""Makes KFP components of the steps' functions: their images, what pip installs, and the bootstrap that they carry."""

import re
import shlex
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import kfp
from kfp import dsl

from kfp_distributed.library.archive import library_name
from kfp_distributed.library.content import content_hash, read_library
from kfp_distributed.trainers.requirements import STOCK_IMAGE

# kfp runs the function, so it is installed before any Python of ours; the library then installs the other packages. The
# waits are those of library/packages.py.
_INSTALL = """\
for wait in 2 5 10 0; do
 python3 -m pip install -q --disable-pip-version-check --no-warn-script-location --no-deps {} && break
 [ $wait = 0 ] && exit 1
 sleep $wait
done
"$0" "$@"
"""

# Of what is set on a task, the step itself needs the environment alone: it may say where the step's object store is.
_PASSED_ON = [
    dsl.TaskConfigPassthrough(field=field, apply_to_task=field is dsl.TaskConfigField.ENV)
    for field in dsl.TaskConfigField
]


def make_step(
    function: Callable[..., Any],
    *,
    image: str = "",
    packages: Sequence[str] = (),
    library: Sequence[str] = (),
    task_config: bool = False,
) -> Any:  # noqa: ANN401  (kfp exports no type for its components)
    """Make the KFP component of one step.

    Its container runs a program of three parts: the bootstrap (library/bootstrap.py), the installation of packages, and
    the import of the function from the library, which KFP then calls.

    Args:
        function: The step's signature, and a body that calls what does the work.
        image: Container image that has the step's packages; "" for a stock image, where pip installs them.
        packages: What pip installs into a stock image before the step starts.
        library: Requirement of the library itself, where pip installs that too.
        task_config: Whether KFP passes the settings of the task, for a parameter of the type TaskConfig.

    Returns:
        A component to call inside a `@dsl.pipeline` function.
    """
    component = dsl.component(
        base_image=image or STOCK_IMAGE,
        install_kfp_package=False,
        task_config_passthroughs=_PASSED_ON if task_config else None,
    )(function)
    container = component.component_spec.implementation.container
    # kfp's shell that writes the program to a file and runs it.
    *start, _ = (re.sub(" +", " ", word) for word in container.command)
    program = [bootstrap()]
    if not image:
        start = ["sh", "-c", _INSTALL.format(shlex.join([f"kfp=={kfp.__version__}", *library])), *start]
        program.append(f"from kfp_distributed.library.packages import install\ninstall{(*packages,)}")
    program.append(f"from {function.__module__} import {function.__name__}\n")
    container.command = [*start, "\n".join(program)]
    return component if task_config else _without_task_config(component)


@cache
def bootstrap() -> str:
    """Return the bootstrap for steps that are compiled by the library that is installed here."""
    source = (files("kfp_distributed.library") / "bootstrap.py").read_text(encoding="utf-8")
    hash_ = content_hash(read_library())
    return source.replace("@NAME@", library_name(hash_)).replace("@HASH@", hash_)


def _without_task_config(component: Any) -> Any:  # noqa: ANN401
    """Return the component without its parameters of the type TaskConfig, which a backend before 2.15 refuses.

    The function still takes them: kfp passes an empty one for each that a component does not declare.
    """
    spec = component.component_spec
    spec.inputs = {
        name: parameter for name, parameter in (spec.inputs or {}).items() if parameter.type != dsl.TaskConfig.__name__
    }
    return type(component)(spec, component.python_func)
