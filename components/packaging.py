"""Makes KFP components of the steps' functions: their images, what pip installs, and the bootstrap that they carry."""

import ast
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import kfp
from kfp import dsl

from kfp_distributed.library.archive import library_name
from kfp_distributed.library.content import content_hash, read_library
from kfp_distributed.trainers.requirements import STOCK_IMAGE, Requirements, pip_script

# Of what is set on a task, the step itself needs the environment alone: it may say where the step's object store is.
_PASSED_ON = [
    dsl.TaskConfigPassthrough(field=field, apply_to_task=field is dsl.TaskConfigField.ENV)
    for field in dsl.TaskConfigField
]


def make_step(
    function: Callable[..., Any], *, image: str = "", packages: Sequence[str] = (), task_config: bool = False
) -> Any:  # noqa: ANN401  (kfp exports no type for its components)
    """Make the KFP component of one step.

    Its container runs the bootstrap first (library/bootstrap.py), then the function.

    Args:
        function: The step's signature and its few lines of body, which import what does the work.
        image: Container image that has the step's packages; "" for a stock image, where pip installs them.
        packages: What pip installs into a stock image before the step starts.
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
    *start, source = container.command
    if not image:
        script = pip_script(Requirements(tuple(packages), (f"kfp=={kfp.__version__}",)))
        start = ["sh", "-c", f'{script} && "$0" "$@"', *start]
    container.command = [*(re.sub(" +", " ", word) for word in start), f"{bootstrap()}\n{short_source(source)}\n"]
    return component if task_config else _without_task_config(component)


@cache
def bootstrap() -> str:
    """Return the bootstrap for steps that are compiled by the library that is installed here."""
    source = (files("kfp_distributed.library") / "bootstrap.py").read_text(encoding="utf-8")
    hash_ = content_hash(read_library())
    return source.replace("@NAME@", library_name(hash_)).replace("@HASH@", hash_)


def short_source(source: str) -> str:
    """Return the source of a function without comments and docstring, which is in the component's descriptions.

    Argo keeps some eleven copies of each step's source in a Workflow of at most 1 MiB.
    """
    module = ast.parse(source)
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.unparse(module)


def _without_task_config(component: Any) -> Any:  # noqa: ANN401
    """Return the component without its parameters of the type TaskConfig, which a backend before 2.15 refuses.

    The function still takes them: kfp passes an empty one for each that a component does not declare.
    """
    spec = component.component_spec
    spec.inputs = {name: each for name, each in spec.inputs.items() if each.type != dsl.TaskConfig.__name__}
    return type(component)(spec, component.python_func)
