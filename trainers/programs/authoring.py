"""Makes a train_specification. Authors of pipelines call it; steps and replicas do not."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kfp_distributed.trainers.programs.function_source import check_loaded, constant_key, read_source
from kfp_distributed.trainers.programs.module_names import check_module_names
from kfp_distributed.trainers.programs.program import parse_program
from kfp_distributed.trainers.programs.requirements import checked_image
from kfp_distributed.trainers.programs.signature import find_function, read_signature


def train_specification(
    what: str | Callable[..., object] | Sequence[str],
    *,
    image: str = "",
    packages: Sequence[str] = (),
    rows: str = "",
) -> dict[str, Any]:
    """Return the train_specification of a trainer, a Python function or a command.

    Args:
        what: Program to run. A string is the name of a trainer, such as "keras_classifier", which learns to predict a
            class or a number, as the dataset says. A function is sent to the
            job as source code: it must import all that it needs inside its body. A name that its module binds is
            refused, also where a builtin has the same name. The function receives those of train_dir, validation_dir,
            model_dir, checkpoint_dir, metrics_dir and tensorboard_dir that are among its parameters.
            A list of words is a command, in which {train_dir} and the names of the other folders are replaced.
        image: Container image of the replicas. Default: the image for the trainer and the type of job.
        packages: Requirements that pip installs before the program starts. Default: none.
        rows: How a function or command gets training rows: "download" for Parquet files with those of its rank in
            train_dir, "all" for files with all rows in every rank, for a program that divides them among the ranks
            itself, such as the Trainer of transformers, or "stream" for a program that reads those of its rank by
            `kfp_distributed.trainers.rows.rows`, so that neither its start nor its disk depends on the size of the
            dataset. Built-in trainers stream. Default: "download".

    Returns:
        The specification, as a dict that JSON can hold.

    Raises:
        ValueError: The trainer is unknown, the function cannot be sent to the job, `image` is not the name of an
            image, `packages` is not a list of strings, or `rows` has another value.
    """
    specification: dict[str, Any]
    if isinstance(what, str):
        specification = {"trainer": what}
    elif callable(what):
        source = read_source(what)
        _check_callable_by_name(source, what.__name__)
        check_loaded(what, source)
        _check_defaults(what, source)
        check_module_names(what, source)
        specification = {"function": what.__name__, "source": source}
    elif isinstance(what, Sequence):
        specification = {"command": list(what)}
    else:
        raise ValueError(  # noqa: TRY004 - like all errors in a specification
            f"{what!r} is not the name of a trainer, a function or a command. Pass a dict to the step `train` directly"
        )
    if image:
        specification["image"] = image
    if rows:
        specification["rows"] = rows
    if isinstance(packages, str):
        packages = [packages]
    elif isinstance(packages, Iterable) and not isinstance(packages, Mapping):
        packages = list(packages)
    if packages:
        specification["packages"] = packages
    parse_program(specification)
    if image:
        checked_image("train_specification: image", image)
    return specification


def _check_callable_by_name(source: str, name: str) -> None:
    """Check that a call of a function with named arguments runs its body.

    Raises:
        ValueError: It cannot.
    """
    function = find_function(source, name)
    if function.decorator_list:
        decorators = ", ".join("@" + ast.unparse(decorator) for decorator in function.decorator_list)
        raise ValueError(f"{name}() is decorated with {decorators}, which is not sent to the job; remove the decorator")
    if function.args.posonlyargs:
        raise ValueError(f"{name}() has positional-only parameters. Arguments are passed by name: remove the '/'")
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in _own_nodes(function)):
        raise ValueError(f"{name}() is a generator, so a call would not run its body; remove the yield")


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, except those of nested functions."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.GeneratorExp)):
            yield child
            yield from _own_nodes(child)


def _check_defaults(function: Callable[..., object], source: str) -> None:
    """Check that the defaults of the source are those of the loaded function.

    They differ if `__defaults__` was set, or a call has changed a list or dict that is a default.

    Raises:
        ValueError: They differ, or a default of the source is not a constant expression.
    """
    name, code, values = function.__name__, function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    loaded = {**dict(zip(names, values, strict=True)), **(function.__kwdefaults__ or {})}
    parameters, _ = read_signature(source, name)
    written = {parameter.name: parameter.default for parameter in parameters if not parameter.required}
    for key in {**written, **loaded}:
        pair = [(defaults[key],) if key in defaults else () for defaults in (written, loaded)]
        if constant_key(pair[0]) != constant_key(pair[1]):
            sent, here = (f"{default[0]!r:.200}" if default else "missing" for default in pair)
            raise ValueError(
                f"{name}(): the default of {key} is {sent} in the source, which is sent to the job, and {here} in the "
                "loaded function; write the default into the source, and load the function again"
            )
