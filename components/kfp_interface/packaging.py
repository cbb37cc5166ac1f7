"""Makes KFP components of the steps' functions: their images, what pip installs, and the bootstrap that they carry."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import kfp
from kfp import dsl

from kfp_distributed.components.kfp_interface.input_values import accept_input_values
from kfp_distributed.components.kfp_interface.kfp_internals import NeverCached, StepComponent
from kfp_distributed.library.archive import library_name
from kfp_distributed.library.content import content_hash, read_library
from kfp_distributed.trainers.programs.requirements import STOCK_IMAGE

# As kfp's own shell, except that it starts the program, which then starts kfp's executor. `kfp.local` of kfp 2.17 finds
# the program by the quoted path and "$@".
_RUN = """\
program_path=$(mktemp -d)
program="$program_path/ephemeral_component.py"
printf "%s" "$0" > "$program"
python3 "$program" --component_module_path "$program" "$@"
"""

# The library cannot install itself. The waits are those of library/packages.py.
_INSTALL_LIBRARY = """\
library={requirement}
echo "pip installs $library"
install() {{ python3 -m pip install -q --no-deps "$library"; }}
install || {{ sleep 2; install; }} || {{ sleep 5; install; }} || {{ sleep 10; install; }}
"""

_EXECUTOR = "kfp.dsl.executor_main"

_PROGRAM = """\
{bootstrap}{variables}
if __name__ == '__main__':
  from kfp_distributed.library.start import start
  start({arguments})
else:
  from {module} import {function}
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
    library: str = "",
    task_config: bool = False,
    cached: bool = True,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Any:  # noqa: ANN401  (kfp exports no type for its components)
    """Make the KFP component of one step.

    Its container runs a program that starts with the bootstrap (library/bootstrap.py). The library then installs
    packages and runs kfp's executor, which imports the program again, and so the function.

    Args:
        function: The step's signature, and a body that calls what does the work.
        image: Container image that has the step's packages; "" for a stock image, where pip installs them.
        packages: What pip installs into a stock image before the step starts.
        library: Requirement by which pip installs the library itself; "" if it does not.
        task_config: Whether KFP passes the settings of the task, for a parameter of the type TaskConfig.
        cached: Whether KFP may reuse the outputs of an earlier task with the same inputs.
        variables: Environment variables of the step. Those that are set on the task take precedence.

    Returns:
        A component to call inside a `@dsl.pipeline` function.
    """
    component = dsl.component(
        base_image=image or STOCK_IMAGE,
        install_kfp_package=False,
        task_config_passthroughs=_PASSED_ON if task_config else None,
    )(function)
    container = component.component_spec.implementation.container
    arguments = [_EXECUTOR] if image else [_EXECUTOR, f"kfp=={kfp.__version__}", *packages]
    program = _PROGRAM.format(
        bootstrap=bootstrap(),
        variables=_set_defaults(variables),
        arguments=", ".join(map(repr, arguments)),
        module=function.__module__,
        function=function.__name__,
    )
    shell = _INSTALL_LIBRARY.format(requirement=shlex.quote(library)) + _RUN if library else _RUN
    container.command = ["sh", "-ec", shell, program]
    spec = component.component_spec if task_config else _without_task_config(component.component_spec)
    return accept_input_values((StepComponent if cached else NeverCached)(spec, function))


def _set_defaults(variables: Mapping[str, str]) -> str:
    # kfp compiles no pipeline of a component that it has loaded from YAML with environment variables.
    lines = [f"os.environ.setdefault({name!r}, {value!r})" for name, value in variables.items()]
    return "\n".join(["import os", *lines]) if lines else ""


@cache
def bootstrap() -> str:
    """Return the bootstrap for steps that are compiled by the library that is installed here."""
    source = (files("kfp_distributed.library") / "bootstrap.py").read_text(encoding="utf-8")
    hash_ = content_hash(read_library())
    return source.replace("@NAME@", library_name(hash_)).replace("@HASH@", hash_)


def _without_task_config(spec: Any) -> Any:  # noqa: ANN401
    """Return the specification without parameters of the type TaskConfig, which a backend before 2.15 refuses.

    The function still takes them: kfp passes an empty one for each that a component does not declare.
    """
    spec.inputs = {
        name: parameter for name, parameter in (spec.inputs or {}).items() if parameter.type != dsl.TaskConfig.__name__
    }
    return spec
